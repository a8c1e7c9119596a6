"""What tests of several parts share: a finished study, quick processes, and a small disk."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing import forkserver

import pytest
from laboratory import Laboratory

PRELOADED = [
    "torch._dynamo",
    "widthlab.cli",
    "widthlab.data.gaussian",
    "widthlab.data.prepared",
    "widthlab.experiments.ntk_drift",
    "widthlab.stages",
    "widthlab.statistics.ntk",
    "widthlab.store.datasets",
    "widthlab.training",
    "scipy.optimize",
    "xarray",
    "zarr",
    "pytest",
    "runs",
    "small",
]
"""What processes under test have imported; the last two are the tests' own helpers."""


def pytest_collection_modifyitems(items):
    """Put slow tests first, so that processes side by side end at about the same time."""
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("slurm", "workflow"))))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The tiny study, run once by the documented command."""
    laboratory = Laboratory.build(tmp_path_factory.mktemp("finished") / "house")
    laboratory.finish()
    return laboratory


@pytest.fixture
def laboratory(finished, tmp_path):
    """A copy of the finished study, to do anything with."""
    return finished.copy(tmp_path / "house")


@pytest.fixture(scope="session")
def processes():
    """A server that forks processes in which torch and the stages are already imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 does not hand its own path on to the server.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


class Disk:
    """A small disk of its own (a tmpfs), which can be filled, grow, and become read-only."""

    def __init__(self, folder):
        self.folder = folder
        self._filling = folder / "filling"

    def _mount(self, options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount command to make a small disk with")
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small tmpfs: {done.stderr.strip()}")

    def mount(self, size):
        self._mount(f"size={size},mode=777")

    def grow(self, size):
        self._mount(f"remount,size={size}")

    def read_only(self, yes=True):
        self._mount(f"remount,{'ro' if yes else 'rw'}")

    def fill(self, left=0):
        """Write a file that leaves this many bytes free, and no more."""
        with self._filling.open("ab", 0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
            file.truncate(file.tell() - left)

    def clear(self):
        """Remove the file that fills the disk."""
        self._filling.unlink(missing_ok=True)

    def unmount(self):
        subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path):
    """A disk of one megabyte; the test skips where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder)
    disk.mount("1m")
    yield disk
    disk.unmount()
