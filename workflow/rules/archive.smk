# Commit all sweeps to the archive. The receipt says which version holds them; its name says what
# is archived and where.
from widthlab.archive import receipts as archived

RECEIPT = str(archived.receipt(PLAN))
archived.discard_stale(PLAN)


def archive_needs(wildcards):
    """The receipts of the sweeps, unless they are in the archive."""
    if not WHOLE and os.path.exists(RECEIPT):
        return []
    return awaited(PLAN.sweeps.values())


rule archive:
    input:
        archive_needs,
    output:
        RECEIPT,
    log:
        f"{RESULTS}/logs/archive/{os.path.basename(RECEIPT)}.log",
    benchmark:
        f"{RESULTS}/logs/archive/{os.path.basename(RECEIPT)}.tsv"
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
