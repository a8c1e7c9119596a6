"""Training and Snakemake are killed; the documented command goes on to the undisturbed result."""

import os
import re
import shutil
import signal

import pytest
from laboratory import changed, wait_until

pytestmark = pytest.mark.workflow

AWKWARD = 'Ergebnisse größe 結果\'s "neu"'
CHAIN = (
    "train residualmlp-gaussian-w8-d1-s0",
    "extract ntkdrift-residualmlp-w8-d1-s0",
    "sweep ntkdrift",
)


def test_killed_runs_go_on_and_end_with_the_undisturbed_result(finished, laboratory):
    laboratory.remove(*CHAIN)
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
    laboratory.remove(*CHAIN)
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


def test_a_scheduler_that_asks_to_stop_lets_training_save(finished, laboratory):
    """SIGTERM to the whole group, as before the end of a time limit, and again to training."""
    laboratory.remove(*CHAIN)
    shutil.rmtree(laboratory.report)
    snakemake = laboratory.start_training()
    os.killpg(snakemake.pid, signal.SIGTERM)
    assert snakemake.wait(300) != 0
    wait_until(lambda: not laboratory.processes("train"))
    (log,) = laboratory.results.glob("logs/train/*-w8-*.log")
    (words,) = re.findall(r"interrupted after step (\d+); repeat the command", log.read_text())
    assert CHAIN[0] not in laboratory.manifests()

    # To training alone: Snakemake goes on to the end, and says how the job ended.
    snakemake = laboratory.start_training()
    assert f"resuming after step {words} of 2000" in log.read_text()
    (training,) = laboratory.processes("train")
    os.kill(training, signal.SIGTERM)
    assert snakemake.wait(300) != 0
    assert "non-zero exit status 75" in laboratory.output()
    (words,) = re.findall(r"interrupted after step (\d+); repeat the command", log.read_text())
    assert CHAIN[0] not in laboratory.manifests()

    laboratory.finish()
    assert f"resuming after step {words} of 2000" in log.read_text()
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert laboratory.planned() == []


def test_a_killed_run_in_batches_below_an_awkward_path_goes_on(finished, laboratory):
    awkward = laboratory.folder / AWKWARD
    laboratory.results.rename(awkward)
    batches = {"checkpoints_per_job": 2, "cells_per_job": 2}
    laboratory.configure(changed(results=AWKWARD, **batches))
    laboratory.remove(*CHAIN, CHAIN[0].replace("w8", "w16"), CHAIN[1].replace("w8", "w16"))
    shutil.rmtree(laboratory.report)
    snakemake = laboratory.start_training()
    os.killpg(snakemake.pid, signal.SIGKILL)
    snakemake.wait(300)
    wait_until(lambda: not laboratory.processes("train"))
    (log,) = awkward.glob("logs/train/*-and-1-more-*.log")
    assert "resuming" not in log.read_text()
    laboratory.finish()
    assert "resuming after step" in log.read_text()
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert not list(awkward.glob("scratch/*"))
    assert laboratory.planned() == []
