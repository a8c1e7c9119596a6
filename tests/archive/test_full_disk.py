"""A full or read-only disk is one clear sentence, and the archive stays as it was."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from small_study import changed_sweep, small

from widthlab import WidthlabError
from widthlab.archive import receipts
from widthlab.archive.repository import Archive
from widthlab.plan import Plan


def mount(*words):
    return subprocess.run(["mount", *words], capture_output=True, text=True)


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("mounting a small disk needs root")
    done = mount("-t", "tmpfs", "-o", "size=700k", "tmpfs", str(place))
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_and_a_read_only_disk_change_nothing_in_the_archive(results, disk):
    plan = Plan.of(small(results, archive=str(disk / "archive")))
    first, _ = receipts.archive(plan, print)
    noise = np.random.default_rng(0).normal(size=200_000)
    changed_sweep(plan, "variance", lambda sweep: sweep.assign(noise=("sample", noise)))
    with pytest.raises(WidthlabError, match=r"cannot write the archive .*: No space left"):
        receipts.archive(plan, print)
    archive = Archive.open(plan.study)
    assert archive.versions() == [first]
    assert np.isfinite(archive.sweeps(first)["variance"]["alive"]).all()

    mount("-o", "remount,size=20m", str(disk))
    second, new = receipts.archive(plan, print)
    assert new
    np.testing.assert_array_equal(archive.sweeps(second)["variance"]["noise"], noise)

    mount("-o", "remount,ro", str(disk))
    changed_sweep(plan, "variance", lambda sweep: sweep + 1)
    for write in (lambda: receipts.archive(plan, print), lambda: archive.tag("v1", first)):
        with pytest.raises(WidthlabError, match=r"cannot write the archive .*: Read-only"):
            write()
    assert Archive.open(plan.study).versions() == [second, first]
