"""What many random draws of a network say together, with errors over draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SignalMoments:
    """Signal variance q over draws, by layer; arrays of shape (layers,).

    Errors are standard errors over draws. Logarithms and squares are of the ratio q_l / q_0.
    """

    mean: Array
    mean_error: Array
    median: Array
    square: Array
    square_error: Array
    log_mean: Array
    log_mean_error: Array
    log_median: Array
    log_variance: Array
    log_variance_error: Array
    alive: Array
    """Share of draws and inputs whose signal is finite and not zero."""


def signal_moments(q: Array) -> SignalMoments:
    """Summarise signal variances, shape (draws, layers, inputs).

    The inputs of one draw share its weights, so they are averaged within the draw first. Dead
    signals (q = 0) count in means and squares and are left out of logarithms; signals that are not
    finite are left out of everything. `alive` tells how many are neither.
    """
    ratio = np.divide(q, q[:, :1], out=np.full(q.shape, np.nan), where=q[:, :1] > 0)
    alive = np.isfinite(ratio) & (ratio > 0)
    log = np.log(np.where(alive, ratio, 1.0))
    log[~alive] = np.nan
    within = _mean(log, 2)
    # Var over draws of each input, by its squared deviations, averaged over inputs.
    draws = max(len(q), 2)
    squares = _mean((log - _mean(log, 0)) ** 2, 2) * draws / (draws - 1)
    return SignalMoments(
        mean=_mean(_mean(q, 2), 0),
        mean_error=_error(_mean(q, 2)),
        median=np.median(q, axis=(0, 2)),
        square=_mean(_mean(ratio**2, 2), 0),
        square_error=_error(_mean(ratio**2, 2)),
        log_mean=_mean(within, 0),
        log_mean_error=_error(within),
        log_median=_median(log),
        log_variance=_mean(squares, 0),
        log_variance_error=_error(squares),
        alive=alive.mean(axis=(0, 2)),
    )


def log_ratio(q: Array, layer: int) -> Array:
    """Return log(q_l / q_0) at one layer, shape (draws, inputs); NaN where the signal is dead."""
    first, last = q[:, 0], q[:, layer]
    alive = (first > 0) & (last > 0) & np.isfinite(last)
    ratio = np.where(alive, last, 1.0) / np.where(alive, first, 1.0)
    return np.where(alive, np.log(ratio), np.nan)


def _mean(values: Array, axis: int) -> Array:
    """Mean of the finite values over an axis; NaN where there is none."""
    return np.asarray(np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan))


def _median(values: Array) -> Array:
    """Median over draws and inputs of (draws, layers, inputs) without what is not finite."""
    each = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
    finite = [layer[np.isfinite(layer)] for layer in each]
    return np.array([np.median(layer) if layer.size else np.nan for layer in finite])


def _error(values: Array) -> Array:
    """Standard error of the mean over draws (axis 0) of the finite values."""
    masked = np.ma.masked_invalid(values)
    spread = np.ma.filled(masked.std(axis=0, ddof=1), np.nan)
    return np.asarray(spread / np.sqrt(np.maximum(masked.count(axis=0), 1)))
