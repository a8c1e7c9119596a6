"""The shipped profile on a real scheduler: whatever befalls a job, the result is the local one."""

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from cluster import Cluster, hindrance
from filelock import FileLock
from laboratory import PATIENCE, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.workflow]

DOCUMENTED = ("snakemake", "--workflow-profile", "slurm", "--slurm-status-command", "squeue")
"""The command of docs/cluster.md where there is no accounting."""
SOON = ("--slurm-init-seconds-before-status-checks", "12")
"""For jobs of seconds."""
TRAINING = "train residualmlp-gaussian-w8-d1-s0"


def forget_training(laboratory):
    """Remove a checkpoint and all that asks for it."""
    laboratory.remove(TRAINING, "extract ntkdrift-residualmlp-w8-d1-s0", "sweep ntkdrift")
    shutil.rmtree(laboratory.report)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A Slurm of one node that takes jobs."""
    reason = hindrance()
    if reason:
        pytest.skip(reason)
    # Its configuration has one place on a machine, so workers of pytest-xdist take turns.
    with FileLock(Path(tempfile.gettempdir()) / "widthlab-slurm.lock"):
        cluster = Cluster(tmp_path_factory.mktemp("slurm"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def submit(laboratory, *arguments):
    """Run the documented command on the cluster and return its exit code and output."""
    return laboratory.run(*DOCUMENTED, *SOON, *arguments)


def start_training(laboratory, cluster, *arguments):
    """Start the documented command; return its process and its job once training has saved."""
    process = laboratory.start(*DOCUMENTED, *SOON, *arguments)
    wait_until(lambda: process.poll() is not None or laboratory.saved())
    assert process.poll() is None, laboratory.output()
    (job,) = cluster.jobs(laboratory.folder, "train", "running")
    return process, job["JobId"]


def training_log(laboratory):
    (log,) = laboratory.results.glob("logs/train/*-w8-*.log")
    return log.read_text()


def program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def sbatch():
    return shutil.which("sbatch")


def test_an_ordinary_run_equals_a_local_one_and_gpus_are_asked_for(
    cluster, finished, laboratory, tmp_path, monkeypatch
):
    shutil.rmtree(laboratory.results)
    shutil.rmtree(laboratory.report)
    # A head node with GPUs, as far as `device: auto` can tell; jobs find none and use a core.
    program(tmp_path / "bin/nvidia-smi", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    code, output = submit(laboratory)
    assert code == 0, output
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()

    jobs = cluster.jobs(laboratory.folder)
    assert {job["JobState"] for job in jobs} == {"COMPLETED"}
    for stage, gpus in (("train", "gres:gpu:1"), ("extract", "gres:gpu:1"), ("sweep", None)):
        asked = {
            job.get("TresPerJob") for job in jobs if job["Comment"].startswith(f"rule_{stage}")
        }
        assert asked == {gpus}
    assert {job["NumTasks"] for job in jobs} == {"1"}

    code, output = submit(laboratory)
    assert code == 0, output
    assert "Nothing to be done" in output
    assert len(cluster.jobs(laboratory.folder)) == len(jobs)


def test_a_cancelled_training_goes_on_with_the_same_command(cluster, finished, laboratory):
    forget_training(laboratory)
    process, job = start_training(laboratory, cluster, "--until", "train", "--retries", "0")
    cluster("scancel", job)
    assert process.wait(PATIENCE) != 0
    assert TRAINING not in laboratory.manifests()
    assert re.search(r"interrupted after step \d+", training_log(laboratory))

    code, output = submit(laboratory, "--until", "train")
    assert code == 0, output
    assert "resuming after step" in training_log(laboratory)
    assert laboratory.digests()[TRAINING] == finished.digests()[TRAINING]


def test_a_job_killed_for_memory_is_tried_again_with_more(
    cluster, finished, laboratory, tmp_path, monkeypatch
):
    forget_training(laboratory)
    # The head node has no GPU and the nodes have: a job must not want what it was not given.
    tools = tmp_path / "bin"
    program(tools / "sbatch", f'ln -sf /bin/true {tools}/nvidia-smi\nexec {sbatch()} "$@"')
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    code, output = submit(
        laboratory, "--until", "train", "--set-resources", "train:mem_mb=attempt*attempt*350"
    )
    assert code == 0, output
    jobs = cluster.jobs(laboratory.folder, "train")
    assert len(jobs) > 1
    assert [job["JobState"] for job in jobs] == ["FAILED"] * (len(jobs) - 1) + ["COMPLETED"]
    memory = [job["TRES"] for job in jobs]
    assert len(set(memory)) == len(jobs), memory
    logs = (laboratory.folder / ".snakemake/slurm_logs").glob(f"**/{jobs[0]['JobId']}.log")
    assert any("exceeded memory limit" in log.read_text() for log in logs)
    assert laboratory.digests()[TRAINING] == finished.digests()[TRAINING]


def test_a_requeued_job_whose_first_instance_still_runs_finds_it_done(
    cluster, finished, laboratory
):
    forget_training(laboratory)
    process, job = start_training(laboratory, cluster, "--until", "train")
    # A process of the same training that Slurm knows nothing of takes over when the job stops.
    (command,) = re.findall(r"^widthlab train .*$", training_log(laboratory), flags=re.MULTILINE)
    stray = laboratory.start("bash", "-c", command)
    wait_until(lambda: len(laboratory.processes("--address")) > 1)
    cluster("scontrol", "requeue", job)
    # Slurm would wait two minutes before it starts a requeued job.
    wait_until(lambda: cluster.jobs(laboratory.folder, "train", "pending"))
    cluster("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert stray.wait(PATIENCE) == 0
    assert process.wait(PATIENCE) == 0, laboratory.output()
    (again,) = cluster.jobs(laboratory.folder, "train")
    assert (again["JobState"], again["Restarts"]) == ("COMPLETED", "1")
    assert "is already there" in training_log(laboratory)
    assert laboratory.digests()[TRAINING] == finished.digests()[TRAINING]


def test_an_sbatch_that_fails_every_fifth_time_is_tried_again(
    cluster, finished, laboratory, tmp_path, monkeypatch
):
    laboratory.remove("sweep variance", "sweep ntkdrift")
    shutil.rmtree(laboratory.report)
    calls = tmp_path / "calls"
    calls.write_text(3 * "\n")
    program(
        tmp_path / "bin/sbatch",
        f"exec 9>> {calls}\n"
        "flock 9\n"
        "echo >&9\n"
        f"count=$(wc -l < {calls})\n"
        "exec 9>&-\n"
        "if [ $(( count % 5 )) = 0 ]; then\n"
        "  echo 'sbatch: error: Socket timed out on send/recv operation' >&2\n"
        "  exit 1\n"
        "fi\n"
        f'exec {sbatch()} "$@"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    code, output = submit(laboratory)
    assert code == 0, output
    assert len(calls.read_text().splitlines()) == 3 + 3
    assert output.count("SLURM sbatch failed") == 1
    assert [job["JobState"] for job in cluster.jobs(laboratory.folder)] == ["COMPLETED"] * 2
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()


def test_the_profile_for_any_scheduler_notices_a_killed_job(cluster, finished, laboratory):
    """Its line for Slurm, with a training that is killed so that it leaves nothing behind."""
    forget_training(laboratory)
    command = ("snakemake", "--workflow-profile", "cluster-generic", "--until", "train")
    process = laboratory.start(*command, "--seconds-between-status-checks", "2")
    wait_until(lambda: process.poll() is not None or laboratory.saved())
    (job,) = cluster.jobs(laboratory.folder, state="running")
    cluster("scancel", "--full", "--signal=KILL", job["JobId"])
    assert process.wait(PATIENCE) == 0, laboratory.output()
    states = [job["JobState"] for job in cluster.jobs(laboratory.folder)]
    assert len(states) == 2
    assert states[0] != "COMPLETED" == states[1]
    assert "resuming after step" in training_log(laboratory)
    assert laboratory.digests()[TRAINING] == finished.digests()[TRAINING]
