"""The law of μ_M·g_K, and what it certifies: does a direction from M samples help on K others?

q are activation gradients, μ_M the mean of M training samples, g_K that of K independent test
samples. A step along −μ_M lowers the held-out loss to first order iff μ_M·g_K > 0. With means m₁,
m₂ and covariances Σ₁, Σ₂ of the training and test laws, second moments suffice for

    E μ_M·g_K = m₁·m₂,   Var μ_M·g_K = f₁ m₂'Σ₁m₂ + f₂ m₁'Σ₂m₁ + f₁f₂ tr Σ₁Σ₂,

f₁ = 1/M and f₂ = 1/K; and Cantelli's inequality bounds Pr(μ_M·g_K ≤ 0). For draws without
replacement from pools of B and B' samples, means and covariances (divided by B − 1) are those of
the pools, and f₁ = (1 − M/B)/M, f₂ = (1 − K/B')/K. Source: the project's theory, section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AlignmentMoments:
    """What the law of μ_M·g_K depends on; numbers, or arrays of one shape.

    Units are those of the loss over those of the activation, to the power 2 (`signal`) or 4.
    """

    signal: ArrayLike
    """m₁·m₂; |μ|² where the laws are equal."""
    train_spread: ArrayLike
    """m₂'Σ₁m₂: variance of a training gradient along the test mean; μ'Σμ for equal laws."""
    test_spread: ArrayLike
    """m₁'Σ₂m₁: variance of a test gradient along the training mean; μ'Σμ for equal laws."""
    noise: ArrayLike
    """tr Σ₁Σ₂; tr Σ² for equal laws."""

    @classmethod
    def of_equal_laws(
        cls, signal: ArrayLike, spread: ArrayLike, noise: ArrayLike
    ) -> AlignmentMoments:
        """Return the moments of one law: |μ|², μ'Σμ and tr Σ²."""
        return cls(signal, spread, spread, noise)


@dataclass(frozen=True)
class Dimensions:
    """Effective alignment dimensions (dimensionless), of the moments' shape."""

    parallel: Array
    """d_∥ = |μ|⁴/μ'Σμ; for different laws (m₁·m₂)² over the larger spread."""
    second: Array
    """d₂ = |μ|⁴/tr Σ²."""

    @property
    def align(self) -> Array:
        """d_align, the smaller of the two."""
        return np.minimum(self.parallel, self.second)


def sampling_factor(samples: ArrayLike, pool: float = math.inf) -> Array:
    """Return f = (1 − M/B)/M, the variance of a mean of M of a pool's B samples over their own.

    An infinite pool, or independent draws, has f = 1/M. Raises ValueError where M < 1 or M > B.
    """
    m = np.asarray(samples, dtype=np.float64)
    if np.any(m < 1) or np.any(m > pool):
        raise ValueError(f"samples must be from 1 to the pool's {pool:g}, not {m.tolist()}")
    return np.asarray((1.0 - m / pool) / m)


def alignment_variance(moments: AlignmentMoments, f1: ArrayLike, f2: ArrayLike) -> Array:
    """Return Var μ_M·g_K, exact, for factors f₁ and f₂ of `sampling_factor`.

    Shapes broadcast.
    """
    a, b = np.asarray(f1, dtype=np.float64), np.asarray(f2, dtype=np.float64)
    train, test, noise = (
        np.asarray(part, dtype=np.float64)
        for part in (moments.train_spread, moments.test_spread, moments.noise)
    )
    return np.asarray(a * train + b * test + a * b * noise)


def cantelli_bound(mean: ArrayLike, variance: ArrayLike) -> Array:
    """Return v/(v + mean²) ≥ Pr(X ≤ 0) for a mean > 0; 1 for any other, or where v is NaN.

    With the variance of `alignment_variance` this is B_exact. Cantelli (1929).
    """
    m, v = np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    usable = (m > 0) & (v >= 0)
    safe_m, safe_v = np.where(usable, m, 1.0), np.where(usable, v, 1.0)
    return np.where(usable, safe_v / (safe_v + safe_m**2), 1.0)


def effective_samples(f1: ArrayLike, f2: ArrayLike) -> Array:
    """Return n_eff = 1/(f₁ + f₂ + f₁f₂), which is MK/(M + K + 1) for independent draws.

    Infinite where both pools are used up.
    """
    a, b = np.asarray(f1, dtype=np.float64), np.asarray(f2, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / (a + b + a * b))


def dimensions(moments: AlignmentMoments) -> Dimensions:
    """Return d_∥ and d₂; 0 where the signal is not positive, NaN where a variance is not.

    Var/mean² ≤ (f₁ + f₂ + f₁f₂)/d_align, so that `alignment_bound` is never below B_exact.
    """
    signal = np.asarray(moments.signal, dtype=np.float64)
    square = np.where(signal > 0, signal, 0.0) ** 2
    spread = np.maximum(moments.train_spread, moments.test_spread)
    return Dimensions(_ratio(square, spread), _ratio(square, moments.noise))


def alignment_bound(d_align: ArrayLike, f1: ArrayLike, f2: ArrayLike) -> Array:
    """Return B_align = 1/(1 + n_eff d_align) ≥ Pr(μ_M·g_K ≤ 0); 1 where d_align is not positive."""
    d = np.asarray(d_align, dtype=np.float64)
    usable = d > 0
    bound = 1.0 / (1.0 + effective_samples(f1, f2) * np.where(usable, d, 1.0))
    return np.where(usable, bound, 1.0)


def samples_needed(moments: AlignmentMoments, target: float) -> int | None:
    """Return the smallest M = K with B_exact ≤ target, or None where no number suffices.

    B_exact ≤ b means M² c − M (m₂'Σ₁m₂ + m₁'Σ₂m₁) − tr Σ₁Σ₂ ≥ 0 with c = (m₁·m₂)² b/(1 − b).
    None where the signal or `noise` is not positive, a spread negative, or a moment not finite.
    Raises ValueError for a target outside (0, 1).
    """
    if not 0 < target < 1:
        raise ValueError(f"the target of a bound must lie between 0 and 1, not {target}")
    signal, train, test, noise = (
        float(np.asarray(part))
        for part in (
            moments.signal,
            moments.train_spread,
            moments.test_spread,
            moments.noise,
        )
    )
    usable = math.isfinite(signal + train + test + noise)
    if not usable or signal <= 0 or train < 0 or test < 0 or noise < 0:
        return None
    c, spread = signal**2 * target / (1 - target), train + test
    root = (spread + math.sqrt(spread**2 + 4 * c * noise)) / (2 * c)
    if not math.isfinite(root):
        return None
    # The exact root of a whole number may come out a rounding error above it.
    return max(1, math.ceil(root * (1 - 1e-12)))


def _ratio(square: Array, variance: ArrayLike) -> Array:
    v = np.asarray(variance, dtype=np.float64)
    positive = v > 0
    return np.where(positive, square / np.where(positive, v, 1.0), np.nan)
