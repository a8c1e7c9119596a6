"""Corrections of order 1/N against exact laws and brute force.

Random networks are drawn by the exact law of W h + b given h (one test has real matrices).
Tolerances are five standard errors of the draws (1e-6 a comparison, some 500 comparisons) plus
the next order. The expansion is in the relative variance r = Var q/q², and for relu the next
order of Var q is r/2 of it, by the exact law; allowed are r + L/N. Means are measured against a
control variate whose mean is exactly zero, the response to first order in the noise: what is left
is the shift, and its next order is taken as r + L/N of it and of a tenth of its spread.
"""

import numpy as np
import pytest

from widthlab.theory.block_law import (
    NoClosure,
    mlp_susceptibilities,
    mlp_variance,
    residual_susceptibilities,
    residual_variance,
)
from widthlab.theory.corrections import (
    mlp_corrections,
    mlp_vertex,
    residual_corrections,
    small_branch_corrections,
)
from widthlab.theory.finite_width import (
    fluctuation,
    mean_square,
    mlp_log_law,
    mlp_moments,
    residual_moments,
)
from widthlab.theory.gaussian import ACTIVATIONS, QuadratureError, expectation, second_moment

DEPTH, WIDTH, DRAWS = 4, 96, 20_000
C_W, ALPHA, INNER, RATIO, Q0 = 1.4, 0.7, 1.3, 0.5, 1.2
FREE = ("linear", "relu", "leaky_relu")


def affine(h, c_w, c_b, width, generator):
    """W h + b of random layers by its law given h (draws, fan-in), shape (draws, width)."""
    k = c_w * np.mean(h**2, axis=1, keepdims=True) + c_b
    return np.sqrt(k) * generator.standard_normal((len(h), width))


def layer_norm(h):
    return (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True)


def perceptron(name, c_b, normalisation, seed):
    """q_l of random perceptrons, shape (draws, depth + 1)."""
    generator = np.random.default_rng(seed)
    s = ACTIVATIONS[name].value
    h = np.full((DRAWS, WIDTH), np.sqrt(Q0))
    q = [np.mean(h**2, axis=1)]
    for _ in range(DEPTH):
        z = affine(h, C_W, c_b, WIDTH, generator)
        h = s(layer_norm(z) if normalisation == "layer" else z)
        q.append(np.mean(h**2, axis=1))
    return np.stack(q, axis=1)


def stream(name, c_b, branch, normalisation, seed):
    """q_l of random residual perceptrons, shape (draws, depth + 1)."""
    generator = np.random.default_rng(seed)
    s = ACTIVATIONS[name].value
    h = np.sqrt(Q0) * generator.standard_normal((DRAWS, WIDTH))
    q = [np.mean(h**2, axis=1)]
    for _ in range(DEPTH):
        entrance = layer_norm(h) if normalisation == "layer" else h
        if branch == "two_layer":
            entrance = affine(entrance, INNER, c_b, int(RATIO * WIDTH), generator)
        h = h + ALPHA * affine(s(entrance), C_W, c_b, WIDTH, generator)
        q.append(np.mean(h**2, axis=1))
    return np.stack(q, axis=1)


def next_order(theory):
    """r + L/N by layer."""
    relative = theory.variance / theory.block_law**2
    return (relative + np.arange(DEPTH + 1)) / WIDTH


def assert_fluctuations(q, theory):
    """Var q, Cov(q, q_0), and mean and variance of log(q/q_0)."""
    away = q - q.mean(axis=0)
    order = next_order(theory)
    for other, expected in ((away, theory.variance), (away[:, :1], theory.covariance)):
        draws = WIDTH * away * other
        error = 5 * draws.std(axis=0) / np.sqrt(DRAWS)
        assert np.all(np.abs(draws.mean(axis=0) - expected) <= error + order * expected + 1e-9)
    log = np.log(q / q[:, :1])
    size = theory.variance / theory.block_law**2
    error = 5 * np.sqrt(WIDTH) * np.sqrt(size / DRAWS) * 1.5
    shift = WIDTH * (log.mean(axis=0) - theory.log_mean(WIDTH))
    assert np.all(np.abs(shift) <= error + order * size + 1e-9)
    ratio = WIDTH * (log.var(axis=0) - theory.log_variance(WIDTH))
    error = 5 * np.sqrt(3 / DRAWS) * size
    assert np.all(np.abs(ratio) <= error + order * size + 1e-9)


