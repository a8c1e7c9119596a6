"""The limit kernel against real wide networks, and its leading variance against brute force."""

import itertools

import numpy as np
import pytest

from widthlab.theory.block_law import NoClosure
from widthlab.theory.gaussian import ACTIVATIONS
from widthlab.theory.tangent_kernel import (
    mlp_ntk,
    mlp_ntk_moments,
    ntk_mean,
    ntk_relative_variance,
    residual_ntk,
)

WIDTH, DRAWS, DEPTH = 384, 16, 3
NAMES = tuple(ACTIVATIONS)
X = np.random.default_rng(0).standard_normal((3, 7)) * np.array([[0.7], [1.0], [1.2]])


def networks(spec, limit, order):
    """The mean Θ of 16 networks: 5 standard errors and `order`·L/N of the next order."""
    torch = pytest.importorskip("torch")
    from widthlab import models, specs
    from widthlab.statistics.ntk import empirical_ntk

    network = specs.Network(architecture=spec, width=WIDTH, depth=DEPTH)
    x = torch.tensor(X)
    kernels = np.stack(
        [
            empirical_ntk(models.build(network, X.shape[1:], 1, seed).double(), x).numpy()
            for seed in range(DRAWS)
        ]
    )
    error = 5 * kernels.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    size = np.sqrt(np.outer(np.diagonal(limit), np.diagonal(limit)))
    assert np.all(np.abs(kernels.mean(axis=0) - limit) <= error + order * DEPTH / WIDTH * size)
    # the errors are small enough for the comparison to mean something
    assert np.all(error <= 0.35 * size)


CASES = [
    *((name, "none", 0.15, None) for name in NAMES),
    *((name, "layer", 0.15, None) for name in ("tanh", "gelu", "relu")),
    ("tanh", "none", 0.0, None),
    ("tanh", "none", 0.0, True),
    ("relu", "layer", 0.0, False),
    ("erf", "layer", 0.0, True),
]


@pytest.mark.parametrize(("name", "normalisation", "c_b", "bias"), CASES)
def test_perceptrons(name, normalisation, c_b, bias):
    specs = pytest.importorskip("widthlab.specs")
    spec = specs.MLP(
        activation=name, weight_variance=1.4, bias_variance=c_b, bias=bias,
        normalisation=normalisation, parameterisation="ntk",
    )  # fmt: skip
    gram = X @ X.T / X.shape[1]
    limit = mlp_ntk(gram, DEPTH, name, 1.4, c_b, bias=bias, normalisation=normalisation)
    networks(spec, limit, 2.0)


@pytest.mark.parametrize("branch", ["one_layer", "two_layer"])
@pytest.mark.parametrize(("name", "normalisation", "c_b", "bias"), CASES)
def test_residual_perceptrons(name, normalisation, c_b, bias, branch):
    specs = pytest.importorskip("widthlab.specs")
    inner = 1.3 if branch == "two_layer" else 1.0
    spec = specs.ResidualMLP(
        activation=name, weight_variance=1.4, bias_variance=c_b, bias=bias, branch=branch,
        normalisation=normalisation, parameterisation="ntk", residual_scale=0.6,
        **({"inner_variance": inner, "hidden_ratio": 0.5} if branch == "two_layer" else {}),
    )  # fmt: skip
    limit = residual_ntk(
        X @ X.T / X.shape[1], DEPTH, name, 1.4, c_b, alpha=0.6, branch=branch, bias=bias,
        inner_variance=inner, normalisation=normalisation,
    )  # fmt: skip
    networks(spec, limit, 2.0)


def test_the_relu_kernel_by_hand():
    """Θ' = K' + C_W⟨s's'⟩Θ of Jacot et al. for critical relu: L + 1 on the diagonal."""
    gram = np.array([[1.0, 0.3], [0.3, 1.0]])
    c, theta = 0.3, 0.0
    for _ in range(4):
        theta = (np.pi - np.arccos(c)) / np.pi * (theta + c)
        c = (np.sqrt(1 - c * c) + c * (np.pi - np.arccos(c))) / np.pi
    limit = mlp_ntk(gram, 4, "relu", 2.0, 0.0)
    np.testing.assert_allclose(np.diagonal(limit), ntk_mean(4))
    assert limit[0, 1] == pytest.approx(theta + c)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_repeated_inputs_give_repeated_rows(name):
    x = X[[0, 1, 0]]
    gram = x @ x.T / x.shape[1]
    for limit in (
        mlp_ntk(gram, 3, name, 1.4, 0.1),
        residual_ntk(gram, 3, name, 1.4, 0.1, alpha=0.5),
        residual_ntk(gram, 3, name, 1.4, 0.1, alpha=0.5, normalisation="layer"),
    ):
        np.testing.assert_allclose(limit[0], limit[2], rtol=1e-6)


