# The report of a version, from the archive alone: `snakemake --cores 1 report --config version=NAME`.
try:
    VERSION_REPORT = versions.report_files(PLAN.study, VERSION)
except WidthlabError as error:
    sys.exit(f"Error: {error}")


rule report:
    output:
        **VERSION_REPORT,
    log:
        f"{RESULTS}/logs/report/{VERSION}.log",
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
        version=VERSION,
    message:
        "report {output.page}"
    shell:
        "widthlab report --version {params.version:q} --spec {params.spec:q}"
        " {params.study:q} > {log:q}"


onsuccess:
    print(f"report: {VERSION_REPORT['page']}", file=sys.stderr)