def assert_shift(q, theory, step, slope):
    """N (E q − block law), with the first-order response to each layer's noise taken out."""
    response = np.zeros_like(q)
    response[:, 0] = q[:, 0] - theory.block_law[0]
    for layer in range(1, DEPTH + 1):
        noise = q[:, layer] - step(q[:, layer - 1])
        response[:, layer] = slope[layer - 1] * response[:, layer - 1] + noise
    draws = WIDTH * (q - theory.block_law - response)
    error = 5 * draws.std(axis=0) / np.sqrt(DRAWS)
    # the next order of the second-order response
    order = next_order(theory) * (np.abs(theory.mean) + draws.std(axis=0) / 10)
    assert np.all(np.abs(draws.mean(axis=0) - theory.mean) <= error + order + 1e-9)


def quick(function, q):
    """function(q) of many draws by a cubic spline through 400 points."""
    from scipy.interpolate import CubicSpline

    grid = np.linspace(q.min() * 0.999, q.max() * 1.001 + 1e-12, 400)
    return CubicSpline(grid, function(grid))(q)


# ── perceptrons ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("c_b", [0.0, 0.15])
@pytest.mark.parametrize("name", ["tanh", "erf", "gelu", "silu", "relu"])
def test_perceptrons(name, c_b):
    theory = mlp_corrections(Q0, DEPTH, name, C_W, c_b)
    q = perceptron(name, c_b, "none", seed=1)
    assert_fluctuations(q, theory)
    slope = mlp_susceptibilities(c_b + C_W * theory.block_law[:-1], name, C_W).parallel
    assert_shift(
        q, theory, lambda x: quick(lambda y: mlp_variance(y, 1, name, C_W, c_b)[1], x), slope
    )


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu", "linear"])
def test_normalised_perceptrons(name):
    """Every layer is a fresh draw: the mean within five errors of DRAWS·DEPTH draws."""
    theory = mlp_corrections(Q0, DEPTH, name, C_W, 0.15, "layer")
    q = perceptron(name, 0.15, "layer", seed=2)
    assert_fluctuations(q, theory)
    shifts = WIDTH * (q[:, 1:] - theory.block_law[1:]).ravel()
    error = 5 * shifts.std() / np.sqrt(shifts.size)
    assert abs(shifts.mean() - theory.mean[1]) <= error + abs(theory.mean[1]) * 3 / WIDTH + 1e-9


@pytest.mark.parametrize("name", FREE)
def test_scale_invariant_perceptrons_are_exact(name):
    """N Var from the exact law at N = 10⁷; V/K² is 5 (2) a layer, and no mean moves."""
    width, c_w = 10**7, 1 / mean_square(name)
    theory = mlp_corrections(2.0, 6, name, c_w, 0.0)
    law = mlp_moments(name, [width] * 6)
    np.testing.assert_allclose(theory.variance, 4 * width * (law.square - law.mean**2), rtol=1e-5)
    np.testing.assert_allclose(theory.mean, 0, atol=1e-9)
    vertex = mlp_vertex(2.0, 6, name, c_w, 0.0)
    ratio = vertex.vertex / vertex.kernel**2
    np.testing.assert_allclose(ratio, fluctuation(name) * np.arange(6), rtol=1e-9, atol=1e-12)


def test_log_of_relu_at_large_width():
    law = mlp_log_law("relu", [2000] * 4)
    theory = mlp_corrections(1.0, 4, "relu", 2.0, 0.0)
    np.testing.assert_allclose(theory.log_mean(2000), law.mean, rtol=2e-3)
    np.testing.assert_allclose(theory.log_variance(2000), law.variance, rtol=2e-3)


def test_tanh_at_criticality():
    """V/K² → (2/3) l and G/K → −(1/3) l (Roberts, Yaida & Hanin 2022, chapter 5)."""
    depth = 3000
    vertex = mlp_vertex(1.0, depth, "tanh", 1.0, 0.0)
    assert vertex.vertex[0] == vertex.correction[0] == 0
    assert vertex.vertex[-1] / vertex.kernel[-1] ** 2 / depth == pytest.approx(2 / 3, rel=0.01)
    assert vertex.correction[-1] / vertex.kernel[-1] / depth == pytest.approx(-1 / 3, rel=0.01)


