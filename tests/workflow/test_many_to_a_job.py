"""Cells and checkpoints that share a job are what they are alone, and are made one by one."""

import shutil

import pytest
from laboratory import changed

pytestmark = pytest.mark.workflow


def test_results_that_share_jobs_are_the_same(finished, laboratory):
    laboratory.configure(changed(cells_per_job=8, checkpoints_per_job=8))
    assert laboratory.planned() == []
    laboratory.remove(*laboratory.manifests())
    shutil.rmtree(laboratory.report)
    assert laboratory.planned() == [
        "data gaussian",
        "extract ntkdrift-residualmlp-w8-d1-s0-and-1-more",
        "extract variance-mlp-w8-d2-and-1-more",
        "report",
        "sweep ntkdrift",
        "sweep variance",
        "train residualmlp-gaussian-w8-d1-s0-and-1-more",
    ]
    laboratory.finish()
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert laboratory.planned() == []


def test_one_missing_cell_of_a_job_is_made_alone(finished, laboratory):
    laboratory.configure(changed(cells_per_job=8))
    laboratory.remove("extract variance-mlp-w8-d2", "sweep variance")
    laboratory.report.joinpath("index.html").unlink()
    assert laboratory.planned() == [
        "extract variance-mlp-w8-d2-and-1-more",
        "report",
        "sweep variance",
    ]
    laboratory.finish()
    (log,) = laboratory.results.glob("logs/extract/variance-*-and-1-more-*.log")
    made = [line for line in log.read_text().splitlines() if line.endswith("measured")]
    assert len(made) == 1
    assert "w8" in made[0]
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
