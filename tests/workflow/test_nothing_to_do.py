"""What changes nothing runs nothing: addresses, not file times, say what is finished."""

import os
import random
import shutil

import pytest
from laboratory import STUDY, jobs_of

from widthlab import study as studies
from widthlab.plan import Plan

pytestmark = pytest.mark.workflow

REWRITTEN = """
# A comment, the keys in another order and layout, and numbers written otherwise.
experiments:
    ntk_drift:
        data: {test_samples: 16.0, train_samples: 32.0, dimension: 6, name: gaussian}
        probe: 8.0   # samples
        training:
            save_every: 50
            snapshots: 3.0
            steps: 2.0e+3
            batch_size: 16.0
            learning_rate: 1e-1
            loss: mse
        seeds: 1.0
        depth: 1.0
        width:
          - 16.0
          - 8
        models: {ntk: {parameterisation: ntk, activation: tanh, name: residual_mlp,
                       residual_scale: 1}}
    variance:
        data: {name: 'gaussian', "dimension": 6, train_samples: 32, test_samples: 16}
        inputs: 2
        draws: 8.0
        depth: 2
        width: [16, 8]
        models:
            relu: {activation: relu, name: mlp}
name: tiny
checkpoints_per_job: 1.0
cells_per_job: 1
seed: 0.0
"""


def addresses(study):
    plan = Plan.of(study)
    return {plan.report.address, *(work.address for work in plan.all_work())}


def test_the_same_study_written_otherwise_has_the_same_addresses(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(REWRITTEN)
    assert addresses(studies.read(file)) == addresses(studies.parse(STUDY))


@pytest.mark.parametrize(
    "change",
    [
        {"experiments": {**STUDY["experiments"], "variance": None}},
        {"seed": 1},
        {"name": "other"},
    ],
)
def test_another_study_has_other_addresses(change):
    assert addresses(studies.parse({**STUDY, **change})) != addresses(studies.parse(STUDY))


def test_the_study_ran_every_stage_and_a_second_run_has_nothing_to_do(finished):
    assert finished.planned() == []
    assert sorted(finished.manifests()) == [
        "data gaussian",
        "extract ntkdrift-residualmlp-w16-d1-s0",
        "extract ntkdrift-residualmlp-w8-d1-s0",
        "extract variance-mlp-w16-d2",
        "extract variance-mlp-w8-d2",
        "sweep ntkdrift",
        "sweep variance",
        "train residualmlp-gaussian-w16-d1-s0",
        "train residualmlp-gaussian-w8-d1-s0",
    ]
    assert not list(finished.folder.glob("results/scratch/*"))
    assert (finished.report / "index.html").exists()


def times(files):
    """Ways to set the times of files: all now, long ago, in the future, and in any order."""
    files = sorted(files)
    year = 365.25 * 24 * 3600
    yield "now", dict.fromkeys(files)
    yield "1970", dict.fromkeys(files, (0.0, 0.0))
    yield "2100", dict.fromkeys(files, (130 * year, 130 * year))
    for seed in range(2):
        moments = [1e9 + number for number in range(len(files))]
        random.Random(seed).shuffle(moments)
        yield f"shuffled {seed}", {f: (m, m) for f, m in zip(files, moments, strict=True)}


def test_times_records_and_places_do_not_matter(finished, laboratory):
    """Results copied elsewhere, no .snakemake, a rewritten study, any times of all files."""
    laboratory.configure(REWRITTEN)
    shutil.rmtree(laboratory.folder / ".snakemake")
    files = [path for path in laboratory.folder.rglob("*") if ".snakemake" not in path.parts]
    for name, moments in times(files):
        for path, moment in moments.items():
            os.utime(path, moment, follow_symlinks=False)
        assert laboratory.planned() == [], name
    # The times are shuffled still.
    laboratory.remove("sweep variance")
    shutil.rmtree(laboratory.report)
    assert jobs_of(laboratory.finish()) == ["report", "sweep variance"]
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()


def test_a_change_of_the_study_and_going_back_make_only_what_is_missing(laboratory):
    """The page on disk is of the other study: it is built again, from results that are there."""
    laboratory.configure({**STUDY, "experiments": {"variance": STUDY["experiments"]["variance"]}})
    assert laboratory.planned() == ["archive", "report"]
    for stage in ("report", "archive"):
        laboratory.run("widthlab", stage)
    assert laboratory.planned() == []
    assert {claim["experiment"] for claim in laboratory.claims()} == {"variance"}
    laboratory.configure(STUDY)
    assert laboratory.planned() == ["report"]


def test_deleted_inputs_of_finished_work_are_not_made_again(laboratory):
    shutil.rmtree(laboratory.folder / "results/checkpoints")
    shutil.rmtree(laboratory.folder / "results/data")
    assert laboratory.planned() == []
    laboratory.remove("sweep ntkdrift")
    shutil.rmtree(laboratory.report)
    assert laboratory.planned() == ["report", "sweep ntkdrift"]
    # The page is complete all the same, and says what became of them.
    laboratory.finish()
    assert laboratory.planned() == []
    assert "deleted since" in (laboratory.report / "index.html").read_text()
