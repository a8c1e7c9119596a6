import itertools

import numpy as np
import pytest
from scipy.integrate import dblquad, quad

from widthlab.theory.gaussian import (
    ACTIVATIONS,
    QuadratureError,
    activation,
    derivative_moment,
    expectation,
    pair_derivative_moment,
    pair_expectation,
    pair_moment,
    second_moment,
    second_moment_slope,
)

VARIANCES = (0.05, 1.0, 4.0, 60.0)
PAIRS = ((1.0, 1.0, 0.3), (0.5, 2.0, -0.6), (3.0, 1.5, 2.0))
NAMES = tuple(ACTIVATIONS)


def brute(function, variance):
    """⟨f⟩_K by adaptive quadrature on pieces."""
    root = np.sqrt(variance)

    def integrand(z):
        density = np.exp(-0.5 * z * z / variance) / np.sqrt(2 * np.pi * variance)
        return float(function(np.float64(z))) * density

    edges = sorted({0.0, *(s * e for s in (-1, 1) for e in (1, 3, 3 * root, 13 * root))})
    edges = [e for e in edges if abs(e) <= 13 * root]
    return sum(
        quad(integrand, a, b, epsabs=1e-14, epsrel=1e-13)[0] for a, b in itertools.pairwise(edges)
    )


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_the_activations(name):
    s = activation(name)
    z = np.array([-3.0, -1.1, -0.2, 0.4, 1.3, 5.0])
    step = 1e-6
    numeric = (s.value(z + step) - s.value(z - step)) / (2 * step)
    np.testing.assert_allclose(s.derivative(z), numeric, atol=1e-9)


def test_activations_are_those_of_torch():
    torch = pytest.importorskip("torch")
    z = np.linspace(-6, 6, 41)
    functions = {
        "relu": torch.relu,
        "leaky_relu": torch.nn.functional.leaky_relu,
        "tanh": torch.tanh,
        "erf": torch.erf,
        "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
        "linear": lambda t: t,
    }
    assert functions.keys() == ACTIVATIONS.keys()
    for name, function in functions.items():
        np.testing.assert_allclose(
            activation(name).value(z), function(torch.tensor(z)).numpy(), atol=1e-14
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", VARIANCES)
def test_moments_equal_adaptive_quadrature(name, k):
    s = activation(name)
    expected = brute(lambda z: s.value(z) ** 2, k)
    assert second_moment(name, k) == pytest.approx(expected, rel=1e-10)
    expected = brute(lambda z: s.derivative(z) ** 2, k)
    assert derivative_moment(name, k) == pytest.approx(expected, rel=1e-10)
    expected = brute(lambda z: s.value(z) ** 2 * (z * z - k), k) / (2 * k * k)
    assert second_moment_slope(name, k) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_equal_the_library_quadrature(name):
    s = activation(name)
    k = np.geomspace(1e-3, 1e4, 15)
    np.testing.assert_allclose(
        second_moment(name, k), expectation(lambda z: s.value(z) ** 2, k), rtol=1e-11
    )
    np.testing.assert_allclose(
        derivative_moment(name, k), expectation(lambda z: s.derivative(z) ** 2, k), rtol=1e-11
    )


def test_the_quadrature_trap():
    """⟨tanh'²·…⟩ at K = 4 that 32 Gauss–Hermite nodes get wrong."""
    t, w = np.polynomial.hermite.hermgauss(32)
    for k in (4.0, 100.0):
        exact = brute(lambda z: np.cosh(z) ** -4.0, k)
        assert derivative_moment("tanh", k) == pytest.approx(exact, rel=1e-11)
    fixed = (w @ np.cosh(np.sqrt(200.0) * t) ** -4.0) / np.sqrt(np.pi)
    assert abs(fixed / derivative_moment("tanh", 100.0) - 1) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_moments_at_vanishing_variance(name):
    s = activation(name)
    assert second_moment(name, 0.0) == pytest.approx(float(s.value(np.zeros(1))[0]) ** 2)
    slope = (second_moment(name, 1e-5) - second_moment(name, 0.0)) / 1e-5
    assert second_moment_slope(name, 0.0) == pytest.approx(slope, rel=1e-4)


def test_shapes():
    k = np.ones((2, 3))
    for name in NAMES:
        for function in (second_moment, second_moment_slope, derivative_moment):
            assert function(name, k).shape == (2, 3)
            assert np.ndim(function(name, 1.0)) == 0
        for function in (pair_moment, pair_derivative_moment):
            assert function(name, k, 1.0, 0.5).shape == (2, 3)


def brute_pair(function, a, b, c):
    det = a * b - c * c

    def integrand(v, u):
        density = np.exp(-0.5 * (b * u * u - 2 * c * u * v + a * v * v) / det)
        value = function(np.float64(u)) * function(np.float64(v))
        return float(value) * density / (2 * np.pi * np.sqrt(det))

    u, v = 9 * np.sqrt(a), 9 * np.sqrt(b)
    total = 0.0
    for left, right in ((-u, 0.0), (0.0, u)):
        for low, high in ((-v, 0.0), (0.0, v)):
            total += dblquad(integrand, left, right, low, high, epsabs=1e-9, epsrel=1e-9)[0]
    return total


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "erf", "tanh"])
@pytest.mark.parametrize("pair", [PAIRS[1]])
def test_pairs_equal_adaptive_quadrature(name, pair):
    s = activation(name)
    assert pair_moment(name, *pair) == pytest.approx(brute_pair(s.value, *pair), abs=1e-8)
    expected = brute_pair(s.derivative, *pair)
    assert pair_derivative_moment(name, *pair) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_equal_monte_carlo(name, pair):
    """Five standard errors of 400,000 draws, for s and s'."""
    a, b, c = pair
    generator = np.random.default_rng(5)
    x, y = generator.standard_normal((2, 400_000))
    u = np.sqrt(a) * x
    v = c / np.sqrt(a) * x + np.sqrt(b - c * c / a) * y
    s = activation(name)
    for function, exact in (
        (s.value, pair_moment(name, *pair)),
        (s.derivative, pair_derivative_moment(name, *pair)),
    ):
        draws = function(u) * function(v)
        error = draws.std() / np.sqrt(draws.size)
        assert abs(draws.mean() - exact) <= 5 * error + 1e-12


