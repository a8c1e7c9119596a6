"""One Slurm for all tests of the session."""

import tempfile
from pathlib import Path

import pytest
from cluster import Cluster, hindrance
from filelock import FileLock


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A Slurm of one node that takes jobs."""
    reason = hindrance()
    if reason:
        pytest.skip(reason)
    # Its configuration has one place on a machine, so workers of pytest-xdist take turns.
    with FileLock(Path(tempfile.gettempdir()) / "widthlab-slurm.lock"):
        cluster = Cluster(tmp_path_factory.mktemp("slurm"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
