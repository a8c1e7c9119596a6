"""One undisturbed small study, with which every test here compares."""

import pytest
from small import Small


@pytest.fixture(scope="session")
def undisturbed(processes, tmp_path_factory):
    """The small study, made without a fault."""
    small = Small(processes, tmp_path_factory.mktemp("undisturbed"))
    for work in small.plan.all_work():
        done = small.run(work)
        assert done.code == 0, done.terminal
    return small


@pytest.fixture
def small(undisturbed, tmp_path):
    """A copy of the undisturbed study, to remove from and to damage."""
    return undisturbed.copy(tmp_path / "study")
