"""Results are read from Python by the study's file, without typing addresses."""

import numpy as np
import pytest

import widthlab
from widthlab.claims import from_json

pytestmark = pytest.mark.workflow


@pytest.fixture
def sweeps(finished, monkeypatch):
    # The finished study's results come from its own copy of the code, which equals this one.
    monkeypatch.chdir(finished.folder)
    return widthlab.open("config.yaml")


def test_finished_sweeps_are_there_by_experiment(sweeps):
    assert sorted(sweeps) == ["ntk_drift", "variance"]
    assert len(sweeps) == 2
    assert "variance" in sweeps
    assert "gradient_correlation" not in sweeps
    drift = sweeps["ntk_drift"]["drift"]
    assert drift.dims == ("model", "width", "seed", "step")
    np.testing.assert_allclose(drift.sel(step=0), 0, atol=1e-12)
    assert from_json(sweeps["variance"].attrs["claims"])


def test_variables_say_what_they_are(sweeps):
    for cells in (sweeps.cells("variance"), sweeps.cells("ntk_drift")):
        assert cells
        for statistics in cells.values():
            for variable in statistics.data_vars.values():
                assert variable.attrs["units"]
                assert variable.attrs["description"]


def test_what_is_not_there_is_said_in_words(sweeps, tmp_path, monkeypatch):
    with pytest.raises(widthlab.WidthlabError, match="no experiment 'drift'; it has"):
        sweeps["drift"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(widthlab.WidthlabError, match="cannot read the study"):
        widthlab.open("config.yaml")
