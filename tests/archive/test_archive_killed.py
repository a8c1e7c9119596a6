"""An archiving process killed at any moment leaves the archive whole, and a repeat finishes it.

Processes are forked from a server that has imported everything, so that a kill falls into the
work and not into the imports.
"""

import multiprocessing
import os
import random
import signal
import time

import pytest
import xarray as xr
from archived import run, small

from widthlab.archive import receipts
from widthlab.archive.repository import Archive
from widthlab.plan import Plan
from widthlab.store import datasets
from widthlab.store.publish import payload

KILLS = int(os.environ.get("WIDTHLAB_KILLS", "5"))
"""How often each test kills; the table in the docs counts a longer run of the same."""


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["widthlab.archive.repository", "widthlab.stages"])
    return context


def _archive(results, widths, begun):
    """Archive one study after the other, for as long as one lives."""
    plans = [Plan.of(small(results, {"width": width}, correlation=False)) for width in widths]
    begun.set()
    while True:
        for plan in plans:
            receipts.archive(plan, print)


def kill(processes, results, widths, delay):
    """Let a process archive, and kill it after a delay in seconds."""
    begun = processes.Event()
    process = processes.Process(target=_archive, args=(results, widths, begun))
    process.start()
    try:
        assert begun.wait(300)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL


def duration(plan, tmp_path):
    """Return how long archiving takes here and now, in seconds."""
    elsewhere = plan.study.model_copy(update={"archive": str(tmp_path / "elsewhere")})
    start = time.monotonic()
    Archive.create(elsewhere).commit(Plan.of(elsewhere))
    return time.monotonic() - start


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
    longest = 1.2 * duration(plan, tmp_path)
    (address,) = plan.sweeps
    delays = random.Random(0)
    for number in range(KILLS):
        place = results / f"archive-{number}"
        if (results / "archive").exists():
            (results / "archive").rename(place)
        kill(processes, results, [[4, 8]], delays.uniform(0, longest))
        if (results / "archive").exists():
            assert_whole(Archive.open(plan.study), {address: sweep(plan)})
        version, _ = receipts.archive(plan, print)
        archive = Archive.open(plan.study)
        assert archive.versions() == [version]
        assert_whole(archive, {address: sweep(plan)})
        assert receipts.receipt(plan).exists()


def test_killed_while_versions_are_added(results, processes, tmp_path):
    widths = [[4], [4, 8]]
    plans = [run(small(results, {"width": width}, correlation=False)) for width in widths]
    known = {address: sweep(plan) for plan in plans for address in plan.sweeps}
    longest = 2 * duration(plans[1], tmp_path)
    archive = Archive.create(plans[0].study)
    delays = random.Random(1)
    before = []
    for _ in range(KILLS):
        kill(processes, results, widths, delays.uniform(0, longest))
        after = Archive.open(plans[0].study).versions()
        assert after[len(after) - len(before) :] == before
        assert_whole(archive, known)
        version, _ = receipts.archive(plans[0], print)
        assert list(version.sweeps.values()) == list(plans[0].sweeps)
        before = archive.versions()
        assert before[0] == version
    assert len(before) > 1
