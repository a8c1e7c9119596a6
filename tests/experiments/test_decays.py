"""Fits of a decay find the scale that is there, in layers that theory chose."""

import numpy as np
import pytest

from widthlab.experiments.depth_scale import decays
from widthlab.specs import MLP, ResidualMLP

LAYERS = np.arange(41)


def test_the_window_starts_after_the_transient_and_ends_above_the_noise():
    curve = np.exp(-LAYERS / 4) + np.exp(-LAYERS / 1.5)
    layers = decays.window(curve, 1 / 4, 1e-3)
    assert layers is not None
    rates = -np.diff(np.log(curve))
    assert np.all(np.abs(rates[layers][:-1] * 4 - 1) <= decays.TRANSIENT)
    assert abs(rates[layers.start - 1] * 4 - 1) > decays.TRANSIENT
    assert curve[layers.stop - 1] >= 5e-3 > curve[layers.stop]
    assert decays.window(curve, 1 / 4, 0.1) is None
    # A decay without that scale has no window at all.
    assert decays.window(curve, 1 / 8, 1e-3) is None
    assert decays.window(1 / (1 + LAYERS**2.0), 1 / 4, 1e-4) is None


def test_a_rate_is_that_of_the_exponential_and_its_allowance_covers_the_transient():
    curve = -0.3 * np.exp(-LAYERS / 5)
    layers = slice(3, 20)
    assert decays.rate(curve, layers) == pytest.approx(1 / 5)
    assert decays.rate(np.stack([curve, 2 * curve]), layers).shape == (2,)
    assert decays.allowance(curve, 1 / 5, layers, 0.0) == pytest.approx(0, abs=1e-12)
    shifted = curve + 1e-3
    off = abs(decays.rate(shifted, layers) - 1 / 5)
    assert off == pytest.approx(decays.allowance(curve, 1 / 5, layers, 1e-3), rel=0.5)
    assert off <= decays.allowance(curve, 1 / 5, layers, 1e-3) + 1e-12


def test_a_power_law_loses_as_much_in_every_octave_and_an_exponential_twice_as_much():
    layers = np.arange(65)
    power = 3.0 * np.maximum(layers, 1.0) ** -2
    np.testing.assert_allclose(decays.quarters(power), [-2, 1])
    exponential = np.exp(-layers / 7)
    np.testing.assert_allclose(decays.quarters(exponential)[1], 2)
    both = decays.quarters(np.stack([power, exponential]))
    assert both.shape == (2, 2)
    odd = np.maximum(np.arange(51), 1.0) ** -1.0
    np.testing.assert_allclose(decays.quarters(odd), [-1, 1], rtol=2e-3)


def test_crossings_are_linear_in_between_and_missing_where_there_are_none():
    size = np.array([[0, 1, 2, 4.0], [0, 0, 0, 1], [5, 5, 5, 5]])
    found = decays.crossing(size, 3.0)
    assert found[0] == pytest.approx(2.5)
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"activation": "tanh", "weight_variance": 1.0, "bias_variance": 0.1}, "ordered"),
        ({"activation": "tanh"}, "critical"),
        ({"activation": "relu"}, "critical"),
        ({"activation": "tanh", "weight_variance": 3.0, "bias_variance": 0.1}, "chaotic"),
        ({"activation": "erf", "weight_variance": 2.0, "bias_variance": 0.2}, "chaotic"),
        ({"activation": "relu", "weight_variance": 1.5, "bias_variance": 0.1}, "ordered"),
    ],
)
def test_phases_are_where_the_recursion_goes(options, name):
    architecture = MLP(**options)
    phase = decays.phase_of(architecture)
    assert phase is not None
    assert phase.name == name
    law = decays.pair_law(architecture, np.array([0.2, 0.9]), 400)
    if name == "critical":
        return
    assert law.first[-1, 0] == pytest.approx(phase.variance, abs=1e-9)
    np.testing.assert_allclose(law.correlation[-1], phase.correlation, atol=1e-8)
    # The scales are those of carried signals, after the activation, too.
    for curve, limit, scale in (
        (law.first[:, 0], phase.variance, phase.variance_scale),
        (law.correlation[:, 0], phase.correlation, phase.correlation_scale),
    ):
        layers = decays.window(curve - limit, 1 / scale, 1e-7)
        late = slice(layers.stop - 3, layers.stop)
        assert decays.rate(curve - limit, late) == pytest.approx(1 / scale, rel=0.02)


def test_networks_without_a_fixed_point_or_a_recursion_have_none():
    start = np.array([0.5])
    assert decays.phase_of(ResidualMLP()) is None
    assert decays.phase_of(MLP(normalisation="layer")) is None
    assert decays.phase_of(MLP(activation="relu", weight_variance=2.5)) is None
    assert decays.pair_law(ResidualMLP(position="post"), start, 4) is None
    assert decays.pair_law(MLP(normalisation="batch"), start, 4) is None
    assert decays.pair_law(ResidualMLP(), start, 4).correlation.shape == (5, 1)
