"""The signed correlation of gradients against networks with their weights."""

import numpy as np
import pytest

from widthlab.theory.gaussian import activation as look_up
from widthlab.theory.signed_gradients import mlp_signed_correlation


def signed(name, width, depth, c_w, c_b, draws, seed):
    """N (Σg)²-type correlations of real networks by layer 1 … depth: mean and standard error."""
    rng = np.random.default_rng(seed)
    s, slope = look_up(name)
    products, squares = [], []
    for _ in range(draws // 2000):
        h = np.ones((2000, width))
        weights, slopes = [], []
        for _ in range(depth):
            w = rng.standard_normal((2000, width, width), dtype=np.float32)
            w *= np.float32(np.sqrt(c_w / width))
            z = np.matmul(w, h[..., None])[..., 0]
            z = z + np.sqrt(c_b) * rng.standard_normal(z.shape)
            h = s(z)
            weights.append(w)
            slopes.append(slope(z))
        g = rng.standard_normal((2000, width)) / np.sqrt(width)
        both = []
        for layer in range(depth - 1, -1, -1):
            both.append((g.sum(1) ** 2 - (g**2).sum(1), (g**2).sum(1)))
            g = np.matmul((slopes[layer] * g)[:, None], weights[layer])[:, 0]
        product, square = np.moveaxis(np.array(both[::-1]), 0, 1)
        products.append(product)
        squares.append(square)
    product, square = np.concatenate(products, axis=1), np.concatenate(squares, axis=1)
    scale = width / (width - 1)
    ratio = product.mean(1) / square.mean(1)
    error = (product - ratio[:, None] * square).std(1) / np.sqrt(draws) / square.mean(1)
    return scale * ratio, scale * error


@pytest.mark.parametrize(("name", "c_w", "c_b"), [("gelu", 2.0, 0.17), ("silu", 2.0, 0.5)])
def test_gradients_of_activations_that_are_not_odd_are_correlated(name, c_w, c_b):
    """Five standard errors and the next order, 1/N of depth; zero is far outside.

    False alarms: fewer than 1 in 10⁵ for the three layers.
    """
    width, depth = 24, 3
    measured, error = signed(name, width, depth, c_w, c_b, draws=120_000, seed=1)
    law = mlp_signed_correlation(1.0, depth, name, c_w, c_b)[1:]
    assert np.all(np.abs(measured - law) < 5 * error + depth / width * law)
    assert measured[0] > 5 * error[0]


@pytest.mark.parametrize(("name", "c_b"), [("relu", 0.0), ("relu", 0.4), ("tanh", 0.4)])
def test_relu_and_odd_activations_have_none(name, c_b):
    law = mlp_signed_correlation([0.5, 1.0], 4, name, 1.7, c_b)
    assert law.shape == (5, 2)
    np.testing.assert_allclose(law[1:], 0, atol=1e-12)
    assert np.isnan(law[0]).all()
