"""An archiving process killed at any moment leaves the archive whole, and a repeat finishes it.

Processes are forked from a server that has imported everything, so that a kill falls into the
work and not into the imports.
"""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from uuid import uuid4

import pytest
import xarray as xr
from archived import run, small

from widthlab.archive import receipts
from widthlab.archive.repository import Archive
from widthlab.plan import Plan
from widthlab.store import datasets
from widthlab.store.publish import payload

KILLS = int(os.environ.get("WIDTHLAB_KILLS", "5"))
"""How often each test kills; the table in the docs counts these."""


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["widthlab.archive.repository", "widthlab.stages"])
    return context


def elsewhere(plan, place):
    """Archive a plan in another place, and return how long it took, in seconds."""
    study = plan.study.model_copy(update={"archive": str(place / f"archive-{uuid4()}")})
    start = time.monotonic()
    receipts.archive(Plan.of(study), print)
    return time.monotonic() - start


def _archive(results, widths, place, begun):
    """Archive one study after the other, for as long as one lives."""
    plans = [Plan.of(small(results, {"width": width}, correlation=False)) for width in widths]
    elsewhere(plans[0], place)  # what is slow only once
    begun.set()
    while True:
        for plan in plans:
            receipts.archive(plan, print)


def kill(processes, results, widths, place, delay):
    """Let a process archive, and kill it after a delay in seconds."""
    begun = processes.Event()
    process = processes.Process(target=_archive, args=(results, widths, place, begun))
    process.start()
    try:
        assert begun.wait(300)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL


def sweep(plan):
    (work,) = plan.sweeps.values()
    return datasets.open_dataset(payload(plan.results, work)).load()


def assert_whole(archive, known):
    """Every version can be read and is what its addresses say."""
    for version in archive.versions():
        (address,) = version.sweeps.values()
        xr.testing.assert_identical(archive.sweeps(version)["variance"].load(), known[address])
        assert address in archive.results(version)["address"].values


def test_killed_while_the_archive_is_made(results, processes, tmp_path):
    plan = run(small(results, correlation=False))
    longest = 1.2 * max(elsewhere(plan, tmp_path) for _ in range(2))
    (address,) = plan.sweeps
    delays, outcomes = random.Random(0), Counter()
    for number in range(KILLS):
        place = results / f"archive-{number}"
        if (results / "archive").exists():
            (results / "archive").rename(place)
        kill(processes, results, [[4, 8]], tmp_path, delays.uniform(0, longest))
        found = [path.name for path in results.glob("archive*") if path != place]
        outcomes[", ".join(name for name in found if not name.startswith("archive-"))] += 1
        if (results / "archive").exists():
            outcomes[f"{len(Archive.open(plan.study).versions())} versions"] += 1
            assert_whole(Archive.open(plan.study), {address: sweep(plan)})
        version, _ = receipts.archive(plan, print)
        archive = Archive.open(plan.study)
        assert archive.versions() == [version]
        assert_whole(archive, {address: sweep(plan)})
        receipts.receipt(plan).unlink()
    print(outcomes)


def test_killed_while_versions_are_added(results, processes, tmp_path):
    widths = [[4], [4, 8]]
    plans = [run(small(results, {"width": width}, correlation=False)) for width in widths]
    known = {address: sweep(plan) for plan in plans for address in plan.sweeps}
    longest = 2.5 * max(elsewhere(plan, tmp_path) for plan in plans)
    archive = Archive.create(plans[0].study)
    delays = random.Random(1)
    before, outcomes = [], Counter()
    for _ in range(KILLS):
        kill(processes, results, widths, tmp_path, delays.uniform(0, longest))
        after = Archive.open(plans[0].study).versions()
        outcomes[f"{len(after) - len(before)} new versions"] += 1
        assert after[len(after) - len(before) :] == before
        assert_whole(archive, known)
        version, _ = receipts.archive(plans[0], print)
        assert list(version.sweeps.values()) == list(plans[0].sweeps)
        before = archive.versions()
        assert before[0] == version
    print(outcomes)
    assert len(before) > 1
