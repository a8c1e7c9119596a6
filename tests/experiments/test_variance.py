"""The variance experiment judges by the data, counts what is missing, and draws what is there."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab.claims import from_json
from widthlab.data.gaussian import prepare_gaussian
from widthlab.experiments import variance
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.experiments.shared.laws import exact_signals, signal_corrections
from widthlab.experiments.variance.width_claims import _common, scaling_layer
from widthlab.experiments.variance.windows import Departure, window
from widthlab.specs import MLP, Gaussian, ResidualMLP
from widthlab.theory.finite_width import sample_mlp_ratio

RELU = {"relu": {"name": "mlp", "activation": "relu"}}
SEVERAL = {
    "relu": {"name": "mlp", "activation": "relu"},
    "tanh": {"name": "mlp", "activation": "tanh"},
    "layer": {"name": "mlp", "activation": "tanh", "normalisation": "layer"},
    "two": {"name": "residual_mlp", "activation": "relu", "residual_scale": 0.5},
    "one": {"name": "residual_mlp", "activation": "tanh", "branch": "one_layer"},
    "post": {"name": "residual_mlp", "activation": "relu", "position": "post"},
    "batch": {"name": "mlp", "normalisation": "batch"},
}


def claims_of(dataset):
    return {
        claim.id.removeprefix("variance."): claim for claim in from_json(dataset.attrs["claims"])
    }


def section_of(**changes):
    options = {"models": RELU, "width": [32, 64, 128, 256], "depth": 6, "draws": 300, "inputs": 2}
    return variance.Section(**{**options, **changes})


def cells_of(section, draw):
    """Cells whose signal variances (draws, layers) are drawn by a function of their requests."""
    cells = []
    for request in variance.cells(section, 0):
        q = draw(request.cell)
        data = xr.Dataset({"signal_variance": (("draw", "layer", "input"), np.stack([q, q], 2))})
        cells.append(Measured(request.label, request.cell, data))
    return cells


def relu_cells(section, power=1.0, factor=1.0):
    """Signals drawn from the exact ReLU law, distorted as asked."""

    def draw(cell):
        widths = [cell.width] * cell.depth
        generator = np.random.default_rng(cell.width)
        q = sample_mlp_ratio("relu", widths, cell.draws, generator)
        return factor ** np.arange(q.shape[1]) * q**power

    return cells_of(section, draw)


def chain_cells(section):
    """Signals drawn from the exact law of whatever chain the network is."""
    return cells_of(
        section,
        lambda cell: exact_signals(cell.architecture, cell.width, cell.depth, cell.draws, seed=5),
    )


# ── claims ──────────────────────────────────────────────────────────────────────────────────


def test_everything_holds_for_draws_from_the_exact_relu_law():
    section = section_of(width=[64, 256, 1024], depth=16, draws=1000)
    dataset = variance.sweep(section, relu_cells(section))
    found = claims_of(dataset)
    assert {name: claim.verdict for name, claim in found.items()} == {
        "relu.mean": "holds",
        "relu.square": "holds",
        "relu.relative_variance": "holds",
        "relu.log_mean": "holds",
        "relu.log_variance": "holds",
        "relu.distribution": "holds",
        "relu.exponent": "holds",
        "relu.collapse": "holds",
        # sixteen layers hold a window of ten at one width at most
        "relu.window_variance": "undecided",
    }
    assert "fewer than two widths" in found["relu.window_variance"].reason


def test_everything_holds_for_draws_of_the_residual_chain():
    models = {"two": {"name": "residual_mlp", "activation": "relu", "residual_scale": 0.8}}
    section = section_of(models=models, depth=16, width=[64, 256, 1024], draws=1000)
    found = claims_of(variance.sweep(section, chain_cells(section)))
    for name in ("mean", "square", "relative_variance", "distribution", "exponent", "collapse"):
        assert found[f"two.{name}"].verdict == "holds", found[f"two.{name}"].reason


def test_a_shifted_mean_and_a_wider_spread_fail():
    section = section_of()
    shifted = claims_of(variance.sweep(section, relu_cells(section, factor=1.1)))
    for name in ("mean", "log_mean", "distribution"):
        assert shifted[f"relu.{name}"].verdict == "fails"
    wide = claims_of(variance.sweep(section, relu_cells(section, power=1.5)))
    for name in ("log_variance", "distribution", "relative_variance"):
        assert wide[f"relu.{name}"].verdict == "fails"


def test_fluctuations_that_do_not_depend_on_width_do_not_collapse():
    section = section_of(width=[64, 256, 1024], depth=16)

    def draw(cell):
        return sample_mlp_ratio("relu", [64] * 16, cell.draws, np.random.default_rng(cell.width))

    found = claims_of(variance.sweep(section, cells_of(section, draw)))
    assert found["relu.collapse"].verdict == "fails"
    assert "grows as l^" in found["relu.collapse"].reason
    assert found["relu.exponent"].verdict == "fails"
    assert found["relu.distribution"].verdict == "fails"


@pytest.mark.parametrize(("times", "verdict"), [(1.0, "holds"), (-1.0, "fails")])
def test_the_shift_of_the_mean_is_that_of_the_theory(times, verdict):
    """Log-normal signals of the mean and variance of order 1/N, or of the opposite shift."""
    section = section_of(models={"tanh": SEVERAL["tanh"]}, width=[128, 256], depth=12, draws=4000)

    def draw(cell):
        theory = signal_corrections(cell.architecture, cell.depth)
        mean = theory.block_law + times * theory.mean / cell.width
        spread = np.log1p(theory.spread(cell.width) / mean**2)
        noise = np.random.default_rng(cell.width).standard_normal((cell.draws, 1))
        return mean * np.exp(np.sqrt(spread) * noise - spread / 2)

    found = claims_of(variance.sweep(section, cells_of(section, draw)))
    assert found["tanh.shift"].verdict == verdict


def test_a_model_can_have_more_draws():
    section = section_of(models={k: SEVERAL[k] for k in ("relu", "one")}, more_draws={"one": 900})
    draws = {request.label: request.cell.draws for request in variance.cells(section, 0)}
    assert draws == {"relu": 300, "one": 900}
    with pytest.raises(ValueError, match="no model 'reul'; did you mean 'relu'"):
        section_of(more_draws={"reul": 900})
    with pytest.raises(ValueError, match="fewer than draws"):
        section_of(more_draws={"relu": 200})


def test_depths_are_compared_at_equal_depth_over_width():
    assert _common([16, 64, 96], 12) == [
        ((16, 1), (64, 4)),
        ((16, 3), (64, 12)),
        ((64, 4), (96, 6)),
        ((64, 8), (96, 12)),
    ]
    assert _common([16, 256], 12) == []
    assert _common([16], 12) == []


def test_scaling_is_judged_where_three_widths_are_in_its_domain():
    assert scaling_layer(MLP(), [64, 256, 1024, 4096, 16384], 500) == 256
    assert scaling_layer(MLP(), [64, 256, 1024], 12) == 12
    assert scaling_layer(MLP(), [64, 256], 100) == 16
    assert scaling_layer(MLP(), [2], 5) == 1
    assert scaling_layer(ResidualMLP(), [2, 4], 5) == 1
    # GELU's variance grows faster than the depth.
    gelu = scaling_layer(MLP(activation="gelu"), [64, 256, 1024, 4096, 16384], 500)
    corrections = signal_corrections(MLP(activation="gelu"), 500)
    assert (corrections.variance / corrections.block_law**2)[gelu] <= 256
    assert gelu < 100


# ── windows ─────────────────────────────────────────────────────────────────────────────────


def test_windows_of_relu_scale_as_exact_laws_say():
    """The variance leaves at a fixed l/N, the sum of logarithms at a fixed l/N²."""
    section = section_of(width=[32, 64, 1024, 2048], depth=60, draws=20)
    dataset = variance.sweep(section, relu_cells(section))
    found = claims_of(dataset)
    assert found["relu.window_variance"].verdict == "holds"
    assert found["relu.window_variance"].measured == pytest.approx(1, abs=0.1)
    assert found["relu.window_typical"].verdict == "holds"
    assert found["relu.window_typical"].measured == pytest.approx(2, abs=0.15)
    ends = dataset["window"].sel(theory="complete", model="relu")
    assert "relu.window_mean" not in found
    assert np.isnan(ends.sel(quantity="mean")).all()
    # (1 + 5/N)^l − 1 against 5l/N
    x = 5 / 2048 * ends.sel(quantity="variance", width=2048)
    assert float(x) == pytest.approx(0.102, abs=0.003)


def test_noise_hides_a_window_and_the_claim_says_so():
    section = section_of(models={"one": SEVERAL["one"]}, width=[32, 64], depth=3, draws=50)
    rng = np.random.default_rng(0)

    def draw(cell):
        law = signal_corrections(cell.architecture, cell.depth).block_law
        return law * rng.chisquare(cell.width, (cell.draws, 4)) / cell.width

    found = claims_of(variance.sweep(section, cells_of(section, draw)))
    assert found["one.window_variance"].verdict == "undecided"
    assert "two standard errors exceed 5% from layer 1 on" in found["one.window_variance"].reason


def test_a_departure_is_passed_between_layers_or_hidden_by_noise():
    curve = np.array([0.0, 0.02, 0.04, 0.08, 0.2])
    found = window(Departure(curve, curve + np.array([[0.01], [-0.01]])))
    assert found.value == pytest.approx(2.25)
    assert (found.low, found.high) == pytest.approx((2, 2.5))
    assert found.known
    noise = np.array([0.0, 0.0, 0.0, 0.03, 0.03])
    hidden = window(Departure(curve, curve + noise * np.array([[1.0], [-1.0]])))
    assert np.isnan(hidden.value)
    assert hidden.note == "two standard errors exceed 5% from layer 3 on"
    never = window(Departure(curve[:3], curve[None, :3]))
    assert never.value == np.inf
    assert never.note == "within 5% at every layer"
    exact = Departure(np.array([0.1, 0.2]), np.array([[0.1, 0.2]]))
    assert window(exact).value == 0


def test_a_small_branch_has_a_window_of_its_own():
    """Of a linear branch the variance is known exactly, so that few draws will do."""
    one = {"name": "residual_mlp", "activation": "linear", "branch": "one_layer"}
    section = section_of(
        models={"one": {**one, "residual_scale": 0.2}}, width=[64, 1024, 4096], depth=60, draws=8
    )
    rng = np.random.default_rng(0)
    cells = cells_of(section, lambda cell: rng.gamma(5, 0.2, (cell.draws, 61)))
    claim = claims_of(variance.sweep(section, cells))["one.small_branch_window_variance"]
    assert claim.verdict == "holds"
    assert "fitted at N = 1024, 4096" in claim.reason
    # far off at no depth: no claim
    section = section_of(models={"one": {**one, "residual_scale": 0.05}}, depth=20)
    cells = cells_of(section, lambda cell: rng.gamma(5, 0.2, (cell.draws, 21)))
    assert "one.small_branch_window_variance" not in claims_of(variance.sweep(section, cells))


# ── holes ───────────────────────────────────────────────────────────────────────────────────


def test_missing_cells_are_holes_and_not_zeros():
    section = section_of()
    dataset = variance.sweep(section, relu_cells(section)[1:])
    hole = dataset.sel(width=32, model="relu")
    for name in ("mean", "shift", "quantile", "departure", "window"):
        assert np.isnan(hole[name]).all(), name
    assert np.isfinite(hole["corrected_log_mean"]).all()
    assert dataset["draws"].sel(model="relu").to_numpy().tolist() == [0, 300, 300, 300]
    assert len(claims_of(dataset)) == 9


@pytest.mark.parametrize("kept", [0, 1])
def test_a_sweep_with_no_cell_or_one_is_drawn_and_judged(kept):
    section = section_of(models={k: SEVERAL[k] for k in ("relu", "tanh")})
    dataset = variance.sweep(section, relu_cells(section)[:kept])
    figures = variance.figures(dataset)
    assert (dataset.attrs["claims"].strip() == "[]") == (kept == 0)
    assert len({figure.id for figure in figures}) == len(figures) >= 4


def test_dead_signals_are_counted_and_leave_logarithms_only():
    section = section_of(width=[64], draws=20)
    (cell,) = relu_cells(section)
    cell.statistics["signal_variance"][3, 2:] = 0.0
    dataset = variance.sweep(section, [cell])
    one = dataset.sel(model="relu", width=64)
    np.testing.assert_allclose(one["alive"].sel(layer=6), 19 / 20)
    assert np.isfinite(one["log_mean"]).all()
    (figure,) = [f for f in variance.figures(dataset) if "layers" in f.id]
    assert "38 of 40 signals are alive" in figure.caption


# ── real cells ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ["weightfree", "dense"])
def test_real_cells_of_every_kind_are_measured_judged_and_drawn(engine):
    data = Gaussian(dimension=5, train_samples=8, test_samples=4)
    section = variance.Section(
        models=SEVERAL, width=[8, 32], depth=4, draws=12, inputs=2, data=data, engine=engine
    )
    device = torch.device("cpu")
    inputs = Inputs(prepare_gaussian(data), (), device, np.random.SeedSequence(3))
    cells = [
        Measured(request.label, request.cell, variance.extract(request.cell, inputs))
        for request in variance.cells(section, 0)
    ]
    dataset = variance.sweep(section, cells)
    assert {claim.experiment for claim in claims_of(dataset).values()} == {"variance"}
    assert {"post.exponent", "batch.collapse", "tanh.relative_variance"} <= set(claims_of(dataset))
    assert not any(name.startswith(("post.mean", "batch.mean")) for name in claims_of(dataset))
    for variable in dataset.data_vars.values():
        assert variable.attrs["units"]
        assert variable.attrs["description"]
    if engine == "weightfree":
        figures = {figure.id: figure for figure in variance.figures(dataset)}
        assert {f"variance-layers-{label}" for label in SEVERAL} <= set(figures)
        assert {"variance-scaling", "variance-collapse", "variance-quantiles"} <= set(figures)
        assert set(figures["variance-quantiles"].table["model"]) == {"relu", "two"}
