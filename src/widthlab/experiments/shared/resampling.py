"""Bootstrap over draws of whatever is made of means: the draws are resampled, never the grid.

`scaling.bootstrap_interval` takes any statistic and resamples its rows; here a resample is a row
of counts, and all resampled means are one matrix product. That is fast enough for every cell of a
grid at every layer, and functions of several cells (a ratio of two networks' fluctuations) come
with the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

Array = NDArray[np.float64]

RESAMPLES = 500
"""Resamples of the draws. Intervals use their spread, which is then known to 3 %."""


@dataclass(frozen=True)
class Resampled:
    """A statistic, shape (…), and its values on resampled draws, shape (RESAMPLES, …)."""

    value: Array
    resamples: Array

    @property
    def error(self) -> Array:
        """Standard error, shape (…); NaN where a resample is not finite."""
        return np.asarray(self.resamples.std(axis=0, ddof=1))

    def interval(self, level: float, draws: int) -> tuple[Array, Array]:
        """Low and high ends: Student's interval with the bootstrap's standard error."""
        half = student.ppf(0.5 + level / 2, max(draws - 1, 1)) * self.error
        return np.asarray(self.value - half), np.asarray(self.value + half)


def combine(function: Callable[..., Array], *parts: Resampled) -> Resampled:
    """Apply a function that acts on trailing axes to statistics and to all their resamples.

    Statistics of independent draws must have been resampled with different seeds.
    """
    return Resampled(
        np.asarray(function(*(part.value for part in parts))),
        np.asarray(function(*(part.resamples for part in parts))),
    )


def resampled_means(columns: Array, seed: int | Sequence[int]) -> Resampled:
    """Means over draws of columns (draws, …), each over its own finite entries.

    All columns share the resampled draws, so that what is made of several of them is resampled as
    a whole. A column (or a resample of one) without a finite entry has mean NaN.
    """
    draws = len(columns)
    flat = columns.reshape(draws, -1)
    known = np.isfinite(flat)
    filled = np.where(known, flat, 0.0)
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    counts = generator.multinomial(draws, np.full(draws, 1 / draws), size=RESAMPLES)
    weights = np.vstack([np.ones(draws), counts])
    total = weights @ filled
    number = np.broadcast_to(weights.sum(axis=1, keepdims=True), total.shape)
    if not known.all():
        number = weights @ known
    means = np.divide(total, number, out=np.full(total.shape, np.nan), where=number > 0)
    means = means.reshape(RESAMPLES + 1, *columns.shape[1:])
    return Resampled(means[0], means[1:])


def resampled_variances(columns: Array, seed: int | Sequence[int]) -> Resampled:
    """Variances over draws of columns (draws, …), unbiased, as `resampled_means` has means.

    A variance of resampled draws is on average (n − 1)/n of that of the draws, which is put right.
    """
    centre = np.ma.masked_invalid(columns).mean(axis=0)
    centred = columns - np.ma.filled(centre, np.nan)
    finite = np.isfinite(columns).sum(axis=0)
    bessel = np.divide(finite, finite - 1, out=np.full(finite.shape, np.nan), where=finite > 1)
    both = resampled_means(np.stack([centred, centred**2], axis=-1), seed)
    variance = combine(lambda m: m[..., 1] - m[..., 0] ** 2, both)
    return Resampled(variance.value * bessel, variance.resamples * bessel**2)
