"""Sweeps collect what cells measured, count what is missing, and judge honestly."""

import numpy as np
import pytest
import xarray as xr

from widthlab import experiments
from widthlab.claims import from_json
from widthlab.experiments import ntk_drift, variance
from widthlab.experiments.shared.base import Measured
from widthlab.theory.finite_width import sample_mlp_ratio

RELU = {"relu": {"name": "mlp", "activation": "relu"}}


def claims_of(dataset):
    return {claim.id: claim for claim in from_json(dataset.attrs["claims"])}


def relu_section(**changes):
    options = {"models": RELU, "width": [32, 64, 128, 256], "depth": 6, "draws": 300, "inputs": 2}
    return variance.Section(**{**options, **changes})


def relu_cells(section, power=1.0, factor=1.0):
    """Cells whose signals are drawn from the exact ReLU law, distorted as asked."""
    cells = []
    for request in variance.cells(section, 0):
        widths = [request.cell.width] * section.depth
        generator = np.random.default_rng(request.cell.width)
        q = sample_mlp_ratio("relu", widths, section.draws, generator)
        q = factor ** np.arange(q.shape[1]) * q**power
        both = np.stack([q, q], axis=2)
        data = xr.Dataset({"signal_variance": (("draw", "layer", "input"), both)})
        cells.append(Measured(request.label, request.cell, data))
    return cells


def test_the_exact_law_holds_for_draws_from_the_exact_law():
    section = relu_section()
    dataset = variance.sweep(section, relu_cells(section))
    verdicts = {name: claim.verdict for name, claim in claims_of(dataset).items()}
    assert verdicts == {
        "variance.relu.mean": "holds",
        "variance.relu.square": "holds",
        "variance.relu.log_mean": "holds",
        "variance.relu.log_variance": "holds",
        "variance.relu.exponent": "holds",
    }


def test_a_shifted_mean_and_a_wider_spread_fail():
    section = relu_section()
    shifted = claims_of(variance.sweep(section, relu_cells(section, factor=1.1)))
    assert shifted["variance.relu.mean"].verdict == "fails"
    assert shifted["variance.relu.log_mean"].verdict == "fails"
    wide = claims_of(variance.sweep(section, relu_cells(section, power=1.5)))
    assert wide["variance.relu.log_variance"].verdict == "fails"


def test_missing_cells_are_holes_and_not_zeros():
    section = relu_section()
    cells = relu_cells(section)
    dataset = variance.sweep(section, cells[1:])
    assert np.isnan(dataset["mean"].sel(width=32)).all()
    assert dataset["draws"].sel(model="relu").to_numpy().tolist() == [0, 300, 300, 300]
    assert len(claims_of(dataset)) == 5
    assert variance.sweep(section, []).attrs["claims"].strip() == "[]"


def test_dead_signals_are_counted_and_leave_logarithms_only():
    section = relu_section(width=[64], draws=20)
    (cell,) = relu_cells(section)
    cell.statistics["signal_variance"][3, 2:] = 0.0
    dataset = variance.sweep(section, [cell]).sel(model="relu", width=64)
    np.testing.assert_allclose(dataset["alive"].sel(layer=6), 19 / 20)
    assert np.isfinite(dataset["log_mean"]).all()
    (figure,) = [f for f in variance.figures(variance.sweep(section, [cell])) if "layers" in f.id]
    assert "38 of 40 signals are alive" in figure.caption


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
