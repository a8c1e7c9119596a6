"""Bounds that are sums of terms, as a/L + b·√(D/(ML)), fitted to errors with their residuals.

An error whose independent parts add in quadrature lies between 1/√k of the sum of its k parts and
the sum itself. So a bound of k terms that is tight describes all errors within a factor of √k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

Array = NDArray[np.float64]

RESAMPLES = 200
"""Resamples of the seeds: the interval is of the worst point, which needs no fine percentiles."""


@dataclass(frozen=True)
class SumFit:
    """y ≈ Σ_k c_k x_k with c_k ≥ 0, fitted to log y with equal weights."""

    coefficients: Array
    """c_k (terms,)."""
    ratios: Array
    """y over the fit (points,)."""
    low: float = np.nan
    """Lower end of the 95 % interval over seeds of `factor`."""
    high: float = np.nan
    """Upper end."""
    intervals: Array | None = None
    """95 % intervals of the coefficients (terms, 2)."""

    @property
    def factor(self) -> float:
        """The factor within which the fit describes every point: the largest of y/fit, fit/y."""
        return float(np.exp(np.abs(np.log(self.ratios)).max()))


def fit_sum(terms: Array, y: Array) -> SumFit:
    """Fit positive y (points,) by terms (points, terms), all positive."""
    relative = terms / y[:, None]
    start, _ = nnls(relative, np.ones(len(y)))
    start = np.maximum(start, 1e-6 / relative.mean(0))
    scale = 1 / relative.mean(0)
    found = least_squares(
        lambda c: np.log(relative @ (c * scale)),
        start / scale,
        bounds=(1e-12, np.inf),
        xtol=1e-10,
    )
    coefficients = np.where(found.x > 1e-9, found.x, 0.0) * scale  # at its bound: no such term
    return SumFit(coefficients, y / (terms @ coefficients))


def fit_sum_of_seeds(terms: Array, squares: Sequence[Array], seed: int = 0) -> SumFit:
    """Fit root mean squares of seeds, `squares` having one array (seeds,) for each point.

    The interval comes from resampling the seeds of every point.
    """
    y = np.array([np.sqrt(own.mean()) for own in squares])
    fit = fit_sum(terms, y)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    factors, coefficients = [], []
    for _ in range(RESAMPLES):
        drawn = [np.sqrt(own[generator.integers(0, len(own), len(own))].mean()) for own in squares]
        again = fit_sum(terms, np.array(drawn))
        factors.append(again.factor)
        coefficients.append(again.coefficients)
    low, high = np.quantile(factors, [0.025, 0.975])
    return SumFit(
        fit.coefficients,
        fit.ratios,
        float(min(low, fit.factor)),
        float(max(high, fit.factor)),
        np.quantile(coefficients, [0.025, 0.975], axis=0).T,
    )
