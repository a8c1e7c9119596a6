"""The results of a small study whose every stage has run."""

import shutil

import pytest
from small_study import run, small


@pytest.fixture(scope="session")
def _finished(tmp_path_factory):
    results = tmp_path_factory.mktemp("finished") / "results"
    run(small(results))
    return results


@pytest.fixture
def results(_finished, tmp_path):
    """The results of the small study, to do anything with."""
    return shutil.copytree(_finished, tmp_path / "results")
