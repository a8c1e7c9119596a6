"""What many random tangent kernels of one network say together, with errors over draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

Array = NDArray[np.float64]

BLOCKS = 100
"""Blocks into which draws are put for resampling; each is two halves for the mean's distance."""


@dataclass(frozen=True)
class DiagonalMoments:
    """Θ(x, x) over draws, with inputs averaged within a draw; errors are standard errors.

    Logarithms are of living entries only (Θ > 0), of which `alive` is the share; an input whose
    kernel is dead in every draw has no relative variance.
    """

    mean: float
    mean_error: float
    relative_variance: float
    relative_variance_error: float
    log_variance: float
    log_variance_error: float
    alive: float


def diagonal_moments(kernels: Array) -> DiagonalMoments:
    """Summarise the diagonals of kernels, shape (draws, n, n), all finite; NaN under two draws.

    The relative variance is that of each input, Var Θ/(E Θ)², averaged over inputs; its error is
    the spread over draws of what each draw moves it by, to first order.
    """
    diagonal = np.diagonal(kernels, axis1=1, axis2=2)
    draws = len(diagonal)
    alive = diagonal > 0
    if draws < 2 or not alive.any():
        share = float(alive.mean()) if draws else np.nan
        return DiagonalMoments(np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, share)
    freedom = draws / (draws - 1)
    mean = diagonal.mean(axis=0)
    seen = mean > 0
    relative = diagonal[:, seen] / mean[seen] - 1
    variance = freedom * (relative**2).mean(axis=0)
    moved = relative**2 - 2 * variance * relative
    logs = np.ma.log(np.ma.masked_where(~alive, diagonal))
    squares = freedom * (logs - logs.mean(axis=0)) ** 2
    within = np.asarray(squares.mean(axis=1)[alive.any(axis=1)])
    return DiagonalMoments(
        mean=float(mean.mean()),
        mean_error=_error(diagonal.mean(axis=1)),
        relative_variance=float(variance.mean()),
        relative_variance_error=_error(moved.mean(axis=1)),
        log_variance=float(within.mean()),
        log_variance_error=_error(within),
        alive=float(alive.mean()),
    )


def deviations(kernels: Array, reference: Array) -> Array:
    """Return (Θ − Θ_ref)/‖Θ_ref‖_F of kernels (draws, n, n) as vectors (draws, n(n+1)/2).

    Entries off the diagonal are weighted by √2, so that Euclid's norm is Frobenius's.
    """
    row, column = np.triu_indices(len(reference))
    weight = np.where(row == column, 1.0, np.sqrt(2.0)) / np.linalg.norm(reference)
    vectors: Array = (kernels - reference)[:, row, column] * weight
    return vectors


def squares(vectors: Array) -> Array:
    """Return the mean square distance from the mean of all draws, by blocks of them, (blocks,).

    Stretched so as to be unbiased; the root of the mean over blocks is the fluctuation. NaN for a
    single draw.
    """
    draws = len(vectors)
    stretch = draws / (draws - 1) if draws > 1 else np.nan
    each = stretch * ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1)
    return np.array([part.mean() for part in np.array_split(each, min(BLOCKS, draws))])


def root(values: Array) -> Array:
    """Return the root of the mean of squares (batch, blocks), shape (batch,)."""
    return np.asarray(np.sqrt(values.mean(axis=1)))


def halves(vectors: Array) -> Array:
    """Return means of blocks of draws, (blocks, 2, k), two independent halves in each.

    What `distance` resamples. Blocks are of equal size or differ by one draw; four draws at least
    are needed, else there are no blocks.
    """
    blocks = min(BLOCKS, len(vectors) // 2)
    if blocks < 2:
        return np.empty((0, 2, vectors.shape[1]))
    parts = np.array_split(vectors, 2 * blocks)
    return np.stack([part.mean(axis=0) for part in parts]).reshape(blocks, 2, -1)


def distance(values: Array) -> Array:
    """Return |E v| from halves (batch, blocks, 2, k), without the noise of the mean; (batch,).

    The product of the means of independent halves has the mean |E v|², and keeps it when blocks
    are resampled, which a sum of squares less its noise does not. Zero where it is negative.
    """
    first, second = np.moveaxis(values.mean(axis=1), 1, 0)
    return np.asarray(np.sqrt(np.maximum((first * second).sum(axis=1), 0.0)))


def condition_numbers(kernels: Array) -> Array:
    """Return λ_max/λ_min of kernels (…, n, n), shape (…); infinite where a kernel is singular."""
    eigenvalues = np.linalg.eigvalsh(kernels)
    smallest, largest = eigenvalues[..., 0], eigenvalues[..., -1]
    least = kernels.shape[-1] * np.finfo(np.float64).eps * largest
    regular = smallest > least
    return np.where(regular, largest / np.where(regular, smallest, 1.0), np.inf)


def median_interval(values: Array, level: float = 0.95) -> tuple[float, float, float]:
    """Return the median of values (draws,) and an interval that holds for any distribution.

    Its ends are order statistics, the numbers of draws below the true median being binomial;
    infinite values count as such. NaN where there are none; with few draws the interval is the
    range, of less than the level.
    """
    ranked = np.sort(values)
    draws = len(ranked)
    if draws == 0:
        return np.nan, np.nan, np.nan
    below = int(binom.ppf(0.5 - level / 2, draws, 0.5))
    first = max(below - 1, 0)
    middle = ranked[[(draws - 1) // 2, draws // 2]]
    return float(middle.mean()), float(ranked[first]), float(ranked[draws - 1 - first])


def _error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))
