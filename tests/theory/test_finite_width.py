"""Exact laws against dense random networks of tiny width, many at once.

Tolerances are five standard errors of the draws unless a test says otherwise.
"""

import itertools

import numpy as np
import pytest

from widthlab.theory.block_law import NoClosure
from widthlab.theory.finite_width import (
    dead_probability,
    fluctuation,
    gradient_squared_correlation,
    mean_square,
    mlp_log_law,
    mlp_moments,
    residual_moments,
    sample_mlp_ratio,
)
from widthlab.theory.gaussian import ACTIVATIONS
from widthlab.theory.tangent_kernel import ntk_mean, ntk_relative_variance

EXACT = ("linear", "relu", "leaky_relu")


def assert_mean(draws, exact, errors=5.0):
    """The mean of draws along axis 0 equals `exact` within so many standard errors."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - exact) <= errors * error + 1e-12)


def dense(generator, draws, fan_out, fan_in, variance):
    shape = (draws, fan_out, fan_in)
    return np.sqrt(variance / fan_in) * generator.standard_normal(shape)


def mlp_ratio(name, widths, draws, seed, c_w):
    """q_l / q_0 of dense networks, shape (draws, L + 1)."""
    generator = np.random.default_rng(seed)
    s = ACTIVATIONS[name].value
    h = np.broadcast_to(generator.standard_normal(3), (draws, 3))
    q = [np.mean(h**2, axis=1)]
    for width in widths:
        w = dense(generator, draws, width, h.shape[1], c_w)
        h = s(np.einsum("dij,dj->di", w, h))
        q.append(np.mean(h**2, axis=1))
    return np.stack(q, axis=1) / q[0][:, None]


@pytest.mark.parametrize("name", EXACT)
def test_layer_constants(name):
    """κ and the fluctuation from a Gaussian sample of 4 million."""
    s = ACTIVATIONS[name].value(np.random.default_rng(1).standard_normal(4_000_000))
    assert_mean(s**2, mean_square(name))
    assert_mean(s**4, (1 + fluctuation(name)) * mean_square(name) ** 2)
    assert fluctuation("relu") == pytest.approx(5)
    assert fluctuation("linear") == pytest.approx(2)


@pytest.mark.parametrize("c_w", [None, 1.3])
@pytest.mark.parametrize("name", EXACT)
def test_mlp_moments(name, c_w):
    widths = [24, 16, 20]
    law = mlp_moments(name, widths, c_w)
    q = mlp_ratio(name, widths, 40_000, 2, 1 / mean_square(name) if c_w is None else c_w)
    assert_mean(q, law.mean)
    assert_mean(q**2, law.square)


def test_mlp_products_of_the_literature():
    np.testing.assert_allclose(mlp_moments("relu", [10, 20]).square, [1, 1.5, 1.5 * 1.25])
    np.testing.assert_allclose(mlp_moments("linear", [10, 20]).square, [1, 1.2, 1.2 * 1.1])
    np.testing.assert_allclose(mlp_moments("relu", [10, 20]).mean, 1)


@pytest.mark.parametrize("name", EXACT)
def test_sampler_has_the_law_of_dense_networks(name):
    """Mean, square and log moments of the sampler equal those of dense networks."""
    widths = [12, 8]
    c_w = 1 / mean_square(name)
    drawn = sample_mlp_ratio(name, widths, 60_000, np.random.default_rng(3))
    brute = mlp_ratio(name, widths, 60_000, 4, c_w)
    for function in (lambda q: q, np.sqrt, lambda q: np.log(q + 1e-3), lambda q: q < 0.5):
        a, b = np.float64(function(drawn)), np.float64(function(brute))
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / 60_000)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 5 * error)


@pytest.mark.parametrize("name", ["linear", "relu"])
def test_log_law(name):
    """Log moments by layer, given that the signal lives; narrow layers, so that many die."""
    widths = [6, 9, 5]
    law = mlp_log_law(name, widths, 1.7)
    q = mlp_ratio(name, widths, 60_000, 5, 1.7)
    assert_mean(np.float64(q == 0), law.dead)
    for layer in range(len(widths) + 1):
        log = np.log(q[q[:, layer] > 0, layer])
        assert_mean(log, law.mean[layer])
        # the variance's own error from the fourth moment
        assert_mean((log - log.mean()) ** 2, law.variance[layer])


def test_log_law_at_the_numbers_of_the_notes():
    law = mlp_log_law("relu", [64] * 10)
    assert law.mean[-1] == pytest.approx(-0.401, abs=5e-4)
    assert law.variance[-1] == pytest.approx(0.830, abs=5e-4)
    wide = mlp_log_law("relu", [4096])
    assert wide.mean[-1] * 4096 == pytest.approx(-2.5, rel=0.01)
    assert wide.variance[-1] * 4096 == pytest.approx(5, rel=0.01)


def test_dead_probability():
    np.testing.assert_allclose(dead_probability([2, 3]), [0, 0.25, 1 - 0.75 * 0.875])
    assert dead_probability([200])[1] == pytest.approx(2.0**-200, rel=1e-12)


def residual_ratio(name, branch, width, hidden, draws, seed):
    """q_l / q_0 of dense residual networks of depth 3, with the constants of the test below."""
    generator = np.random.default_rng(seed)
    s = ACTIVATIONS[name].value
    h = np.broadcast_to(generator.standard_normal(width), (draws, width))
    q = [np.mean(h**2, axis=1)]
    for _ in range(3):
        if branch == "two_layer":
            u = dense(generator, draws, hidden, width, 1.5)
            v = dense(generator, draws, width, hidden, 0.8)
            out = np.einsum("dij,dj->di", v, s(np.einsum("dij,dj->di", u, h)))
        else:
            out = np.einsum("dij,dj->di", dense(generator, draws, width, width, 0.8), s(h))
        h = h + 0.6 * out
        q.append(np.mean(h**2, axis=1))
    return np.stack(q, axis=1) / q[0][:, None]


@pytest.mark.parametrize(
    ("name", "branch"), [*((name, "two_layer") for name in EXACT), ("linear", "one_layer")]
)
def test_residual_moments(name, branch):
    width, hidden = 10, 6
    law = residual_moments(
        name, 3, width, hidden, alpha=0.6, c_w=0.8, inner_variance=1.5, branch=branch
    )
    q = residual_ratio(name, branch, width, hidden, 60_000, 6)
    assert_mean(q, law.mean)
    assert_mean(q**2, law.square)


def test_residual_block_of_the_notes():
    a, d, m = 0.25, 16, 32
    law = residual_moments("relu", 2, d, m, alpha=0.5, c_w=2.0, inner_variance=1.0)
    block = 1 + 2 * a + 4 * a / d + (1 + 2 / d) * (1 + 5 / m) * a * a
    np.testing.assert_allclose(law.square, [1, block, block**2])
    np.testing.assert_allclose(law.mean, [1, 1 + a, (1 + a) ** 2])


def backpropagate(widths, draws, seed):
    """Masks, signals and readout gradients of ReLU networks with input dimension widths[0].

    Returns the signals h_0 … h_L, the gradients of the readout with respect to h_0 … h_L, and
    those with respect to the pre-activations z_1 … z_L. All of them shape (draws, N_l).
    """
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(widths[0])
    h = np.broadcast_to(x * np.sqrt(widths[0] / (x @ x)), (draws, widths[0]))
    signals, weights = [h], []
    for fan_in, fan_out in itertools.pairwise(widths):
        w = dense(generator, draws, fan_out, fan_in, 2.0)
        h = np.maximum(np.einsum("dij,dj->di", w, h), 0.0)
        weights.append(w)
        signals.append(h)
    g = generator.standard_normal(h.shape) / np.sqrt(widths[-1])
    gradients, deltas = [g], []
    for w, signal in zip(weights[::-1], signals[:0:-1], strict=True):
        delta = g * (signal > 0)
        g = np.einsum("dij,di->dj", w, delta)
        deltas.insert(0, delta)
        gradients.insert(0, g)
    return signals, gradients, deltas


def test_gradient_squared_correlation():
    """E[g_i² g_j²]/(E g_i²)² over pairs of neurons; the signed correlation vanishes."""
    widths = [5, 12, 16, 12]
    _, gradients, _ = backpropagate(widths, 60_000, 7)
    for layer, g in enumerate(gradients):
        n = g.shape[1]
        mean = gain(layer, widths) / widths[-1]
        scale = np.mean(g**2, axis=1)
        assert_mean(scale, mean)
        # means over the pairs i ≠ j
        pairs = (n**2 * scale**2 - np.sum(g**4, axis=1)) / (n * (n - 1))
        law = gradient_squared_correlation("relu", widths[layer + 1 :])
        assert_mean(pairs / mean**2 - 1, law)
        signed = (n**2 * np.mean(g, axis=1) ** 2 - np.sum(g**2, axis=1)) / (n * (n - 1))
        assert_mean(signed, 0.0)


def gain(layer, widths):
    """E g² at a layer over that at the readout: the weights have variance 2 / fan-in."""
    return float(np.prod([widths[m] / widths[m - 1] for m in range(layer + 1, len(widths))]))


def test_gradient_correlation_closed_forms():
    assert gradient_squared_correlation("relu", []) == 0
    assert gradient_squared_correlation("relu", [64] * 4) == pytest.approx((1 + 5 / 64) ** 4 - 1)
    assert gradient_squared_correlation("linear", [8, 4]) == pytest.approx(1.25 * 1.5 - 1)


def ntk(depth, width, draws, seed):
    """Θ(x, x) under the NTK parameterisation: Σ_l C_W/N · |h_{l-1}|² |δ_l|² and |h_L|²/N."""
    signals, _, deltas = backpropagate([width] * (depth + 1), draws, seed)
    theta = np.mean(signals[-1] ** 2, axis=1)
    for h, delta in zip(signals[:-1], deltas, strict=True):
        theta = theta + 2.0 * np.mean(h**2, axis=1) * np.sum(delta**2, axis=1)
    return theta


@pytest.mark.parametrize(("depth", "width"), [(1, 8), (2, 32), (4, 48)])
def test_ntk_mean_and_variance(depth, width):
    """The mean within 5 errors; the variance too, plus a next order of 2 (L/N)² above L = 1."""
    draws = 60_000 if width < 16 else 16_000 if depth == 2 else 5_000
    theta = np.concatenate([ntk(depth, width, 1000, seed) for seed in range(draws // 1000)])
    assert_mean(theta, ntk_mean(depth))
    relative = (theta / ntk_mean(depth) - 1) ** 2
    error = relative.std() / np.sqrt(draws)
    order = 0.0 if depth == 1 else 2.0 * (depth / width) ** 2
    assert abs(relative.mean() - ntk_relative_variance(depth, width)) <= 5 * error + order


def test_ntk_numbers_of_the_notes():
    values = [ntk_relative_variance(depth, 1) for depth in (1, 2, 4, 8)]
    np.testing.assert_allclose(values, [3, 58 / 9, 13.6, 760 / 27])


def test_what_is_not_exact_is_refused():
    with pytest.raises(NoClosure, match="tanh is not scale-invariant"):
        mlp_moments("tanh", [8])
    with pytest.raises(NoClosure, match="sample_mlp_ratio"):
        mlp_log_law("leaky_relu", [8])
    with pytest.raises(NoClosure, match="memory of the signs"):
        residual_moments("relu", 2, 8, 8, alpha=0.5, c_w=1.0, branch="one_layer")
    with pytest.raises(ValueError, match="branch must be"):
        residual_moments("relu", 2, 8, 8, alpha=0.5, c_w=1.0, branch="three_layer")
    with pytest.raises(ValueError, match="unknown activation"):
        gradient_squared_correlation("relo", [8])
    with pytest.raises(ValueError, match="widths"):
        mlp_moments("relu", [0])
