"""Depth scales and depths where width is felt are judged by draws, made to obey the law or not."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab.claims import from_json
from widthlab.data import prepare
from widthlab.experiments import depth_scale
from widthlab.experiments.depth_scale import decays
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.specs import Gaussian

MODELS = {
    "ordered": {"name": "mlp", "activation": "tanh", "weight_variance": 1.0, "bias_variance": 0.1},
    "chaotic": {"name": "mlp", "activation": "tanh", "weight_variance": 3.0, "bias_variance": 0.1},
    "relu": {"name": "mlp", "activation": "relu"},
    "tanh": {"name": "mlp", "activation": "tanh"},
}
START = np.array([0.2, 0.5, 0.8])


def section(*labels, **changes):
    models = {label: MODELS[label] for label in labels or MODELS}
    options = {"models": models, "width": [32, 64, 128, 256, 512], "depth": 50, "draws": 200}
    return depth_scale.Section(**{**options, "inputs": 3, **changes})


def made(section, slower=1.0, walk=True, felt=lambda n: n, frozen=False, power=1.0):
    """Cells from the recursion with noise of order 1/N.

    Off criticality q has noise that forgets; log(1 − c) walks with a drift of −0.9 l/N (where
    c* = 1), or c has noise that forgets. `slower` stretches the layers of the recursion.
    """
    cells = []
    for number, request in enumerate(depth_scale.cells(section, 0)):
        cell, architecture = request.cell, request.cell.architecture
        phase = decays.phase_of(architecture)
        generator = np.random.default_rng(number)
        layers = np.arange(cell.depth + 1)
        law = decays.pair_law(architecture, START, cell.depth)
        n = felt(cell.width)

        def stretched(curve, layers=layers):
            return np.interp(layers / slower, layers, curve)

        q = stretched(law.first[:, 0])
        c = np.stack([stretched(one) for one in law.correlation.T], axis=1)
        if frozen:
            c = np.broadcast_to(START, c.shape)
        steps = generator.standard_normal((cell.draws, cell.depth + 1, 1))
        steps[:, 0] = 0
        walks = np.cumsum(steps, axis=1) if walk else steps
        drift = layers[:, None] / n if walk else 0.0
        if phase.name == "chaotic":
            c = c + 0.3 * (walks if walk else steps) / np.sqrt(n)
        else:
            c = 1 - (1 - c) * np.exp(np.sqrt(0.1 / n) * walks - 0.9 * drift)
        settled = phase.name != "critical" and power == 1.0
        noise = steps if settled else np.cumsum(steps, axis=1)
        signals = q[:, None] * np.exp(np.sqrt(0.1 / cell.width) * noise) ** power
        signals = signals + np.zeros(cell.inputs)
        data = xr.Dataset(
            {
                "signal_variance": (("draw", "layer", "input"), signals),
                "correlation": (("draw", "layer", "pair"), c),
                "input_correlation": ("pair", START),
            },
            attrs={"engine": "weightfree"},
        )
        cells.append(Measured(request.label, cell, data))
    return cells


def verdicts(section, cells):
    dataset = depth_scale.sweep(section, cells)
    claims = from_json(dataset.attrs["claims"])
    return {claim.id.removeprefix("depth_scale."): claim.verdict for claim in claims}, claims


def test_networks_that_obey_the_recursion_hold():
    grid = section("ordered", "relu", "tanh")
    found, _ = verdicts(grid, made(grid))
    assert found == {
        "ordered.mean": "holds",
        "ordered.xi_q": "holds",
        "ordered.xi_c": "holds",
        "ordered.signal_bounded": "holds",
        "ordered.felt": "holds",
        "relu.mean": "holds",
        "relu.exponent": "holds",
        "relu.no_scale": "holds",
        "relu.felt": "holds",
        "tanh.mean": "holds",
        "tanh.exponent": "holds",
        "tanh.no_scale": "holds",
        "tanh.felt": "holds",
    }
    grid = section("chaotic", depth=60)
    found, _ = verdicts(grid, made(grid, walk=False))
    assert set(found.values()) == {"holds"}
    assert set(found) == {
        f"chaotic.{name}"
        for name in ("mean", "xi_q", "xi_c", "signal_bounded", "correlation_bounded")
    }


def test_a_scale_twice_as_long_fails():
    grid = section("ordered")
    found, _ = verdicts(grid, made(grid, slower=2.0))
    assert found["ordered.xi_c"] == "fails"
    assert found["ordered.xi_q"] == "fails"
    assert found["ordered.mean"] == "fails"
    grid = section("chaotic")
    assert verdicts(grid, made(grid, slower=2.0, walk=False))[0]["chaotic.xi_c"] == "fails"


def test_correlations_that_stay_fail():
    grid = section("relu")
    found, _ = verdicts(grid, made(grid, frozen=True))
    assert found["relu.mean"] == "fails"
    assert found["relu.exponent"] == "fails"


def test_an_exponential_at_criticality_is_no_power_law():
    grid = section("relu")
    cells = made(grid, walk=False)
    for one in cells:
        layers = np.arange(grid.depth + 1)[:, None]
        rest = (1 - START) * np.exp(-layers / 8.0)
        one.statistics["correlation"][:] = 1 - rest * np.exp(
            0.02 * np.random.default_rng(5).standard_normal((grid.draws, 1, 1))
        )
    assert verdicts(grid, cells)[0]["relu.no_scale"] == "fails"


@pytest.mark.parametrize("felt", [lambda n: 128.0, lambda n: 11.0 * np.sqrt(n)])
def test_a_depth_that_does_not_grow_in_proportion_to_width_fails(felt):
    grid = section("ordered")
    found, claims = verdicts(grid, made(grid, felt=felt))
    assert found["ordered.felt"] == "fails", claims[-1].reason


def test_fluctuations_that_add_up_are_not_bounded():
    grid = section("chaotic", depth=60)
    found, _ = verdicts(grid, made(grid, walk=True, power=1.5))
    assert found["chaotic.signal_bounded"] == "fails"
    assert found["chaotic.correlation_bounded"] == "fails"


def test_depths_too_shallow_to_settle_or_to_feel_are_undecided():
    grid = section("chaotic", depth=16)
    found, claims = verdicts(grid, made(grid, walk=False))
    assert found["chaotic.correlation_bounded"] == "undecided"
    assert "less than 3 depth scales" in next(c.reason for c in claims if "correlation_b" in c.id)
    grid = section("ordered", depth=8, width=[512, 1024])
    found, claims = verdicts(grid, made(grid))
    assert found["ordered.felt"] == "undecided"
    assert "0 of 2 widths" in claims[-1].reason


def test_missing_cells_are_holes():
    grid = section("relu", "ordered")
    cells = [one for one in made(grid) if one.cell.width != 64 and one.label == "relu"]
    dataset = depth_scale.sweep(grid, cells)
    assert np.isnan(dataset["correlation"].sel(model="relu", width=64)).all()
    assert np.isnan(dataset["signal"].sel(model="ordered")).all()
    assert dataset["draws"].sel(model="relu").to_numpy().tolist() == [200, 0, 200, 200, 200]
    assert len(depth_scale.figures(dataset)) == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_sweep_of_no_or_one_cell_has_figures(count):
    grid = section()
    dataset = depth_scale.sweep(grid, made(grid, walk=False)[:count])
    assert len(depth_scale.figures(dataset)) == 5
    if count == 0:
        assert from_json(dataset.attrs["claims"]) == []


def test_what_is_not_resolved_or_dead_is_left_out():
    grid = section("ordered", width=[64])
    cells = made(grid)
    cells[0].statistics["correlation"][5, 30:] = 1.0
    dataset = depth_scale.sweep(grid, cells).sel(model="ordered", width=64)
    assert np.isfinite(dataset["log_decorrelation"][:30]).all()
    assert np.isnan(dataset["log_decorrelation"][30:]).all()
    cells = made(grid)
    cells[0].statistics["correlation"][5, 30:] = np.nan
    cells[0].statistics["signal_variance"][5, 30:] = 0.0
    dataset = depth_scale.sweep(grid, cells)
    own = dataset.sel(model="ordered", width=64)
    assert np.isfinite(own["log_decorrelation"]).all()
    assert float(own["alive"]) == pytest.approx(199 / 200)
    assert "199 of 200 draws are alive" in depth_scale.figures(dataset)[0].caption


def test_an_interval_without_an_end_is_not_drawn():
    grid = section("ordered")
    dataset = depth_scale.sweep(grid, made(grid))
    dataset["correlation_scale_high"][:] = np.inf
    figure = depth_scale.figures(dataset)[-1]
    assert figure.table["correlation_scale"].isna().all()
    assert figure.table["felt"].notna().any()


def test_one_input_or_too_few_layers_are_refused():
    with pytest.raises(ValueError, match="at least two inputs"):
        section(inputs=1)
    with pytest.raises(ValueError, match="at least 8"):
        section(depth=4)


@pytest.mark.parametrize("engine", ["weightfree", "dense"])
def test_real_networks_go_through_from_end_to_end(engine, tmp_path):
    models = {
        "ordered": MODELS["ordered"],
        "relu": MODELS["relu"],
        "post": {"name": "residual_mlp", "position": "post", "depth_exponent": 0.5},
    }
    data = {"name": "gaussian", "dimension": 8}
    grid = section(
        models=models, width=[48, 96], depth=12, draws=100, engine=engine, data=data, inputs=3
    )
    prepared = prepare(Gaussian(dimension=8), tmp_path)
    cells = []
    for number, request in enumerate(depth_scale.cells(grid, 0)):
        inputs = Inputs(prepared, (), torch.device("cpu"), np.random.SeedSequence(number))
        found = depth_scale.extract(request.cell, inputs)
        cells.append(Measured(request.label, request.cell, found))
    dataset = depth_scale.sweep(grid, cells)
    # An input layer keeps the inputs' own correlations, which the recursion starts from.
    own = dataset.sel(model="ordered")
    np.testing.assert_allclose(own["correlation"][:, 0], own["infinite_correlation"][0], atol=1e-6)
    off = np.abs(own["correlation"] - own["infinite_correlation"])
    assert np.all(off <= 5 * own["correlation_error"] + own["layer"] / own["width"] + 1e-6)
    found = {claim.id: claim.verdict for claim in from_json(dataset.attrs["claims"])}
    assert found["depth_scale.ordered.mean"] == "holds"
    assert "depth_scale.post.mean" not in found
    assert len(depth_scale.figures(dataset)) == 4
