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
    # Not among the results, which may be read-only.
    log:
        str(reporting.report_folder(PLAN.study) / "report.log"),
    localrule: True
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


# What takes nothing is said in a sentence before any job; Snakemake's own is a traceback.
onstart:
    if not all(map(is_finished, PLAN.sweeps.values())):
        try:
            publishing.check_writable(PLAN.results)
            register.enter(PLAN)
        except WidthlabError as error:
            sys.exit(f"Error: {error}")


# A failed cell leaves the rest standing: the page is built from it, with the holes listed.
onerror:
    shell(
        "widthlab report --spec {PLAN.report.study_json:q} {STUDY_FILE:q} || true"
    )
    there = all(publishing.finished(PLAN.results, s) for s in PLAN.sweeps.values())
    print(
        f"{'all results are there, but see above' if there else 'some results are missing'}; "
        f"what is finished: {REPORT['page']}",
        file=sys.stderr,
    )


onsuccess:
    print(f"report: {REPORT['page']}", file=sys.stderr)
