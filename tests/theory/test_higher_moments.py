"""Gaussian moments of corrections against differences of the lower ones and large samples."""

import numpy as np
import pytest

from widthlab.theory.gaussian import (
    ACTIVATIONS,
    derivative_moment,
    second_moment,
    second_moment_slope,
)
from widthlab.theory.higher_moments import (
    derivative_moment_slope,
    fourth_component,
    gradient_noise,
    gradient_signal_covariance,
    normalised_square_variance,
    second_moment_curvature,
    square_variance,
)

NAMES = tuple(ACTIVATIONS)
K = np.array([0.05, 1.0, 6.0])


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_by_the_variance(name):
    """g'' and d⟨s'²⟩/dK equal central differences of g' and ⟨s'²⟩."""
    step = 1e-4 * K

    def difference(function):
        return (function(name, K + step) - function(name, K - step)) / (2 * step)

    np.testing.assert_allclose(
        second_moment_curvature(name, K), difference(second_moment_slope), rtol=1e-5, atol=1e-8
    )
    np.testing.assert_allclose(
        derivative_moment_slope(name, K), difference(derivative_moment), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("name", NAMES)
def test_moments_of_samples(name):
    """Five standard errors of a million draws."""
    generator = np.random.default_rng(1)
    z, xi = generator.standard_normal((2, 1_000_000))
    s = ACTIVATIONS[name]
    for k in K:
        value, slope = s.value(np.sqrt(k) * z), s.derivative(np.sqrt(k) * z)
        g = second_moment(name, k)
        for draws, exact in (
            ((value**2 - g) ** 2, square_variance(name, k)),
            (slope**2 * (value**2 - g), gradient_signal_covariance(name, k)),
            ((slope**2 * xi**2 - derivative_moment(name, k)) ** 2, gradient_noise(name, k)),
        ):
            assert abs(draws.mean() - exact) <= 5 * draws.std() / 1000 + 1e-12


def test_small_variances():
    """tanh: s² = z² − ⅔z⁴ + …, so g'' → −4 and d⟨s'²⟩/dK → −2 at K = 0."""
    for k in (0.0, 1e-9, 1e-6):
        assert second_moment_curvature("tanh", k) == pytest.approx(-4, rel=1e-4)
        assert derivative_moment_slope("tanh", k) == pytest.approx(-2, rel=1e-4)
    assert second_moment_curvature("relu", 0.0) == pytest.approx(0, abs=1e-6)


def test_normalised_neurons():
    """A normalised linear layer has no fluctuation left; relu from the moments by hand."""
    assert normalised_square_variance("linear") == pytest.approx(0, abs=1e-12)
    first, second = np.sqrt(2 / np.pi), 1.0
    expected = 1.25 - first**2 - second**2 / 2
    assert normalised_square_variance("relu") == pytest.approx(expected)
    assert fourth_component("linear") == pytest.approx(0, abs=1e-9)
