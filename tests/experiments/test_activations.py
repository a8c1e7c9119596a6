"""Architectures are ranked by what their draws show, and compared at equal L/N only."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab.claims import from_json
from widthlab.data import prepare
from widthlab.experiments import activations
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.specs import Gaussian

MODELS = {
    "relu": {"name": "mlp", "activation": "relu"},
    "tanh": {"name": "mlp", "activation": "tanh"},
    "layer": {"name": "mlp", "activation": "relu", "normalisation": "layer"},
}
FLUCTUATION = {"relu": 5.0, "tanh": 0.7, "layer": 1.0}
SHIFT = {"relu": 0.0, "tanh": -0.4, "layer": 0.3}


def section(**changes):
    options = {"models": MODELS, "width": [32, 64], "ratio": [0.1, 0.2], "draws": 1000, "inputs": 2}
    return activations.Section(**{**options, **changes})


def made(section, fluctuation=FLUCTUATION, shift=SHIFT, gradient=1.0, flat=()):
    """Cells with log-normal signals: Var log q = c L/N, E q = 1 + s L/N."""
    cells = []
    for number, request in enumerate(activations.cells(section, 0)):
        cell, label = request.cell, request.label
        generator = np.random.default_rng(number)
        x = (3 if label in flat else cell.depth) / cell.width
        spread = fluctuation[label] * x
        noise = generator.standard_normal((cell.draws, 1)) + np.zeros((1, cell.inputs))
        mean = 1 + shift[label] * x
        data = {
            "first": np.ones(noise.shape),
            "last": mean * np.exp(np.sqrt(spread) * noise - spread / 2),
        }
        if not cell.reference:
            other = generator.standard_normal(noise.shape)
            data["gradient"] = np.exp(0.5 * np.sqrt(gradient * spread) * other)
        variables = {name: (("draw", "input"), values) for name, values in data.items()}
        cells.append(Measured(label, cell, xr.Dataset(variables)))
    return cells


def claims_of(dataset):
    return {claim.id: claim for claim in from_json(dataset.attrs["claims"])}


def close(own, name, truth):
    """Within five standard errors: the simultaneous intervals of three models are 2.4 wide."""
    half = (own[f"{name}_high"] - own[f"{name}_low"]) / 2
    return abs(own[name] - truth) < 5 / 2.4 * half


def test_the_ranking_is_that_of_the_draws():
    grid = section()
    dataset = activations.sweep(grid, made(grid))
    for label, truth in FLUCTUATION.items():
        own = dataset.sel(model=label)
        assert close(own, "rank_fluctuation", truth)
        assert close(own, "drift_fluctuation", truth)
        # The reference's own shift is taken out.
        assert close(own, "rank_mean_shift", SHIFT[label])
    assert dataset["rank_mean_shift_high"].sel(model="tanh") < 0


def test_expectations_hold_where_the_draws_say_so_and_fail_where_not():
    grid = section(draws=4000)
    claims = claims_of(activations.sweep(grid, made(grid, flat=["layer"])))
    verdicts = {name.removeprefix("activations."): claim.verdict for name, claim in claims.items()}
    assert verdicts == {
        "tanh.fluctuation_below_relu": "holds",
        "tanh.gradient_below_relu": "holds",
        "layer.drift_fluctuation_below_relu": "holds",
        "layer.drift_gradient_below_relu": "holds",
        "layer.drift_typical_shift_below_relu": "holds",
        "layer.drift_mean_shift_below_relu": "undecided",
    }
    assert "no shift at any width" in claims["activations.layer.drift_mean_shift_below_relu"].reason
    swapped = {"relu": 0.7, "tanh": 5.0, "layer": 3.0}
    claims = claims_of(activations.sweep(grid, made(grid, swapped)))
    assert claims["activations.tanh.fluctuation_below_relu"].verdict == "fails"
    assert claims["activations.layer.drift_fluctuation_below_relu"].verdict == "fails"


def test_equal_architectures_are_undecided():
    grid = section()
    equal = dict.fromkeys(MODELS, 2.0)
    claims = claims_of(activations.sweep(grid, made(grid, equal, dict.fromkeys(MODELS, 0.0))))
    assert {claim.verdict for claim in claims.values()} == {"undecided"}


def test_missing_cells_are_holes_and_only_common_points_are_compared():
    grid = section()
    cells = [
        one
        for one in made(grid)
        if not (one.label == "tanh" and one.cell.width == 32)
        and not (one.label == "relu" and one.cell.reference)
    ]
    dataset = activations.sweep(grid, cells)
    assert np.isnan(dataset["fluctuation"].sel(model="tanh", width=32)).all()
    assert np.isnan(dataset["mean_shift"].sel(model="relu")).all()
    assert np.isnan(dataset["rank_mean_shift"].sel(model="relu"))
    claims = claims_of(dataset)
    assert "over 2 grid points" in claims["activations.tanh.fluctuation_below_relu"].reason
    assert claims["activations.tanh.fluctuation_below_relu"].verdict == "holds"
    assert claims["activations.layer.drift_mean_shift_below_relu"].verdict == "undecided"
    assert len(activations.figures(dataset)) == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_sweep_of_no_or_one_cell_has_figures_and_no_claims(count):
    grid = section()
    dataset = activations.sweep(grid, made(grid)[:count])
    assert claims_of(dataset) == {}
    assert len(activations.figures(dataset)) == 3


def test_dead_signals_are_counted():
    grid = section()
    cells = made(grid)
    cells[0].statistics["last"][:10, 1] = 0.0
    first = cells[0]
    dataset = activations.sweep(grid, cells)
    own = dataset.sel(model=first.label, width=first.cell.width).isel(ratio=0)
    assert float(own["alive"]) == pytest.approx(0.99)
    assert np.isfinite(own["fluctuation"])
    assert "11,990 of 12,000 draws are alive" in activations.figures(dataset)[0].caption


def test_networks_that_must_be_built_stay_small():
    batch = {"batch": {"name": "mlp", "normalisation": "batch"}}
    grid = section(models={**MODELS, **batch}, width=[32, 64, 512], dense_width=64)
    own = [one.cell for one in activations.cells(grid, 0) if one.label == "batch"]
    assert {cell.width for cell in own} == {32, 64, 256}
    assert {cell.engine for cell in own} == {"dense"}
    assert {cell.draws for cell in own if not cell.reference} == {400}
    wide = [one.cell for one in activations.cells(grid, 0) if one.label == "relu"]
    assert {cell.width for cell in wide if cell.reference} == {16 * 512}
    nothing = section(models=batch, width=[512])
    assert activations.cells(nothing, 0) == []
    assert len(activations.figures(activations.sweep(nothing, []))) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ratio": [0.01, 0.2]}, "0.01 makes 0 layers at width 32, but two are needed"),
        ({"ratio": [0.1, 0.105]}, "the same depth at width 32"),
        ({"ratio": [0.1, 0.1]}, "a value twice"),
    ],
)
def test_depths_that_cannot_be_told_apart_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        section(**changes)


@pytest.mark.parametrize("engine", ["weightfree", "dense"])
def test_real_networks_go_through_from_end_to_end(engine, tmp_path):
    models = {**MODELS, "batch": {"name": "mlp", "normalisation": "batch"}}
    data = {"name": "gaussian", "dimension": 8}
    grid = section(
        models=models, width=[16], ratio=[0.15, 0.3], draws=200, engine=engine, data=data
    )
    prepared = prepare(Gaussian(dimension=8), tmp_path)
    cells = []
    for number, request in enumerate(activations.cells(grid, 0)):
        inputs = Inputs(prepared, (), torch.device("cpu"), np.random.SeedSequence(number))
        cells.append(
            Measured(request.label, request.cell, activations.extract(request.cell, inputs))
        )
    dataset = activations.sweep(grid, cells)
    assert np.isfinite(dataset["rank_fluctuation"]).all()
    assert np.isfinite(dataset["drift_mean_shift"]).all()
    # ReLU: 5/N a layer, with the next order of 25 L/N² and five errors of a heavy-tailed variance.
    relu = dataset.sel(model="relu", width=16).isel(ratio=0)
    assert float(relu["fluctuation"]) == pytest.approx(10 / 16, rel=0.6)
    assert {claim.verdict for claim in claims_of(dataset).values()} >= {"holds"}
    assert all(figure.svg for figure in activations.figures(dataset))
