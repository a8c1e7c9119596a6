# What the stages share: their jobs' receipts, logs and resources, and what a job needs.
#
# On a cluster data sets, the archive and the report are made where Snakemake runs (`localrule`):
# seconds of one core each, which must not wait in a queue, and often a network, which nodes lack.
# A data set that takes more becomes a job when the study gives resources for it.
import shutil

from widthlab import reporting
from widthlab.archive import receipts as archived
from widthlab.batches import receipt as receipt_of
from widthlab.store import publish as publishing
from widthlab.store import register

RESULTS = str(PLAN.results)
DEVICE = PLAN.study.device
# Jobs that compute on a GPU share those that there are: `--resources gpu=N`, 1 by default.
# Decided where the run was started and handed down to its jobs, which may see other machines: a
# job must not ask within its allocation for a GPU that was never allocated.
GPU = int(
    os.environ.setdefault(
        "WIDTHLAB_GPU",
        str(
            int(
                DEVICE == "cuda"
                or (DEVICE == "auto" and shutil.which("nvidia-smi") is not None)
            )
        ),
    )
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


# Says which version in the archive holds the sweeps.
ARCHIVED = str(archived.receipt(PLAN))
# A job's own Snakemake on a node leaves receipts alone: the one that submitted it lives by them.
if workflow.is_main_process:
    try:
        archived.discard_stale(PLAN)
    except WidthlabError as error:
        sys.exit(f"Error: {error}")


def receipt(stage):
    return f"{RESULTS}/receipts/{stage}/{{job}}"


def log_file(stage):
    return f"{RESULTS}/logs/{stage}/{{job}}.log"


def benchmark_file(stage):
    return f"{RESULTS}/logs/{stage}/{{job}}.tsv"


FINISHED = {}


def is_finished(work):
    """Whether a result was there when this process first asked: one answer for the whole plan."""
    if work.address not in FINISHED:
        FINISHED[work.address] = publishing.finished(PLAN.results, work) is not None
    return FINISHED[work.address]


def awaited(works):
    """The receipts of the jobs that will make what is not finished of these works."""
    jobs = {
        batch.name: batch
        for work in works
        if WHOLE or not is_finished(work)
        for batch in [PLAN.batch_of[work.address]]
    }
    found = [str(receipt_of(PLAN.results, batch)) for batch in jobs.values()]
    return ancient(found) if WHOLE else found


def needs(stage):
    """An input function: the receipts that a job waits for, none if its works are finished.

    `ancient` is for the views of the whole chain only: in a run it would stop Snakemake from
    making what is missing below a result that it makes again.

    On a node a job waits for nothing: what went away or was damaged since it was submitted, its
    stage makes, whereas Snakemake there knows no rule that could.
    """

    def inputs(wildcards):
        if not workflow.is_main_process:
            return []
        works = PLAN.batch(stage, wildcards.job).works
        return awaited(
            source
            for work in works
            if WHOLE or not is_finished(work)
            for source in work.inputs
        )

    return inputs


def all_sweeps_for(files):
    """An input function: the receipts of the sweeps, unless what is made of them is there."""

    def inputs(wildcards):
        if not WHOLE and all(map(os.path.exists, files)):
            return []
        return awaited(PLAN.sweeps.values())

    return inputs


def results_folder(wildcards):
    return RESULTS


def specification(stage):
    """What a job's command is told: its only work, or the study and the name of the batch."""

    def words(wildcards):
        batch = PLAN.batch(stage, wildcards.job)
        if len(batch.works) == 1:
            return ["--address", batch.name, "--spec", batch.works[0].json]
        return ["--batch", batch.name, "--study", PLAN.report.study_json]

    return words


def given(stage):
    return getattr(PLAN.study.resources, stage)


def given_nothing(stage):
    """Whether a study leaves a stage's resources to the estimate."""
    return not given(stage).model_fields_set


def memory(stage):
    return lambda wildcards, attempt: attempt * PLAN.batch(
        stage, wildcards.job
    ).memory_mb(given(stage))


def minutes(stage):
    return lambda wildcards, attempt: attempt * PLAN.batch(
        stage, wildcards.job
    ).minutes(given(stage), on_gpu=computes_on_gpu(stage))


def threads_of(stage):
    return given(stage).threads or 1


def gpus(stage):
    return GPU if given(stage).gpus is None else given(stage).gpus


def computes_on_gpu(stage):
    return stage in ("train", "extract") and gpus(stage) > 0
