"""One step's mean and variance are those of brute force at small width."""

import numpy as np
import pytest

from widthlab.theory.gaussian import activation
from widthlab.theory.one_step import mlp_step, residual_step

DRAWS = 200_000


def agrees(sample, mean, variance):
    """Five standard errors for the mean and for the variance: a false alarm in 10⁶."""
    error = sample.std() / np.sqrt(DRAWS)
    squares = (sample - sample.mean()) ** 2
    assert abs(sample.mean() - mean) < 5 * error
    assert abs(squares.mean() - variance) < 5 * squares.std() / np.sqrt(DRAWS)


@pytest.mark.parametrize(("name", "c_b"), [("tanh", 0.3), ("gelu", 0.0), ("relu", 0.1)])
def test_a_layer_of_a_perceptron(name, c_b):
    q, c_w, width = 0.7, 1.4, 5
    z = np.sqrt(c_w * q + c_b) * np.random.default_rng(1).standard_normal((DRAWS, width))
    sample = (activation(name).value(z) ** 2).mean(axis=1)
    agrees(sample, *mlp_step(np.array(q), name, c_w, c_b, width))


@pytest.mark.parametrize(("name", "c_b"), [("tanh", 0.3), ("linear", 0.0)])
def test_a_block_of_two_layers(name, c_b):
    q, c_w, alpha, inner, width, hidden = 0.7, 1.4, 0.8, 1.7, 4, 3
    rng = np.random.default_rng(2)
    h = np.sqrt(q) * np.array([2.0, 0.0, 0.0, 0.0])  # |h|²/4 = q
    u = np.sqrt(inner / width) * rng.standard_normal((DRAWS, hidden, width))
    z = u @ h + np.sqrt(c_b) * rng.standard_normal((DRAWS, hidden))
    v = np.sqrt(c_w / hidden) * rng.standard_normal((DRAWS, width, hidden))
    branch = np.einsum("dij,dj->di", v, activation(name).value(z))
    branch += np.sqrt(c_b) * rng.standard_normal((DRAWS, width))
    sample = ((h + alpha * branch) ** 2).mean(axis=1)
    options = {"alpha": alpha, "inner_variance": inner}
    agrees(sample, *residual_step(np.array(q), name, c_w, c_b, width, hidden, **options))