def test_vertex_is_the_variance_of_real_matrices_below():
    """Dense tanh networks with biases, N = 48: N Var of K_3 = C_b + C_W q_2, from 8000 draws."""
    n, draws, c_b = 48, 8000, 0.1
    generator = np.random.default_rng(3)
    h = np.full((draws, n), np.sqrt(Q0))
    for _ in range(2):
        w = np.sqrt(C_W / n) * generator.standard_normal((draws, n, n))
        h = np.tanh(
            np.einsum("dij,dj->di", w, h) + np.sqrt(c_b) * generator.standard_normal((draws, n))
        )
    k = c_b + C_W * np.mean(h**2, axis=1)
    vertex = mlp_vertex(Q0, 3, "tanh", C_W, c_b)
    squares = n * (k - k.mean()) ** 2
    error = 5 * squares.std() / np.sqrt(draws)
    assert abs(squares.mean() - vertex.vertex[2]) <= error + 6 / n * vertex.vertex[2]
    assert abs(
        n * (k.mean() - vertex.kernel[2]) - vertex.correction[2]
    ) <= 5 * n * k.std() / np.sqrt(draws)


def test_vanishing_signals_follow_the_linear_law():
    """Below criticality tanh is a linear network in the end, with the history's fluctuation."""
    theory = mlp_corrections(1e-9, 400, "tanh", 0.8, 0.0)
    growth = np.diff(theory.variance / theory.block_law**2)
    np.testing.assert_allclose(growth, 2.0, rtol=1e-3)
    assert theory.block_law[-1] < 1e-40


# ── residual perceptrons ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("normalisation", ["none", "layer"])
@pytest.mark.parametrize("branch", ["one_layer", "two_layer"])
@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
def test_streams_fluctuate(name, branch, normalisation):
    theory = residual_corrections(
        Q0, DEPTH, name, C_W, 0.15, alpha=ALPHA, branch=branch, hidden_ratio=RATIO,
        inner_variance=INNER, normalisation=normalisation,
    )  # fmt: skip
    assert_fluctuations(stream(name, 0.15, branch, normalisation, seed=4), theory)


@pytest.mark.parametrize("name", ["tanh", "erf", "gelu"])
def test_two_layer_streams_shift(name):
    arguments = {"alpha": ALPHA, "inner_variance": INNER}
    theory = residual_corrections(Q0, DEPTH, name, C_W, 0.15, hidden_ratio=RATIO, **arguments)
    slope = residual_susceptibilities(theory.block_law[:-1], name, C_W, 0.15, **arguments).parallel

    def step(q):
        return quick(lambda y: residual_variance(y, 1, name, C_W, 0.15, **arguments)[1], q)

    assert_shift(stream(name, 0.15, "two_layer", "none", seed=5), theory, step, slope)


@pytest.mark.parametrize("normalisation", ["none", "layer"])
@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
@pytest.mark.parametrize(("q0", "c_w", "c_b", "alpha"), [(Q0, C_W, 0.15, ALPHA), (0.2, 3, 0, 1)])
def test_one_layer_streams_shift(name, normalisation, q0, c_w, c_b, alpha):
    """The control variate is a stream of the same noise whose branch variances are fixed."""
    theory = residual_corrections(
        q0, DEPTH, name, c_w, c_b, alpha=alpha, branch="one_layer", normalisation=normalisation
    )
    law, s = theory.block_law, ACTIVATIONS[name].value
    entrance = np.ones_like(law) if normalisation == "layer" else law
    mean = second_moment(name, entrance)
    chi = residual_susceptibilities(law, name, c_w, c_b, alpha=alpha, branch="one_layer").parallel
    draws_made = 3 * DRAWS
    generator = np.random.default_rng(6)
    h = fixed = np.sqrt(q0) * generator.standard_normal((draws_made, WIDTH))
    response = np.zeros(draws_made)
    for layer in range(1, DEPTH + 1):
        noise = generator.standard_normal((draws_made, WIDTH))
        if normalisation == "layer":
            z = fixed / np.sqrt(law[layer - 1])
            f = s(z) ** 2 - mean[layer - 1]
            # less the parts along z and z² − 1, which normalisation takes out
            first = expectation(lambda t: s(t) ** 2 * t, 1.0)
            second = expectation(lambda t: s(t) ** 2 * (t**2 - 1), 1.0) / 2
            response = response + alpha**2 * c_w * np.mean(
                f - first * z - second * (z**2 - 1), axis=1
            )
            q_s = np.mean(s(layer_norm(h)) ** 2, axis=1)
        else:
            x = np.mean(s(fixed) ** 2, axis=1) - mean[layer - 1]
            response = chi[layer - 1] * response + alpha**2 * c_w * x
            q_s = np.mean(s(h) ** 2, axis=1)
        h = h + alpha * np.sqrt(c_w * q_s + c_b)[:, None] * noise
        fixed = fixed + np.sqrt(law[layer] - law[layer - 1]) * noise
        first_order = np.mean(fixed**2, axis=1) - law[layer] + response
        draws = WIDTH * (np.mean(h**2, axis=1) - law[layer] - first_order)
        error = 5 * draws.std() / np.sqrt(draws_made)
        order = next_order(theory)[layer] * (abs(theory.mean[layer]) + draws.std() / 10)
        assert abs(draws.mean() - theory.mean[layer]) <= error + order


