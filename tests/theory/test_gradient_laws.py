"""Sizes and correlations of gradients against dense networks with their own backward pass."""

import numpy as np
import pytest

from widthlab.theory.block_law import NoClosure, mlp_variance
from widthlab.theory.finite_width import gradient_squared_correlation
from widthlab.theory.gaussian import ACTIVATIONS
from widthlab.theory.gradients import (
    mlp_gradient,
    mlp_gradient_correlation,
    residual_gradient,
    summed_fluctuation,
)

DEPTH, WIDTH, DRAWS, CHUNK = 3, 64, 6000, 500
Q0, C_W, C_B, ALPHA, INNER = 1.2, 1.4, 0.15, 0.7, 1.3


def matrices(generator, variance, rows=WIDTH):
    return np.sqrt(variance / WIDTH) * generator.standard_normal((CHUNK, rows, WIDTH))


def times(w, h):
    return np.einsum("dij,dj->di", w, h)


def back(w, g):
    return np.einsum("dij,di->dj", w, g)


def perceptrons(name, c_w, c_b, seed):
    """Gradients by h_0 … h_L, shape (depth + 1, draws, width)."""
    s = ACTIVATIONS[name]
    chunks = []
    for generator in np.random.default_rng(seed).spawn(DRAWS // CHUNK):
        h = np.full((CHUNK, WIDTH), np.sqrt(Q0))
        layers = []
        for _ in range(DEPTH):
            w = matrices(generator, c_w)
            z = times(w, h) + np.sqrt(c_b) * generator.standard_normal((CHUNK, WIDTH))
            h = s.value(z)
            layers.append((w, s.derivative(z)))
        g = [generator.standard_normal(h.shape) / np.sqrt(WIDTH)]
        for w, slope in layers[::-1]:
            g.append(back(w, slope * g[-1]))
        chunks.append(np.stack(g[::-1]))
    return np.concatenate(chunks, axis=1)


def residuals(name, branch, seed):
    s = ACTIVATIONS[name]
    chunks = []
    for generator in np.random.default_rng(seed).spawn(DRAWS // CHUNK):
        h = np.sqrt(Q0) * generator.standard_normal((CHUNK, WIDTH))
        layers = []
        for _ in range(DEPTH):
            w, z, u = matrices(generator, C_W), h, None
            if branch == "two_layer":
                u = matrices(generator, INNER)
                z = times(u, h) + np.sqrt(C_B) * generator.standard_normal(h.shape)
            bias = np.sqrt(C_B) * generator.standard_normal(h.shape)
            h = h + ALPHA * (times(w, s.value(z)) + bias)
            layers.append((w, s.derivative(z), u))
        g = [generator.standard_normal(h.shape) / np.sqrt(WIDTH)]
        for w, slope, u in layers[::-1]:
            delta = slope * back(w, g[-1])
            g.append(g[-1] + ALPHA * (delta if u is None else back(u, delta)))
        chunks.append(np.stack(g[::-1]))
    return np.concatenate(chunks, axis=1)


def assert_sizes(g, theory):
    """Five standard errors, and the next order 2 L/N."""
    sizes = np.sum(g**2, axis=2)
    error = 5 * sizes.std(axis=1) / np.sqrt(DRAWS)
    assert np.all(np.abs(sizes.mean(axis=1) - theory) <= error + 2 * DEPTH / WIDTH * theory)


@pytest.mark.parametrize(
    ("name", "c_w", "c_b"),
    [
        ("tanh", C_W, C_B),
        ("tanh", 3.0, 0.0),
        ("erf", 2.0, 0.3),
        ("gelu", 1.983, 0.173),
        ("silu", C_W, C_B),
        ("relu", 2.0, 0.0),
        ("relu", 2.0, 0.5),
    ],
)
def test_perceptrons(name, c_w, c_b):
    """E|g|², and the correlation of squares: 5 errors, and the next order c k/N of it."""
    g = perceptrons(name, c_w, c_b, seed=1)
    assert_sizes(g, mlp_gradient(Q0, DEPTH, name, c_w, c_b))
    theory = mlp_gradient_correlation(Q0, DEPTH, name, c_w, c_b)
    sizes = np.sum(g**2, axis=2)
    pairs = (sizes**2 - np.sum(g**4, axis=2)) / (1 - 1 / WIDTH)
    mean = sizes.mean(axis=1, keepdims=True)
    # the ratio's influence function, for its error
    ratio = pairs.mean(axis=1) / mean[:, 0] ** 2
    influence = (pairs - 2 * ratio[:, None] * mean * (sizes - mean)) / mean**2
    error = 5 * WIDTH * influence.std(axis=1) / np.sqrt(DRAWS)
    measured = WIDTH * (ratio - 1)
    assert np.all(np.abs(measured - theory) <= error + theory**2 / WIDTH)


def test_weights_integrated_out():
    """tanh from a small input, where what K shares between layers counts for a fifth at L = 6.

    60,000 draws at N = 128 by the exact law of Wᵀδ given z = W h. If the layers' factors were
    independent, N log(1 + correlation) would be right but for c/N, c the theory's share a layer.
    """
    depth, width, draws, c_w, q0 = 6, 128, 60_000, 2.0, 0.2
    theory = mlp_gradient_correlation(q0, depth, "tanh", c_w, 0.0)[0]
    squares = []
    for generator in np.random.default_rng(3).spawn(draws // CHUNK):
        h = np.full((CHUNK, width), np.sqrt(q0))
        layers = []
        for _ in range(depth):
            scale = np.sqrt(c_w * np.mean(h**2, axis=1, keepdims=True))
            z = scale * generator.standard_normal(h.shape)
            layers.append((h, z))
            h = np.tanh(z)
        g = generator.standard_normal(h.shape) / np.sqrt(width)
        for below, z in layers[::-1]:
            delta = g / np.cosh(z) ** 2
            scale = np.sqrt(c_w * np.mean(delta**2, axis=1, keepdims=True))
            free = scale * generator.standard_normal(h.shape)
            known = np.sum(z * delta - below * free, axis=1, keepdims=True)
            g = free + below * known / np.sum(below**2, axis=1, keepdims=True)
        squares.append(np.stack([np.sum(g**2, axis=1), np.sum(g**4, axis=1)], axis=1))
    sizes, fourth = np.concatenate(squares).T
    pairs = (sizes**2 - fourth) / (1 - 1 / width) / sizes.mean() ** 2
    influence = pairs / pairs.mean() - 2 * sizes / sizes.mean()
    error = 5 * width * influence.std() / np.sqrt(draws)
    measured = width * np.log(pairs.mean())
    assert abs(measured - theory) <= error + theory**2 / depth / width
    assert error < 0.1 * theory


@pytest.mark.parametrize("branch", ["one_layer", "two_layer"])
@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_residual_perceptrons(name, branch):
    theory = residual_gradient(
        Q0, DEPTH, name, C_W, C_B, alpha=ALPHA, branch=branch, inner_variance=INNER
    )
    assert_sizes(residuals(name, branch, seed=2), theory)


@pytest.mark.parametrize("model", ["mlp", "one_layer", "two_layer"])
@pytest.mark.parametrize("normalisation", ["none", "layer"])
def test_real_networks(model, normalisation):
    """E|g_l|² of built networks by autograd, N = 512, 40 draws: 5 errors and 2 L/N."""
    torch = pytest.importorskip("torch")
    from widthlab import models, specs

    common = {
        "activation": "gelu", "weight_variance": C_W, "bias_variance": C_B,
        "normalisation": normalisation,
    }  # fmt: skip
    if model == "mlp":
        spec = specs.MLP(**common)
        theory = mlp_gradient(Q0, DEPTH, "gelu", C_W, C_B, normalisation)
    else:
        inner = {"inner_variance": INNER} if model == "two_layer" else {}
        spec = specs.ResidualMLP(branch=model, residual_scale=ALPHA, **inner, **common)
        theory = residual_gradient(
            Q0, DEPTH, "gelu", C_W, C_B, alpha=ALPHA, branch=model,
            inner_variance=INNER, normalisation=normalisation,
        )  # fmt: skip
    width, draws = 512, 40
    network = specs.Network(architecture=spec, width=width, depth=DEPTH)
    sizes = np.empty((draws, DEPTH + 1))
    for seed in range(draws):
        net = models.build(network, (9,), 1, seed)
        signals = []
        hooks = [
            net.get_submodule(name).register_forward_hook(lambda m, i, o, to=signals: to.append(o))
            for name in net.signals
        ]
        x = torch.full((1, 9), float(np.sqrt(Q0)), requires_grad=True)
        f = net(x)
        sizes[seed] = [float((g**2).sum()) for g in torch.autograd.grad(f.sum(), signals)]
        for hook in hooks:
            hook.remove()
    error = 5 * sizes.std(axis=0, ddof=1) / np.sqrt(draws)
    assert np.all(np.abs(sizes.mean(axis=0) - theory) <= error + 2 * DEPTH / width * theory)
    assert np.all(error <= 0.6 * theory)


@pytest.mark.parametrize(("name", "c_w"), [("relu", 2.0), ("linear", 1.0), ("relu", 1.3)])
def test_scale_invariant_activations_are_exact(name, c_w):
    theory = mlp_gradient_correlation(Q0, 5, name, c_w, 0.0)
    width = 10**6
    exact = [
        width * gradient_squared_correlation(name, [width] * above) for above in range(5, -1, -1)
    ]
    np.testing.assert_allclose(theory, exact, rtol=1e-4, atol=1e-9)


def test_critical_gradients_stay():
    np.testing.assert_allclose(mlp_gradient(Q0, 5, "relu", 2.0, 0.0), 1.0)
    np.testing.assert_allclose(
        residual_gradient(Q0, 3, "linear", 1.0, 0.0, alpha=0.5), 1.25 ** np.arange(3, -1, -1)
    )
    assert mlp_gradient(np.ones((2, 3)), 0, "tanh", 1.0, 0.0).shape == (1, 2, 3)
    assert mlp_gradient_correlation(np.ones(2), 4, "tanh", 1.0, 0.0).shape == (5, 2)
    with pytest.raises(NoClosure, match="batch"):
        mlp_gradient(Q0, 3, "tanh", 1.0, 0.0, "batch")


@pytest.mark.parametrize(("name", "c_w", "c_b"), [("tanh", 1.5, 0.2), ("gelu", 2.0, 0.2)])
def test_the_correlation_of_all_layers_at_once_is_that_of_each(name, c_w, c_b):
    """The slow twin: the fluctuation of a sum over the layers above, one layer at a time."""
    q0, depth = np.array([0.5, 1.0]), 6
    law = mlp_variance(q0, depth, name, c_w, c_b)
    slow = np.zeros_like(law)
    for layer in range(depth):
        above = np.repeat((np.arange(depth) >= layer)[:, None].astype(float), 2, axis=1)
        slow[layer] = summed_fluctuation(law, name, c_w, c_b, above)
    fast = mlp_gradient_correlation(q0, depth, name, c_w, c_b)
    np.testing.assert_allclose(fast, slow, rtol=1e-12)
