"""Sweeps collect what cells measured, count what is missing, and judge honestly."""

import numpy as np
import pytest
import xarray as xr

from widthlab import experiments
from widthlab.claims import from_json
from widthlab.experiments import ntk_drift
from widthlab.experiments.shared.base import Measured

RELU = {"relu": {"name": "mlp", "activation": "relu"}}


def claims_of(dataset):
    return {claim.id: claim for claim in from_json(dataset.attrs["claims"])}


def drift_section(**changes):
    models = {"ntk": {"name": "residual_mlp", "activation": "tanh", "parameterisation": "ntk"}}
    options = {"models": models, "width": [32, 64, 128], "seeds": 4, "probe": 4}
    return ntk_drift.Section(**{**options, **changes})


def drift_cells(section, exponent, lost=()):
    generator = np.random.default_rng(0)
    steps = [0, 1, 4, 14, 53, 200]
    cells = []
    for request in ntk_drift.cells(section, 0):
        cell = request.cell
        size = 10 * cell.width**exponent * np.exp(0.05 * generator.standard_normal())
        drift = size * np.linspace(0, 1, len(steps))
        there = 2 if (cell.width, cell.seed) in lost else len(steps)
        names = ("drift", "alignment", *ntk_drift.LEARNING)
        data = xr.Dataset(
            {
                **dict.fromkeys(names, ("snapshot", drift[:there])),
                "eigenvalue": (("snapshot", "index"), np.ones((there, 4))),
                "ntk": (("snapshot", "row", "column"), np.ones((there, 4, 4))),
            },
            coords={"step": ("snapshot", steps[:there])},
            attrs={"status": "finished" if there == len(steps) else "diverged"},
        )
        cells.append(Measured(request.label, cell, data))
    return cells


@pytest.mark.parametrize(("exponent", "verdict"), [(-1.0, "holds"), (-0.5, "fails")])
def test_the_drift_exponent_is_what_the_data_say(exponent, verdict):
    section = drift_section()
    dataset = ntk_drift.sweep(section, drift_cells(section, exponent))
    claim = claims_of(dataset)["ntk_drift.ntk.exponent"]
    assert claim.verdict == verdict
    assert claim.measured == pytest.approx(exponent, abs=0.1)


@pytest.mark.parametrize(
    ("widths", "verdict"), [([32, 64, 128], "undecided"), ([512, 1024, 2048], "holds")]
)
def test_mup_is_judged_only_far_above_its_base_width(widths, verdict):
    models = {"mup": {"name": "mlp", "activation": "tanh", "parameterisation": "mup"}}
    section = drift_section(models=models, width=widths)
    claim = claims_of(ntk_drift.sweep(section, drift_cells(section, 0.0)))["ntk_drift.mup.exponent"]
    assert claim.verdict == verdict
    assert claim.measured == pytest.approx(0, abs=0.1)


def test_a_diverged_run_is_counted_and_enters_no_fit():
    section = drift_section()
    cells = drift_cells(section, -1.0, lost={(64, 1)})
    dataset = ntk_drift.sweep(section, cells)
    assert int(dataset["diverged"].sum()) == 1
    claim = claims_of(dataset)["ntk_drift.ntk.exponent"]
    assert claim.verdict == "holds"
    assert "only 3 of 4 seeds are finite" in claim.reason
    assert "11 of 12 runs are finite" in ntk_drift.figures(dataset)[0].caption


def test_only_theories_that_exist_predict_an_exponent():
    section = drift_section(models={"conv": {"name": "resnet20"}, "bn": batch_normalised()})
    claims = claims_of(ntk_drift.sweep(section, drift_cells(section, -0.7)))
    assert {name: claim.predicted for name, claim in claims.items()} == {
        "ntk_drift.bn.falls": None,
        "ntk_drift.conv.falls": None,
    }
    assert all(claim.verdict == "holds" for claim in claims.values())


def batch_normalised():
    return {"name": "mlp", "normalisation": "batch", "parameterisation": "ntk"}


def test_a_learning_rate_of_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="no model 'nkt'; did you mean 'ntk'"):
        drift_section(learning_rates={"nkt": 0.1})


def test_a_models_own_learning_rate_reaches_its_checkpoints_only():
    models = {"ntk": drift_section().models["ntk"], "mup": {"name": "mlp"}}
    section = drift_section(models=models, learning_rates={"mup": 0.5})
    rates = {
        (request.cell.architecture.name, request.checkpoints[0].training.learning_rate)
        for request in ntk_drift.cells(section, 0)
    }
    assert rates == {("residual_mlp", 0.1), ("mlp", 0.5)}


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_offers_its_whole_interface(name):
    module = experiments.load(name)
    for offer in ("TITLE", "QUESTION", "METHOD", "Section", "Cell"):
        assert getattr(module, offer)
    for offer in ("cells", "extract", "sweep", "figures"):
        assert getattr(module, offer).__module__ == module.__name__
        assert getattr(module, offer).__doc__
