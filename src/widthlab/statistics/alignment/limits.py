"""Confidence limits of alignment moments, dimensions and bounds, by the jackknife over samples.

With a = m₁·m₂ and a variance v linear in the spreads and the noise, every dimension and bound is
a function of λ = a/√v: d_∥ and d₂ are λ² for v the spread or the noise, and B_exact = 1/(1 + λ²).
The limits of λ invert a test, as Fieller's do: λ is kept where

    |a − λ√v| ≤ t · se(a − λ√v),

with the delete-one standard error, so that the limits exist and are honest where v is known badly
or a is near 0 (then the lower limit is 0). Fieller (1954); Efron & Stein (1981).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from widthlab.statistics.alignment.gram_moments import Estimates, GramMoments

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Jackknife:
    """Unbiased estimates of (signal, train spread, test spread, noise) with their covariance."""

    parts: Array
    """(rows, 4)."""
    covariance: Array
    """(rows, 4, 4); NaN where too few samples are left out of."""
    quantile: float
    """Student's t of one limit, with as many degrees of freedom as the smaller group less one."""

    @classmethod
    def of(cls, estimates: Estimates, error_rate: float) -> Jackknife:
        """Return the jackknife over samples, training and test samples apart where laws differ."""
        parts = _parts(estimates.unbiased)
        covariance = np.zeros((*parts.shape, 4))
        for group in estimates.left_out:
            values = _parts(group)
            n = values.shape[1]
            deviations = values - values.mean(axis=1, keepdims=True)
            covariance += (n - 1) / n * (deviations.mT @ deviations)
        smallest = min(group.signal.shape[1] for group in estimates.left_out)
        return cls(parts, covariance, float(student.ppf(1 - error_rate, smallest - 1)))

    def interval(self, part: int) -> tuple[Array, Array]:
        """Return lower and upper limits of one part, shape (rows,)."""
        half = self.quantile * np.sqrt(self.covariance[:, part, part])
        return self.parts[:, part] - half, self.parts[:, part] + half

    def ratio(self, weights: tuple[float, float, float]) -> tuple[Array, Array]:
        """Return lower and upper limits of λ² = a²/v, v = weights · (spreads, noise), (rows,).

        Where the estimate of v is not positive or there is no covariance, nothing is known: 0 and
        infinity. Where all weights are 0, as for pools that are used up, v is 0 whatever the
        moments are, and a positive lower limit of the signal is enough for both to be infinite.
        """
        c = np.array([0.0, *weights])
        if not c.any():
            found = np.isfinite(self.covariance).all(axis=(1, 2)) & (self.interval(0)[0] > 0)
            return np.where(found, np.inf, 0.0), np.full(len(found), np.inf)
        a, v = self.parts[:, 0], self.parts @ c
        known = (v > 0) & np.isfinite(self.covariance).all(axis=(1, 2))
        v = np.where(known, v, 1.0)
        covariance = np.where(known[:, None, None], self.covariance, 0.0)
        root, t2 = np.sqrt(v), self.quantile**2
        mixed = covariance[:, 0] @ c / (2 * root)
        spread = np.einsum("i,rij,j->r", c, covariance, c) / (4 * v)
        # (a − λ√v)² = t²·se²: p λ² − 2q λ + r = 0.
        p, q = v - t2 * spread, a * root - t2 * mixed
        r = a**2 - t2 * covariance[:, 0, 0]
        discriminant = np.sqrt(np.maximum(q**2 - p * r, 0.0))
        away = known & (a > 0) & (r > 0)
        low = np.where(away, r / np.where(away, q + discriminant, 1.0), 0.0)
        bounded = known & (p > 0)
        high = np.where(bounded, (q + discriminant) / np.where(bounded, p, 1.0), np.inf)
        return np.maximum(low, 0.0) ** 2, np.maximum(high, 0.0) ** 2


def _parts(moments: GramMoments) -> Array:
    parts = (moments.signal, moments.train_spread, moments.test_spread, moments.noise)
    return np.stack(parts, axis=-1)
