"""Training and Snakemake are killed; the documented command goes on to the undisturbed result."""

import os
import shutil
import signal

import pytest
from laboratory import wait_until

pytestmark = pytest.mark.workflow


def test_killed_runs_go_on_and_end_with_the_undisturbed_result(finished, laboratory):
    laboratory.remove(
        "train residualmlp-gaussian-w8-d1-s0",
        "extract ntkdrift-residualmlp-w8-d1-s0",
        "sweep ntkdrift",
    )
    shutil.rmtree(laboratory.report)

    snakemake = laboratory.start_training()
    (training,) = laboratory.processes("train")
    os.kill(training, signal.SIGKILL)
    assert snakemake.wait(300) != 0
    assert "train residualmlp-gaussian-w8-d1-s0" not in laboratory.manifests()

    # All at once, as when a machine loses power.
    snakemake = laboratory.start_training()
    (log,) = laboratory.results.glob("logs/train/*-w8-*.log")
    assert "resuming after step" in log.read_text()
    os.killpg(snakemake.pid, signal.SIGKILL)
    snakemake.wait(300)
    wait_until(lambda: not laboratory.processes("train"))
    assert "train residualmlp-gaussian-w8-d1-s0" not in laboratory.manifests()

    # Snakemake alone: the training that it left behind goes on, and the next run waits for it.
    snakemake = laboratory.start_training()
    snakemake.kill()
    snakemake.wait(300)
    laboratory.finish()
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert not list(laboratory.results.glob("scratch/*"))
    assert not list(laboratory.results.glob("*/*/failure.json"))
    assert laboratory.planned() == []


def test_training_that_outlives_its_snakemake_is_taken_up(finished, laboratory):
    """Snakemake makes anew what it saw begin and not end; what builds on it must be made too."""
    laboratory.remove(
        "train residualmlp-gaussian-w8-d1-s0",
        "extract ntkdrift-residualmlp-w8-d1-s0",
        "sweep ntkdrift",
    )
    shutil.rmtree(laboratory.report)
    snakemake = laboratory.start_training()
    snakemake.kill()
    snakemake.wait(300)
    wait_until(lambda: not laboratory.processes("train"))
    assert "train residualmlp-gaussian-w8-d1-s0" in laboratory.manifests()
    laboratory.finish()
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert laboratory.planned() == []
