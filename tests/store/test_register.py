"""The register of a results folder: what studies need that ran on it."""

import os
import time

import pytest

from widthlab import study
from widthlab.errors import WidthlabError
from widthlab.plan import Plan
from widthlab.store import keeping, register
from widthlab.store.manifest import Manifest
from widthlab.store.publish import Outcome, folder, publish

DATA = {"name": "gaussian", "dimension": 6, "train_samples": 32, "test_samples": 16}
DAY = 86400.0


def plan(results, name, width):
    section = {"models": {"relu": {"name": "mlp"}}, "width": [width], "depth": 2, "data": DATA}
    raw = {"name": name, "results": str(results), "experiments": {"variance": section}}
    return Plan.of(study.parse(raw))


def made(results, of):
    """Make all results of a plan, each older than any age that counts."""

    def make(path):
        path.write_text("a payload")
        return Outcome()

    for work in of.all_work():
        assert isinstance(publish(results, work, make, print), Manifest)
        os.utime(folder(results, work) / "manifest.json", (0, 0))


def surplus(results, of, now=None):
    others = register.entries(results, now)
    found = keeping.surplus(results, keeping.Needs.of(of, (), others), days=0)
    return {item.path.name for item in found.items if item.kind == "results"}


def test_what_another_study_needs_is_kept_for_thirty_days_after_it_ran(tmp_path):
    mine, other = plan(tmp_path, "mine", 4), plan(tmp_path, "other", 8)
    made(tmp_path, mine)
    made(tmp_path, other)
    alone = {w.address for w in other.all_work()} - {w.address for w in mine.all_work()}
    assert len(alone) == 2  # a cell and a sweep; they share the data
    assert surplus(tmp_path, mine) == alone
    register.enter(other)
    assert surplus(tmp_path, mine) == set()
    assert surplus(tmp_path, mine, time.time() + 29 * DAY) == set()
    assert surplus(tmp_path, mine, time.time() + 31 * DAY) == alone


def test_its_jobs_receipts_are_kept_too(tmp_path):
    mine, other = plan(tmp_path, "mine", 4), plan(tmp_path, "other", 8)
    (job,) = other.batches["extract"]
    register.enter(other)
    (entry,) = register.entries(tmp_path)
    assert entry.study == "other"
    assert job in keeping.Needs.of(mine, (), [entry]).receipts


def test_a_study_that_runs_again_has_one_entry_and_a_changed_one_two(tmp_path):
    for _ in range(2):
        register.enter(plan(tmp_path, "mine", 4))
    assert len(list(register.entries(tmp_path))) == 1
    register.enter(plan(tmp_path, "mine", 8))
    assert len(list(register.entries(tmp_path))) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"study": "x", "addresses": 1}'])
def test_an_entry_that_cannot_be_read_stops_gc(tmp_path, text):
    register.enter(plan(tmp_path, "mine", 4))
    (file,) = (tmp_path / "studies").iterdir()
    file.write_text(text)
    with pytest.raises(WidthlabError, match="what a study needs"):
        list(register.entries(tmp_path))
