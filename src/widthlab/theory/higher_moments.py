"""Gaussian moments of an activation beyond the second: what finite-width corrections are made of.

Notation as in `gaussian`: ⟨f⟩_K is the mean over z ~ N(0, K), g(K) = ⟨s²⟩_K. Variances K may have
any shape, and results have it too. All raise QuadratureError where a quadrature does not converge,
and ValueError for an unknown activation or a K that is no variance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.gaussian import activation, derivative_moment, expectation, second_moment

Array = NDArray[np.float64]

SMALL = 1e-6
"""Variance that stands for 0 in derivatives by K: below it, differences are lost in rounding."""


def square_variance(name: str, variance: ArrayLike) -> Array:
    """Var s² = ⟨s⁴⟩_K − ⟨s²⟩_K², the noise of one layer's signal variance times its width."""
    s, mean = activation(name).value, second_moment(name, variance)[..., None]
    return expectation(lambda z: (s(z) ** 2 - mean) ** 2, variance)


def second_moment_curvature(name: str, variance: ArrayLike) -> Array:
    """g''(K) = ⟨s² (z⁴ − 6Kz² + 3K²)⟩_K / (4K⁴), a quarter of the mean of (s²)''''.

    Valid with kinks too. Roberts, Yaida & Hanin (2022), chapter 4, write C_W g''/2 with 8K⁴.
    """
    s = activation(name)
    slope = float(s.derivative(np.zeros(1))[0])
    k = np.maximum(np.asarray(variance, dtype=np.float64), SMALL)

    def integrand(z: Array) -> Array:
        # z² has no part along the fourth Hermite polynomial: taking it out saves digits
        t = z / np.sqrt(k)[..., None]
        return (s.value(z) ** 2 - slope**2 * z**2) * _fourth(t)

    return np.asarray(expectation(integrand, k) / (4 * k**2))


def fourth_component(name: str) -> Array:
    """⟨s² (z⁴ − 6z² + 3)⟩ at K = 1: how s² feels that normalised neurons are not quite Gaussian."""
    return np.asarray(4.0 * second_moment_curvature(name, 1.0))


def derivative_moment_slope(name: str, variance: ArrayLike) -> Array:
    """d⟨s'²⟩_K/dK = ⟨s'² (z² − K)⟩_K / (2K²); zero for scale-invariant activations."""
    slope = activation(name).derivative
    at_zero = float(slope(np.zeros(1))[0])
    k = np.maximum(np.asarray(variance, dtype=np.float64), SMALL)

    def integrand(z: Array) -> Array:
        return (slope(z) ** 2 - at_zero**2) * (z**2 / k[..., None] - 1)

    return np.asarray(expectation(integrand, k) / (2 * k))


def gradient_noise(name: str, variance: ArrayLike) -> Array:
    """3⟨s'⁴⟩_K − ⟨s'²⟩_K², the variance of s'(z)² ξ² with ξ ~ N(0, 1) apart from z."""
    slope = activation(name).derivative
    fourth = expectation(lambda z: slope(z) ** 4, variance)
    return 3 * fourth - derivative_moment(name, variance) ** 2


def gradient_signal_covariance(name: str, variance: ArrayLike) -> Array:
    """Cov(s'², s²) over z ~ N(0, K)."""
    s, mean = activation(name), second_moment(name, variance)[..., None]
    return expectation(lambda z: s.derivative(z) ** 2 * (s.value(z) ** 2 - mean), variance)


def normalised_square_variance(name: str) -> Array:
    """N·Var of (1/N)Σ s(ẑ_i)² over neurons that are normalised to mean 0 and variance 1.

    Var s² − Cov(s², z)² − Cov(s², (z² − 1)/√2)² at K = 1: the delta method for the mean and the
    standard deviation across neurons, which take out the first two Hermite components of s².
    """
    s = activation(name).value
    first = expectation(lambda z: s(z) ** 2 * z, 1.0)
    second = expectation(lambda z: s(z) ** 2 * (z**2 - 1), 1.0)
    return np.maximum(square_variance(name, 1.0) - first**2 - second**2 / 2, 0.0)


def _fourth(t: Array) -> Array:
    """The fourth Hermite polynomial."""
    t2 = t * t
    fourth: Array = t2 * (t2 - 6) + 3
    return fourth
