"""Where a measured curve crosses a level, with the resamples that tell how well that is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from widthlab.experiments.shared.resampling import Resampled

Array = NDArray[np.float64]


def first_above(x: Array, curves: Array, level: float) -> Array:
    """Return where curves (…, points) first rise from below a level, in log–log between points.

    `x` (points,) rises and is positive; curves are logarithms, and so is the level. NaN where a
    curve does not cross, or starts above it. Shape (…).
    """
    flat = np.nan_to_num(curves.reshape(-1, curves.shape[-1]), nan=-np.inf, posinf=np.inf)
    above = flat >= level
    at = np.argmax(above, axis=-1)
    rows = np.arange(len(flat))
    good = above.any(axis=-1) & (at > 0)
    before = np.maximum(at - 1, 0)
    low, high = flat[rows, before], flat[rows, at]
    good &= np.isfinite(low)
    # A value that is infinite lies infinitely far: the crossing is at the point before.
    step = np.subtract(high, low, out=np.full(len(flat), np.inf), where=good & np.isfinite(high))
    share = np.divide(level - low, step, out=np.zeros(len(flat)), where=good)
    place = np.log(x)[before] + share * (np.log(x)[at] - np.log(x)[before])
    return np.asarray(np.where(good, np.exp(place), np.nan)).reshape(curves.shape[:-1])


def fall_from_peak(x: Array, curves: Array, share: float) -> Array:
    """Return where curves (…, points), logarithms, have fallen to a share of their maximum.

    Looked for beyond the maximum only; NaN where they do not fall so far. Shape (…).
    """
    known = np.isfinite(curves)
    filled = np.where(known, curves, -np.inf)
    peak = np.argmax(filled, axis=-1)
    top = np.max(filled, axis=-1)
    # Before the peak nothing can have fallen from it; what is not known ends the curve.
    places = np.arange(curves.shape[-1])
    hidden = places < peak[..., None]
    drop = np.full(curves.shape, np.nan)
    np.subtract(top[..., None], curves, out=drop, where=known)
    drop[hidden] = 0.0
    return first_above(x, drop, -np.log(share))


def widened(found: Resampled, draws: int) -> Resampled:
    """Stretch the resamples of positive numbers about their estimate, for few draws.

    Percentiles of a plain bootstrap of n draws are too narrow by √((n − 1)/n), and by Student's t
    of n − 1 degrees of freedom against the normal's, here at 95 %.
    """
    if draws < 2:
        return Resampled(found.value, np.full_like(found.resamples, np.nan))
    stretch = np.sqrt(draws / (draws - 1)) * student.ppf(0.975, draws - 1) / norm.ppf(0.975)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(found.value) + stretch * (np.log(found.resamples) - np.log(found.value))
    return Resampled(found.value, np.exp(logs))
