# Build the study's page from its sweeps. The stamp's name is the report's address, so that a
# page of another configuration is known for one.
rule report:
    input:
        all_sweeps_for(REPORT.values()),
    output:
        page=report(
            REPORT["page"],
            caption="../report/page.rst",
            category="Study",
            labels={"file": "the report", "study": PLAN.study.name},
        ),
        claims=report(
            REPORT["claims"],
            caption="../report/claims.rst",
            category="Study",
            labels={"file": "claims for programs", "study": PLAN.study.name},
        ),
        stamp=REPORT["stamp"],
    log:
        f"{RESULTS}/logs/report/{PLAN.report.address}.log",
    benchmark:
        f"{RESULTS}/logs/report/{PLAN.report.address}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        spec=PLAN.report.study_json,
        study=STUDY_FILE,
    message:
        "report {output.page}"
    shell:
        "widthlab report --spec {params.spec:q} {params.study:q} > {log:q}"


# A failed cell leaves the rest standing: the page is built from it, with the holes listed.
onerror:
    shell(
        "widthlab report --spec {PLAN.report.study_json:q} {STUDY_FILE:q} || true"
    )
    print(
        f"some results are missing; what is finished: {REPORT['page']}",
        file=sys.stderr,
    )


onsuccess:
    print(f"report: {REPORT['page']}", file=sys.stderr)
