"""Exact laws of gradients and of the tangent kernel, against networks with their weights."""

from itertools import pairwise

import numpy as np
import pytest

from widthlab.theory.backward import gradient_log_law, ntk_exact_relative_variance
from widthlab.theory.block_law import NoClosure
from widthlab.theory.finite_width import mlp_log_law

GAIN = {"relu": 2.0, "linear": 1.0}


def dense(name, widths, draws, seed, inputs=5):
    """|g_l|² by layer (draws, L) and Θ(x, x) (draws,) of real networks, by hand."""
    rng = np.random.default_rng(seed)
    sizes = [inputs, *widths]
    h = np.ones((draws, inputs))
    signals, weights, slopes = [h], [], []
    for fan_in, fan_out in pairwise(sizes):
        w = rng.standard_normal((draws, fan_out, fan_in)) * np.sqrt(GAIN[name] / fan_in)
        z = np.einsum("sij,sj->si", w, h)
        slope = (z > 0).astype(float) if name == "relu" else np.ones_like(z)
        h = slope * z
        signals.append(h)
        weights.append(w)
        slopes.append(slope)
    g = rng.standard_normal((draws, widths[-1])) / np.sqrt(widths[-1])
    kernel = (h**2).sum(1) / widths[-1]
    squares = []
    for layer in range(len(widths) - 1, -1, -1):
        squares.append((g**2).sum(1))
        delta = slopes[layer] * g
        signal = (signals[layer] ** 2).sum(1) / sizes[layer]
        kernel += GAIN[name] * (delta**2).sum(1) * signal
        g = np.einsum("sij,si->sj", weights[layer], delta)
    return np.stack(squares[::-1], axis=1), kernel


@pytest.mark.parametrize("name", ["relu", "linear"])
@pytest.mark.parametrize("widths", [[6, 6, 6, 6], [9, 4, 7]])
def test_the_imbalance_of_layers_is_exact(name, widths):
    """Five standard errors each of 2·(L − 1) numbers: a false alarm in 10⁵ runs."""
    squares, _ = dense(name, widths, draws=40_000, seed=1)
    law = gradient_log_law(name, widths)
    alive = squares[:, 0] > 0
    dead = 1 - alive.mean()
    assert abs(dead - law.dead[0]) < 5 * np.sqrt(law.dead[0] / len(alive)) + 1e-12
    logs = np.log(squares[alive] / squares[alive, -1:])
    error = logs.std(axis=0) / np.sqrt(len(logs))
    assert np.all(np.abs(logs.mean(axis=0) - law.mean) <= 5 * error + 1e-12)
    # a layer more or less would be seen
    assert abs(law.mean[0] - law.mean[1]) > 10 * error[0]
    spread = (logs - logs.mean(axis=0)) ** 2
    error = spread.std(axis=0) / np.sqrt(len(logs))
    assert np.all(np.abs(spread.mean(axis=0) - law.variance) <= 5 * error + 1e-12)


def test_at_equal_widths_gradients_obey_the_law_of_signals():
    signal, gradient = mlp_log_law("relu", [16] * 5), gradient_log_law("relu", [16] * 6)
    np.testing.assert_allclose(gradient.mean, signal.mean[::-1], atol=1e-14)
    np.testing.assert_allclose(gradient.variance, signal.variance[::-1], atol=1e-14)


@pytest.mark.parametrize("name", ["relu", "linear"])
@pytest.mark.parametrize("widths", [[5], [8, 8, 8], [12, 6, 9]])
def test_the_variance_of_the_kernel_is_exact(name, widths):
    """Five standard errors; the leading order alone would be seen at three layers."""
    _, kernel = dense(name, widths, draws=60_000, seed=2)
    ratio = kernel / kernel.mean()
    measured = ratio.var()
    error = np.std((ratio - 1) ** 2 - 2 * measured * (ratio - 1)) / np.sqrt(len(ratio))
    assert abs(kernel.mean() - len(widths) - 1) < 5 * kernel.std() / np.sqrt(len(kernel))
    assert abs(ntk_exact_relative_variance(name, widths) - measured) < 5 * error
    if len(widths) == 3:
        wide = [1000 * width for width in widths]
        leading = 1000 * ntk_exact_relative_variance(name, wide)
        assert abs(leading - measured) > 5 * error


@pytest.mark.parametrize(
    ("name", "leading"),
    [
        ("relu", lambda depth: depth * (11 * depth + 7) / (3 * (depth + 1))),
        ("linear", lambda depth: 2 * depth * (2 * depth + 1) / (3 * (depth + 1))),
    ],
)
@pytest.mark.parametrize("depth", [1, 2, 7, 50])
def test_its_leading_order_is_the_published_one(name, leading, depth):
    exact = 1e8 * ntk_exact_relative_variance(name, [10**8] * depth)
    assert exact == pytest.approx(leading(depth), rel=1e-5)


@pytest.mark.parametrize("name", ["tanh", "leaky_relu"])
def test_other_activations_have_no_exact_law(name):
    with pytest.raises(NoClosure):
        gradient_log_law(name, [8, 8])
    with pytest.raises(NoClosure):
        ntk_exact_relative_variance(name, [8, 8])
