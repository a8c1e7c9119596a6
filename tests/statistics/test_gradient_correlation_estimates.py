"""Correlations of gradients: estimators by brute force, and the exact laws at small width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab import models, specs
from widthlab.errors import WidthlabError
from widthlab.statistics.gradient_correlation import (
    sampling_floor,
    signed_correlation,
    squared_correlation,
)
from widthlab.statistics.over_draws import over_draws


def made(draws: int = 9, layers: int = 3, inputs: int = 4) -> xr.Dataset:
    generator = np.random.default_rng(0)
    dims = ("draw", "layer", "input")
    return xr.Dataset(
        {name: (dims, generator.gamma(2.0, size=(draws, layers, inputs))) for name in ("m22", "m2")}
        | {"m11": (dims, generator.normal(size=(draws, layers, inputs)))},
        coords={"neurons": ("layer", np.array([5, 8, 8])), "layer": np.arange(layers)},
    )


def squared_by_hand(m22: np.ndarray[Any, Any], m2: np.ndarray[Any, Any]) -> float:
    ratios = [m22[:, a].mean() / m2[:, a].mean() ** 2 - 1 for a in range(m2.shape[1])]
    return float(np.mean(ratios))


def test_squared_correlation_and_its_jackknife_by_a_loop() -> None:
    data = made()
    found = squared_correlation(data["m22"], data["m2"])
    assert found["estimate"].dims == ("layer",)
    for layer in range(3):
        m22, m2 = data["m22"].values[:, layer], data["m2"].values[:, layer]
        assert float(found["estimate"][layer]) == pytest.approx(squared_by_hand(m22, m2), rel=1e-12)
        left = [
            squared_by_hand(np.delete(m22, draw, axis=0), np.delete(m2, draw, axis=0))
            for draw in range(9)
        ]
        error = math.sqrt(8 / 9 * sum((value - np.mean(left)) ** 2 for value in left))
        assert float(found["standard_error"][layer]) == pytest.approx(error, rel=1e-12)
    assert list(found["draws"].values) == [9, 9, 9]
    swapped = squared_correlation(
        data["m22"].transpose("input", "layer", "draw"), data["m2"].transpose("layer", "input", ...)
    )
    xr.testing.assert_allclose(swapped, found)


def test_inputs_of_unequal_gradients_are_not_a_correlation() -> None:
    data = made() * 0 + 1.0
    data["m2"] = data["m2"] * xr.DataArray([1.0, 2.0, 3.0, 4.0], dims="input")
    data["m22"] = data["m2"] ** 2
    np.testing.assert_allclose(squared_correlation(data["m22"], data["m2"])["estimate"], 0.0)


def test_repeated_inputs_do_not_shrink_the_error() -> None:
    data = made(inputs=1)
    repeated = xr.concat([data] * 5, dim="input")
    for function, first in ((squared_correlation, "m22"), (signed_correlation, "m11")):
        one = function(data[first], data["m2"])
        many = function(repeated[first], repeated["m2"])
        np.testing.assert_allclose(one["standard_error"], many["standard_error"], rtol=1e-12)


def test_without_inputs() -> None:
    data = made(inputs=1)
    one = squared_correlation(data["m22"], data["m2"])
    flat = squared_correlation(data["m22"].isel(input=0), data["m2"].isel(input=0))
    xr.testing.assert_allclose(one, flat)


def test_an_overflowed_draw_is_counted_and_left_out() -> None:
    data = made()
    clean = squared_correlation(data["m22"][1:], data["m2"][1:])
    data["m22"][0, 1, 2] = np.inf
    found = squared_correlation(data["m22"], data["m2"])
    assert list(found["draws"].values) == [9, 8, 9]
    assert found["draws"].attrs["description"] == "finite draws, of 9"
    for name in ("estimate", "standard_error"):
        assert float(found[name][1]) == pytest.approx(float(clean[name][1]), rel=1e-12)


def test_dead_layers_give_nan() -> None:
    data = made() * 0
    found = squared_correlation(data["m22"], data["m2"])
    assert bool(found["estimate"].isnull().all())
    assert list(found["draws"].values) == [9, 9, 9]


def test_signed_correlation() -> None:
    data = made()
    found = signed_correlation(data["m11"], data["m2"], data["m22"])
    expected = (data["m11"].mean("draw") / data["m2"].mean("draw")).mean("input")
    np.testing.assert_allclose(found["estimate"], expected, rtol=1e-12)
    squared = squared_correlation(data["m22"], data["m2"])["estimate"]
    for layer, neurons in enumerate((5, 8, 8)):
        floor = math.sqrt(2 * (1 + float(squared[layer])) / (neurons * (neurons - 1) * 9))
        assert float(found["sampling_floor"][layer]) == pytest.approx(floor, rel=1e-12)


@pytest.mark.parametrize("neurons", [2, 5, 40])
def test_the_floor_of_independent_gradients(neurons: int) -> None:
    generator = np.random.default_rng(1)
    g = generator.normal(size=(20000, neurons))
    m11 = ((g.sum(1) ** 2) - (g**2).sum(1)) / (neurons * (neurons - 1))
    # The spread of 20,000 draws is known to about 1.5 % here (kurtosis of m11 up to 12).
    assert m11.std() == pytest.approx(sampling_floor(1, neurons), rel=0.05)
    assert sampling_floor(100, neurons) == pytest.approx(sampling_floor(1, neurons) / 10)
    # A common size of the gradient, E s⁴/(E s²)² = 1 + ρ, raises the spread.
    s = generator.choice([0.2, 1.0, 3.0], size=20000)
    rho = (s**4).mean() / (s**2).mean() ** 2 - 1
    spread = (s**2 * m11).std() / (s**2).mean()
    assert spread == pytest.approx(sampling_floor(1, neurons, rho), rel=0.06)


def test_no_pairs_no_floor() -> None:
    assert math.isnan(sampling_floor(10, 1))


# ── the exact laws, at widths where the effect is large ─────────────────────────────────────

DRAWS = 3000


@pytest.mark.parametrize(
    ("activation", "slope", "width"), [("relu", 5.0, 10), ("relu", 5.0, 16), ("linear", 2.0, 8)]
)
def test_exact_law(activation: str, slope: float, width: int) -> None:
    depth = 4
    architecture = specs.MLP(activation=activation)  # type: ignore[arg-type]
    network = specs.Network(architecture=architecture, width=width, depth=depth)
    model = models.build(network, (8,), 1, seed=0)
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(5))
    found = over_draws(model, x, DRAWS, seed=11, measure=["gradients"])
    squared = squared_correlation(found["m22"], found["m2"])
    above = depth - np.arange(depth + 1)
    exact = (1 + slope / width) ** above - 1
    estimate, error = squared["estimate"].values, squared["standard_error"].values
    hidden = slice(1, None)
    assert (abs(estimate - exact)[hidden] < 4 * error[hidden]).all()
    # The test can tell the law from no effect, and from one layer more or less.
    assert (exact > 8 * error)[1:-1].all()
    assert (abs(np.diff(exact[hidden])) > 4 * error[2:]).all()

    signed = signed_correlation(found["m11"], found["m2"], found["m22"])
    floor = signed["sampling_floor"].values
    assert (abs(signed["estimate"].values)[hidden] < 4 * floor[hidden]).all()
    one = found.isel(input=[0])
    single = signed_correlation(one["m11"], one["m2"], one["m22"])
    ratio = (single["standard_error"] / single["sampling_floor"]).values[hidden]
    assert (abs(ratio - 1) < 0.35).all()
    assert abs(ratio[-1] - 1) < 0.06


def test_refused() -> None:
    data = made()
    with pytest.raises(WidthlabError, match="same dimensions"):
        squared_correlation(data["m22"], data["m2"].isel(input=0))
    with pytest.raises(WidthlabError, match="at least two draws"):
        squared_correlation(data["m22"][:1], data["m2"][:1])
    with pytest.raises(WidthlabError, match="neurons"):
        signed_correlation(data["m11"], data["m2"].drop_vars("neurons"))
