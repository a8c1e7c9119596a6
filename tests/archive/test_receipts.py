"""A receipt says which version holds a study's sweeps, and goes when that is no longer true."""

import json
import shutil

import pytest
from small_study import changed_sweep, small

from widthlab.archive import receipts
from widthlab.archive.repository import Archive
from widthlab.plan import Plan
from widthlab.store.manifest import read, tree_digest
from widthlab.store.publish import folder, payload


@pytest.fixture
def plan(results):
    plan = Plan.of(small(results))
    receipts.archive(plan, print)
    return plan


def test_archiving_leaves_a_receipt_with_the_version(plan):
    (version,) = Archive.open(plan.study).versions()
    content = json.loads(receipts.receipt(plan).read_text())
    assert content["version"] == version.id
    assert content["digests"].keys() == plan.sweeps.keys()
    again, new = receipts.archive(plan, print)
    assert (again.id, new) == (version.id, False)


def test_another_study_or_place_has_another_receipt(plan):
    others = [
        small(plan.results, correlation=False),
        small(plan.results, name="other"),
        small(plan.results, archive="s3://lab/a"),
    ]
    names = {receipts.receipt(Plan.of(study)) for study in (plan.study, *others)}
    assert len(names) == 4
    assert receipts.receipt(Plan.of(small(plan.results, device="auto"))) in names


def test_a_true_receipt_stays(plan):
    receipts.discard_stale(plan)
    assert receipts.receipt(plan).exists()
    # What is in the archive may be deleted.
    for sweep in plan.sweeps.values():
        shutil.rmtree(folder(plan.results, sweep))
    receipts.discard_stale(plan)
    assert receipts.receipt(plan).exists()


def test_a_receipt_goes_with_its_archive(plan):
    shutil.rmtree(plan.results / "archive")
    receipts.discard_stale(plan)
    assert not receipts.receipt(plan).exists()
    receipts.discard_stale(plan)
    version, new = receipts.archive(plan, print)
    assert new
    assert json.loads(receipts.receipt(plan).read_text())["version"] == version.id


def test_a_receipt_of_other_numbers_goes(plan):
    changed_sweep(plan, "variance", lambda sweep: sweep + 1)
    receipts.discard_stale(plan)
    assert not receipts.receipt(plan).exists()
    assert receipts.archive(plan, print)[1]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"digests": 3}'])
def test_a_damaged_receipt_goes(plan, text):
    receipts.receipt(plan).write_text(text)
    receipts.discard_stale(plan)
    assert not receipts.receipt(plan).exists()


def test_a_damaged_sweep_is_made_again_before_it_is_archived(results):
    plan = Plan.of(small(results))
    (work, *_) = plan.sweeps.values()
    before = read(folder(results, work)).digest
    file = next(f for f in payload(results, work).rglob("c/*") if f.is_file())
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    said = []
    version, _ = receipts.archive(plan, said.append)
    assert before in version.digests.values()
    assert tree_digest(payload(results, work)) == before
    assert any(f"{work.address} is damaged" in line for line in said)
