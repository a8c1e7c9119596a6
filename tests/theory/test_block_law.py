import numpy as np
import pytest

from widthlab.theory.block_law import (
    NoClosure,
    mlp_pair,
    mlp_susceptibilities,
    mlp_variance,
    residual_pair,
    residual_susceptibilities,
    residual_variance,
)
from widthlab.theory.gaussian import ACTIVATIONS

NAMES = tuple(ACTIVATIONS)
DEPTH = 4
WIDTH, DRAWS = 20_000, 12
C_W, C_B, ALPHA, INNER = 1.4, 0.15, 0.7, 1.3


def pre_activations(h, c_w, c_b, generator):
    """W h + b of a random layer, drawn from its exact law given h of shape (N, 2)."""
    n = len(h)
    noise = generator.standard_normal(h.shape) @ np.linalg.cholesky(c_w / n * h.T @ h).T
    return noise + np.sqrt(c_b) * generator.standard_normal((n, 1))


def layer_norm(h):
    return (h - h.mean(axis=0)) / h.std(axis=0)


def inputs(generator):
    """Two inputs of exact kernels 1.2, 0.8 and 0.5."""
    h, _ = np.linalg.qr(generator.standard_normal((WIDTH, 2)))
    return np.sqrt(WIDTH) * h @ np.linalg.cholesky(np.array([[1.2, 0.5], [0.5, 0.8]])).T


def simulate(step, seed):
    """Mean and standard error of the kernels by layer, shape (depth + 1, 3)."""
    generator = np.random.default_rng(seed)
    kernels = np.empty((DRAWS, DEPTH + 1, 3))
    for draw in range(DRAWS):
        h = inputs(generator)
        for layer in range(DEPTH + 1):
            if layer:
                h = step(h, generator)
            gram = h.T @ h / WIDTH
            kernels[draw, layer] = gram[0, 0], gram[1, 1], gram[0, 1]
    return kernels.mean(axis=0), kernels.std(axis=0, ddof=1) / np.sqrt(DRAWS)


def assert_agrees(pair, variance, step, seed):
    """Within 5 standard errors (12 draws) and 2e-3 for the 1/N shift and their uncertainty."""
    mean, error = simulate(step, seed)
    predicted = np.stack([pair.first, pair.second, pair.cross], axis=1)
    assert np.all(np.abs(mean - predicted) <= 5 * error + 2e-3 * (1 + np.abs(predicted)))
    np.testing.assert_allclose(variance, predicted[:, 0], rtol=1e-12)


@pytest.mark.parametrize("normalisation", ["none", "layer"])
@pytest.mark.parametrize("name", NAMES)
def test_mlp_equals_random_networks(name, normalisation):
    s = ACTIVATIONS[name].value

    def step(h, generator):
        z = pre_activations(h, C_W, C_B, generator)
        return s(layer_norm(z) if normalisation == "layer" else z)

    pair = mlp_pair((1.2, 0.8, 0.5), DEPTH, name, C_W, C_B, normalisation)
    variance = mlp_variance(1.2, DEPTH, name, C_W, C_B, normalisation)
    assert_agrees(pair, variance, step, seed=1)


@pytest.mark.parametrize("normalisation", ["none", "layer"])
@pytest.mark.parametrize("branch", ["one_layer", "two_layer"])
@pytest.mark.parametrize("name", NAMES)
def test_residual_equals_random_networks(name, branch, normalisation):
    s = ACTIVATIONS[name].value

    def step(h, generator):
        entrance = layer_norm(h) if normalisation == "layer" else h
        if branch == "two_layer":
            entrance = pre_activations(entrance, INNER, C_B, generator)
        return h + ALPHA * pre_activations(s(entrance), C_W, C_B, generator)

    arguments = {
        "alpha": ALPHA,
        "branch": branch,
        "inner_variance": INNER,
        "normalisation": normalisation,
    }
    pair = residual_pair((1.2, 0.8, 0.5), DEPTH, name, C_W, C_B, **arguments)
    variance = residual_variance(1.2, DEPTH, name, C_W, C_B, **arguments)
    assert_agrees(pair, variance, step, seed=2)


def test_dense_matrices_give_the_same():
    """One case with real weight matrices: N = 300, 200 draws, 5 standard errors."""
    n, draws, depth = 300, 200, 2
    generator = np.random.default_rng(3)
    x = generator.standard_normal(n)
    x *= np.sqrt(1.2 * n) / np.linalg.norm(x)
    q = np.empty((draws, depth + 1))
    for draw in range(draws):
        h = x
        q[draw, 0] = h @ h / n
        for layer in range(1, depth + 1):
            u, v = generator.standard_normal((2, n, n)) / np.sqrt(n)
            inner = np.sqrt(INNER) * u @ h + np.sqrt(C_B) * generator.standard_normal(n)
            outer = np.sqrt(C_W) * v @ np.tanh(inner)
            h = h + ALPHA * (outer + np.sqrt(C_B) * generator.standard_normal(n))
            q[draw, layer] = h @ h / n
    predicted = residual_variance(1.2, depth, "tanh", C_W, C_B, alpha=ALPHA, inner_variance=INNER)
    error = q.std(axis=0, ddof=1) / np.sqrt(draws)
    assert np.all(np.abs(q.mean(axis=0) - predicted) <= 5 * error + 1e-12)