def test_smooth_closed_pairs_equal_plane_quadrature():
    s = activation("erf")
    for pair in PAIRS:
        assert pair_moment("erf", *pair) == pytest.approx(
            float(pair_expectation(s.value, *pair)), rel=1e-10
        )
        assert pair_derivative_moment("erf", *pair) == pytest.approx(
            float(pair_expectation(s.derivative, *pair)), rel=1e-10
        )


@pytest.mark.parametrize("name", NAMES)
def test_pairs_of_one_input_are_moments(name):
    for k in (0.0, 0.3, 5.0):
        assert pair_moment(name, k, k, k) == pytest.approx(second_moment(name, k), abs=1e-10)
        if k:
            assert pair_derivative_moment(name, k, k, k) == pytest.approx(
                derivative_moment(name, k), rel=1e-7
            )


def test_relu_map_of_the_literature():
    c = np.array([-0.9, 0.0, 0.4, 0.99])
    mapped = (np.sqrt(1 - c**2) + c * (np.pi - np.arccos(c))) / np.pi
    np.testing.assert_allclose(2 * pair_moment("relu", 1.0, 1.0, c), mapped, rtol=1e-12)


def test_quadrature_raises_instead_of_being_wrong():
    with pytest.raises(QuadratureError, match="converge"):
        expectation(lambda z: np.where(z > 0.7371, 1.0, 0.0), 1.0)
    with pytest.raises(QuadratureError, match="grows"):
        expectation(lambda z: np.exp(np.minimum(0.6 * z * z, 650.0)), 1.0)
    with (
        np.errstate(divide="ignore"),
        pytest.raises(QuadratureError, match="not finite"),
    ):
        expectation(lambda z: np.where(np.abs(z) > 2, np.inf, z), 1.0)
    with pytest.raises(QuadratureError, match="converge"):
        pair_expectation(lambda z: np.where(z > 0.3, 1.0, 0.0), 1.0, 1.0, 0.5)
    with pytest.raises(QuadratureError, match="not finite"):
        pair_expectation(lambda z: np.where(z > 2, np.inf, z), 1.0, 1.0, 0.5)


def test_impossible_arguments():
    with pytest.raises(ValueError, match="variance"):
        second_moment("tanh", -1.0)
    with pytest.raises(ValueError, match="covariance"):
        pair_moment("relu", 1.0, 1.0, 1.1)
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        second_moment("swish", 1.0)
