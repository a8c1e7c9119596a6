# What the five stages share: where a result's manifest, log and benchmark lie, and what it needs.
import shutil

from widthlab.plan import FOLDERS
from widthlab import reporting
from widthlab.archive import receipts
from widthlab.store import manifest as manifests
from widthlab.store import publish as publishing

RESULTS = str(PLAN.results)
DEVICE = PLAN.study.device
# Jobs that compute on a GPU share those that there are: `--resources gpu=N`, 1 by default.
GPU = int(
    DEVICE == "cuda" or (DEVICE == "auto" and shutil.which("nvidia-smi") is not None)
)
# Used with --software-deployment-method conda only.
ENVIRONMENT = "../../envs/widthlab.yaml"

# Snakemake's own report and graphs want the whole chain, finished or not.
WHOLE = any(
    word.startswith(
        ("--report", "--summary", "--detailed-summary", "--dag", "--rulegraph")
    )
    for word in sys.argv
)


REPORT = {
    "page": str(reporting.report_folder(PLAN.study) / "index.html"),
    "claims": str(reporting.report_folder(PLAN.study) / "claims.json"),
    "stamp": str(reporting.stamp(PLAN.study, PLAN.report.address)),
}
RECEIPT = str(receipts.receipt(PLAN))


def place(stage):
    return f"{RESULTS}/{FOLDERS[stage]}/{{address}}/{manifests.MANIFEST}"


def log_file(stage):
    return f"{RESULTS}/logs/{stage}/{{address}}.log"


def benchmark_file(stage):
    return f"{RESULTS}/logs/{stage}/{{address}}.tsv"


def manifest(work):
    return str(PLAN.results / FOLDERS[work.stage] / work.address / manifests.MANIFEST)


def needs(works):
    """An input function: the manifests that a piece of work needs, none if it is finished.

    `ancient` is for the views of the whole chain only: in a run it would stop Snakemake from
    making what is missing below a result that it makes again.
    """

    def inputs(wildcards):
        work = works[wildcards.address]
        sources = [manifest(source) for source in work.inputs]
        if WHOLE:
            return ancient(sources)
        return [] if publishing.finished(PLAN.results, work) else sources

    return inputs


def report_needs(wildcards):
    """The manifests of the sweeps, unless this very report is there."""
    sources = [manifest(sweep) for sweep in PLAN.sweeps.values()]
    if WHOLE:
        return ancient(sources)
    return [] if all(map(os.path.exists, REPORT.values())) else sources


def archive_needs(wildcards):
    """The manifests of the sweeps, unless they are in the archive."""
    sources = [manifest(sweep) for sweep in PLAN.sweeps.values()]
    if WHOLE:
        return ancient(sources)
    return [] if os.path.exists(RECEIPT) else sources


def results_folder(wildcards):
    return RESULTS


def specification(works):
    return lambda wildcards: works[wildcards.address].json


def memory(works):
    return lambda wildcards, attempt: works[wildcards.address].cost.memory_mb * attempt


def minutes(works):
    return lambda wildcards, attempt: works[wildcards.address].cost.minutes * attempt
