"""Batches: which pieces of work share a job, and what the job asks for."""

import pytest

from widthlab import study
from widthlab.batches import SECONDS, batches, receipt
from widthlab.costs import PIECE_SECONDS, START_SECONDS, Cost
from widthlab.errors import WidthlabError
from widthlab.plan import Plan, Work
from widthlab.store.publish import Outcome, folder, publish
from widthlab.study import JobResources

DATA = {"name": "gaussian", "dimension": 6, "train_samples": 32, "test_samples": 16}


def work(number, seconds=0.0, memory=0.0, experiment="variance"):
    cost = Cost(flops=seconds * 2e10, memory=memory)
    return Work("extract", f"cell-{number:012d}", {"experiment": experiment}, {}, "", (), cost)


def sizes(found):
    return [len(batch.works) for batch in found.values()]


def test_works_keep_their_order_and_none_is_lost():
    works = [work(n) for n in range(10)]
    found = batches(works, 4)
    assert sizes(found) == [4, 4, 2]
    assert [w for batch in found.values() for w in batch.works] == works


def test_without_a_number_a_batch_takes_about_half_a_minute():
    assert sizes(batches([work(n, seconds=SECONDS / 3.5) for n in range(6)], None)) == [3, 3]
    assert sizes(batches([work(n, seconds=10 * SECONDS) for n in range(3)], None)) == [1, 1, 1]
    # Reading inputs and publishing take their time, however little there is to compute.
    many = sizes(batches([work(n) for n in range(1000)], None))
    assert max(many) == many[0] == SECONDS / PIECE_SECONDS


def test_on_a_gpu_a_job_takes_more_works():
    works = [work(n, seconds=10.0) for n in range(12)]
    on_core, on_gpu = (sizes(batches(works, None, on_gpu=flag)) for flag in (False, True))
    assert on_core == [2, 2, 2, 2, 2, 2]
    assert on_gpu == [12]


def test_no_job_asks_for_more_than_a_day():
    (batch,) = batches([work(0, seconds=1e7)], None).values()
    assert batch.minutes(JobResources()) == 24 * 60
    assert batch.minutes(JobResources(minutes=3000)) == 3000


def test_a_given_number_holds_whatever_the_time():
    assert sizes(batches([work(n, seconds=1e6) for n in range(4)], 2)) == [2, 2]


def test_experiments_do_not_share_a_job():
    works = [work(n, experiment=name) for n, name in enumerate(["a", "a", "b"])]
    assert sizes(batches(works, None)) == [2, 1]


def test_a_batch_of_one_is_named_by_its_address_and_others_by_all_of_theirs():
    (one,) = batches([work(1)], None)
    assert one == work(1).address
    (some,) = batches([work(n) for n in range(3)], None)
    (others,) = batches([work(n) for n in (0, 1, 3)], None)
    assert some.startswith("cell-and-2-more-")
    assert some != others


def test_a_job_asks_for_the_memory_of_the_largest_and_the_time_of_all():
    (batch,) = batches([work(n, seconds=600.0, memory=1e9 * n) for n in range(3)], 3).values()
    (largest,) = batches([work(2, memory=2e9)], None).values()
    given = JobResources()
    assert batch.memory_mb(given) == largest.memory_mb(given)
    assert batch.minutes(given) >= 10 * (1800 + START_SECONDS) / 60
    assert batch.minutes(given, on_gpu=True) >= 10 * (1800 / 50 + START_SECONDS) / 60
    assert batch.minutes(given, on_gpu=True) < batch.minutes(given) / 20
    assert batch.memory_mb(JobResources(memory_mb=7)) == 7
    assert batch.minutes(JobResources(minutes=3)) == 3


def variance(**keys):
    section = {"models": {"relu": {"name": "mlp"}}, "width": [4, 8], "depth": 2, "data": DATA}
    return Plan.of(study.parse({"name": "s", "experiments": {"variance": section}, **keys}))


def test_how_a_study_runs_is_no_part_of_any_address():
    plain = variance()
    other = variance(
        cells_per_job=1,
        checkpoints_per_job=3,
        resources={"extract": {"memory_mb": 1, "minutes": 2, "threads": 3, "gpus": 0}},
        device="cpu",
    )
    assert other.report.address == plain.report.address
    assert list(other.cells) == list(plain.cells)
    assert len(other.batches["extract"]) == 2
    assert len(plain.batches["extract"]) == 1


def test_a_batch_that_the_plan_does_not_have_is_one_sentence():
    with pytest.raises(WidthlabError, match="run snakemake again"):
        variance().batch("extract", "cell-and-2-more-0123456789ab")


def test_a_receipt_is_believed_only_while_all_results_are_there(tmp_path):
    plan = variance()
    (batch,) = plan.batches["extract"].values()

    def make(path):
        path.mkdir()
        return Outcome()

    for cell in batch.works:
        publish(tmp_path, cell, make, print)
    path = receipt(tmp_path, batch)
    path.parent.mkdir(parents=True)
    path.touch()
    assert receipt(tmp_path, batch).exists()
    (folder(tmp_path, batch.works[1]) / "manifest.json").unlink()
    assert not receipt(tmp_path, batch).exists()