# ── leading variance ────────────────────────────────────────────────────────────────────────


def dense_ntk(name, depth, width, draws, seed, c_w, c_b, beta, q0=1.2):
    """Θ(x, x) of dense perceptrons by their own backward pass, shape (draws,)."""
    generator = np.random.default_rng(seed)
    s = ACTIVATIONS[name]
    h = np.full((draws, width), np.sqrt(q0))
    signals, weights, slopes = [h], [], []
    for fan_in, fan_out in itertools.pairwise([width] * (depth + 1)):
        w = np.sqrt(c_w / fan_in) * generator.standard_normal((draws, fan_out, fan_in))
        bias = np.sqrt(c_b) * generator.standard_normal((draws, fan_out))
        z = np.einsum("dij,dj->di", w, h) + bias
        h = s.value(z)
        slopes.append(s.derivative(z))
        weights.append(w)
        signals.append(h)
    theta = np.mean(h**2, axis=1)
    g = generator.standard_normal(h.shape) / np.sqrt(width)
    for w, slope, below in zip(weights[::-1], slopes[::-1], signals[-2::-1], strict=True):
        delta = g * slope
        theta = theta + (c_w * np.mean(below**2, axis=1) + beta) * np.sum(delta**2, axis=1)
        g = np.einsum("dij,di->dj", w, delta)
    return theta


@pytest.mark.parametrize(
    ("name", "c_w", "c_b", "bias"),
    [
        ("tanh", 1.4, 0.15, None),
        ("tanh", 3.0, 0.0, False),
        ("erf", 1.0, 0.0, True),
        ("gelu", 1.983, 0.173, None),
        ("relu", 2.0, 0.0, None),
        ("linear", 1.0, 0.0, None),
    ],
)
def test_leading_variance(name, c_w, c_b, bias):
    """N Var Θ at L = 3, N = 64, 4000 draws: 5 errors, and the next order as relative variance."""
    depth, width, draws = 3, 64, 4000
    theory = mlp_ntk_moments(1.2, depth, name, c_w, c_b, bias=bias)
    assert theory.mean == pytest.approx(
        mlp_ntk([[1.2]], depth, name, c_w, c_b, bias=bias).item(), rel=1e-9
    )
    beta = c_b if c_b > 0 else float(bool(bias))
    theta = np.concatenate(
        [dense_ntk(name, depth, width, 500, seed, c_w, c_b, beta) for seed in range(draws // 500)]
    )
    squares = width * (theta - theta.mean()) ** 2
    error = 5 * squares.std() / np.sqrt(draws)
    next_order = theory.relative_variance(width) * theory.variance
    assert abs(squares.mean() - theory.variance) <= error + next_order


def test_leading_variance_of_the_literature():
    """Hanin & Nica (2020) for critical relu; 3 at one layer is exact."""
    for depth in (1, 2, 4, 8, 20):
        theory = mlp_ntk_moments(1.0, depth, "relu", 2.0, 0.0)
        assert theory.relative_variance(10) == pytest.approx(ntk_relative_variance(depth, 10))
    # a linear layer: Θ = |h|²/N + |g|² with |h|², |g|² independent χ²/N
    assert mlp_ntk_moments(1.0, 1, "linear", 1.0, 0.0).variance == pytest.approx(4)


def test_shapes_and_refusals():
    assert mlp_ntk_moments(np.ones((2, 3)), 2, "tanh", 1.0, 0.1).variance.shape == (2, 3)
    gram = X @ X.T / X.shape[1]
    np.testing.assert_allclose(mlp_ntk(gram, 0, "tanh", 1.0, 0.0), gram)
    with pytest.raises(NoClosure, match="batch"):
        mlp_ntk(gram, 2, "relu", 2.0, 0.0, normalisation="batch")
    with pytest.raises(NoClosure, match="after the addition"):
        residual_ntk(gram, 2, "relu", 2.0, 0.0, alpha=1.0, position="post")
    with pytest.raises(NoClosure, match="vanishing"):
        mlp_ntk(0 * gram, 2, "relu", 2.0, 0.0, normalisation="layer")
    with pytest.raises(ValueError, match="square"):
        mlp_ntk(gram[:2], 2, "relu", 2.0, 0.0)
    with pytest.raises(ValueError, match="symmetric"):
        mlp_ntk(np.triu(gram), 2, "relu", 2.0, 0.0)
    with pytest.raises(ValueError, match="need bias"):
        mlp_ntk(gram, 2, "relu", 2.0, 0.1, bias=False)
    with pytest.raises(ValueError, match="branch must be"):
        residual_ntk(gram, 2, "relu", 2.0, 0.1, alpha=1.0, branch="three")
