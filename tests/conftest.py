"""One finished tiny study, shared by all tests of the workflow that leave it as it is."""

import pytest
from laboratory import Laboratory


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