@pytest.mark.parametrize("name", FREE)
def test_scale_invariant_streams_are_exact(name):
    """N Var from the exact law at N = 10⁷, embedding included; one_layer for linear."""
    width = 10**7
    for branch in ("two_layer", "one_layer") if name == "linear" else ("two_layer",):
        arguments = {"alpha": ALPHA, "inner_variance": INNER, "branch": branch}
        law = residual_moments(name, 5, width, int(RATIO * width), c_w=C_W, **arguments)
        theory = residual_corrections(Q0, 5, name, C_W, 0.0, hidden_ratio=RATIO, **arguments)
        exact = Q0**2 * width * ((1 + 2 / width) * law.square - law.mean**2)
        np.testing.assert_allclose(theory.variance, exact, rtol=1e-5)
        np.testing.assert_allclose(theory.mean, 0, atol=1e-8)
        # given q_0 the ratio q/q_0 does not know it
        spread = width * (law.square - law.mean**2)
        np.testing.assert_allclose(width * theory.spread_ratio(width), spread, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(theory.expected_ratio(64), law.mean, rtol=1e-9)


def test_the_relu_shift_of_the_notes():
    """N (E q_L − (1 + a)^L) ≈ 2.0 at a = ¼, L = 6: the small-branch theory says 0."""
    theory = residual_corrections(1.0, 6, "relu", 2.0, 0.0, alpha=0.5, branch="one_layer")
    assert theory.block_law[-1] == pytest.approx(1.25**6)
    assert theory.mean[-1] == pytest.approx(2.0, abs=0.1)
    small = small_branch_corrections(1.0, 6, "relu", 2.0, 0.0, alpha=0.5)
    np.testing.assert_allclose(small.mean, 0, atol=1e-9)


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
def test_small_branches(name):
    """V₄ agrees to first order in ε² L; the mean's source differs by ½ g'' 2q² from the start."""
    alpha = 1e-3
    for q0, c_b in ((0.7, 0.0), (1.5, 0.3)):
        full = residual_corrections(q0, 10, name, C_W, c_b, alpha=alpha, branch="one_layer")
        small = small_branch_corrections(q0, 10, name, C_W, c_b, alpha=alpha)
        np.testing.assert_allclose(small.block_law, full.block_law)
        growth = full.variance - full.variance[0]
        np.testing.assert_allclose(small.variance - small.variance[0], growth, rtol=1e-4)
        assert np.all(np.abs(full.mean) <= 10 * (10 * alpha**2) ** 2)
        if name != "relu":
            assert abs(small.mean[-1]) > 100 * abs(full.mean[-1])


# ── shapes and refusals ─────────────────────────────────────────────────────────────────────


def test_shapes():
    for q0 in (1.0, np.ones((2, 3))):
        theory = mlp_corrections(q0, 3, "tanh", 1.0, 0.1)
        for branch in ("one_layer", "two_layer"):
            other = residual_corrections(q0, 3, "tanh", 1.0, 0.1, alpha=0.5, branch=branch)
            for result in (theory, other):
                for values in (result.mean, result.variance, result.covariance):
                    assert values.shape == (4, *np.shape(q0))
    assert mlp_corrections(1.0, 0, "gelu", 1.0, 0.0).variance.shape == (1,)
    assert residual_corrections(1.0, 0, "gelu", 1.0, 0.0, alpha=1.0).variance == pytest.approx(2)
    many = residual_corrections([0.5, 2.0], 3, "gelu", 1.0, 0.1, alpha=0.5, branch="one_layer")
    one = residual_corrections(2.0, 3, "gelu", 1.0, 0.1, alpha=0.5, branch="one_layer")
    np.testing.assert_allclose(many.variance[:, 1], one.variance)


def test_what_has_no_closure_is_refused():
    with pytest.raises(NoClosure, match="batch"):
        mlp_corrections(1.0, 3, "relu", 2.0, 0.0, "batch")
    with pytest.raises(NoClosure, match="after the addition"):
        residual_corrections(1.0, 3, "relu", 1.0, 0.0, alpha=1.0, position="post")
    with pytest.raises(ValueError, match="hidden_ratio"):
        residual_corrections(1.0, 3, "relu", 1.0, 0.0, alpha=1.0, hidden_ratio=0)
    with pytest.raises(QuadratureError, match="Hermite"):
        residual_corrections(4000.0, 3, "tanh", 1.0, 0.0, alpha=1.0, branch="one_layer")