def test_known_solutions():
    np.testing.assert_allclose(mlp_variance(3.0, 5, "relu", 2.0, 0.0), 3.0)
    np.testing.assert_allclose(
        residual_variance(1.0, 3, "relu", 1.0, 0.0, alpha=0.5), 1.125 ** np.arange(4)
    )
    np.testing.assert_allclose(
        residual_variance(2.0, 3, "linear", 1.0, 0.0, alpha=1.0, normalisation="layer"),
        [2, 3, 4, 5],
    )
    # ReLU pre-activation variance stays, so the map of the correlation is the literature's
    c = [0.2]
    for _ in range(4):
        c.append((np.sqrt(1 - c[-1] ** 2) + c[-1] * (np.pi - np.arccos(c[-1]))) / np.pi)
    np.testing.assert_allclose(mlp_pair((1, 1, 0.2), 4, "relu", 2.0, 0.0).correlation, c)


def test_susceptibilities_are_the_slopes_of_the_maps():
    """χ_∥ is dK'/dK; χ_⊥ is the growth of 1 − c at c = 1, both by differences."""
    step, q = 1e-5, 0.9
    for name in ("tanh", "erf", "gelu", "silu"):
        chi = mlp_susceptibilities(C_B + C_W * q, name, C_W)
        # d q'/d q = C_W g'(K)
        slope = np.diff(mlp_variance([q, q + step], 1, name, C_W, C_B)[1]) / step
        assert chi.parallel == pytest.approx(slope[0], rel=1e-4)
        pair = mlp_pair((q, q, q - step), 1, name, C_W, C_B)
        growth = (pair.first[1] - pair.cross[1]) / step
        assert chi.perpendicular == pytest.approx(growth, rel=1e-3)
        for branch in ("one_layer", "two_layer"):
            arguments = {"alpha": ALPHA, "branch": branch, "inner_variance": INNER}
            chi = residual_susceptibilities(q, name, C_W, C_B, **arguments)
            out = residual_variance([q, q + step], 1, name, C_W, C_B, **arguments)[1]
            assert chi.parallel == pytest.approx(np.diff(out)[0] / step, rel=1e-4)
            pair = residual_pair((q, q, q - step), 1, name, C_W, C_B, **arguments)
            growth = (pair.first[1] - pair.cross[1]) / step
            assert chi.perpendicular == pytest.approx(growth, rel=1e-3)


def test_shapes_and_vanishing_signals():
    assert mlp_variance(np.ones((2, 3)), 4, "tanh", 1.0, 0.1).shape == (5, 2, 3)
    assert mlp_variance(1.0, 0, "tanh", 1.0, 0.1).shape == (1,)
    assert mlp_pair((np.ones(3), 1.0, 0.2), 4, "erf", 1.0, 0.1).correlation.shape == (5, 3)
    dead = mlp_pair((0.0, 1.0, 0.0), 2, "relu", 2.0, 0.0, "layer")
    assert np.all(dead.first == 0)
    assert np.all(np.isnan(dead.correlation))


def test_what_has_no_closure_is_refused():
    with pytest.raises(NoClosure, match="batch"):
        mlp_variance(1.0, 3, "relu", 2.0, 0.0, "batch")
    with pytest.raises(NoClosure, match="batch"):
        residual_pair((1, 1, 0), 3, "relu", 1.0, 0.0, alpha=1.0, normalisation="batch")
    with pytest.raises(NoClosure, match="after the addition"):
        residual_variance(1.0, 3, "relu", 1.0, 0.0, alpha=1.0, position="post")
    linear = residual_variance(1.0, 3, "linear", 1.0, 0.0, alpha=1.0, position="post")
    np.testing.assert_allclose(linear, [1, 2, 4, 8])


def test_misspelt_words_are_refused():
    with pytest.raises(ValueError, match="normalisation must be"):
        mlp_variance(1.0, 3, "relu", 2.0, 0.0, "layr")
    with pytest.raises(ValueError, match="branch must be"):
        residual_variance(1.0, 3, "relu", 2.0, 0.0, alpha=1.0, branch="three")
    with pytest.raises(ValueError, match="position must be"):
        residual_variance(1.0, 3, "relu", 2.0, 0.0, alpha=1.0, position="mid")
    with pytest.raises(ValueError, match="unknown activation"):
        mlp_variance(1.0, 3, "relo", 2.0, 0.0)
    with pytest.raises(ValueError, match="depth"):
        mlp_variance(1.0, -1, "relu", 2.0, 0.0)
    with pytest.raises(ValueError, match="finite"):
        mlp_variance(float("nan"), 1, "relu", 2.0, 0.0)
