# Commit all sweeps to the archive. The receipt says which version holds them; its name says what
# is archived and where.
rule archive:
    input:
        all_sweeps_for([ARCHIVED]),
    output:
        ARCHIVED,
    log:
        f"{RESULTS}/logs/archive/{os.path.basename(ARCHIVED)}.log",
    benchmark:
        f"{RESULTS}/logs/archive/{os.path.basename(ARCHIVED)}.tsv"
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
        "archive {output}"
    shell:
        "widthlab archive --spec {params.spec:q} {params.study:q} > {log:q}"
