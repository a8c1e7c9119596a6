"""How a measured quantity scales: power-law fits and bootstrap intervals over seeds.

The one place of the package where a slope is fitted. Intervals come from resampling seeds within
each width (never widths), because the seeds are the repetitions. With few seeds the plain
percentile bootstrap is too narrow (it covers 80 % instead of 95 % at four seeds), so it is widened
twice, after Hesterberg (2015), "What teachers should know about the bootstrap": deviations are
stretched by √(n/(n−1)), and the percentiles are those of Student's t. The weights are fitted
again in every resample, since they too come from the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import f as fisher
from scipy.stats import norm
from scipy.stats import t as student

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From samples of shape (batch, seeds, …) to one number per batch, shape (batch,)."""

NAN = float("nan")

STATISTICS: dict[str, Statistic] = {
    "mean": lambda values: values.mean(axis=1),
    "median": lambda values: np.asarray(np.median(values, axis=1)),
    "rms": lambda values: np.sqrt(np.mean(values**2, axis=1)),
}
"""Statistics over seeds by name."""

PRIOR_FREEDOM = 4.0
"""Degrees of freedom by which a group's log-variance is drawn towards that of all groups."""

_BATCH = 2_000_000  # numbers resampled at once, so that memory stays bounded


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, and how many samples were finite of how many."""

    value: float
    low: float
    high: float
    finite: int
    total: int
    reason: str = ""
    """Why value or interval is NaN; empty where neither is."""


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """y = prefactor · x^exponent fitted in log–log, with what is needed to judge the fit.

    Tuples run over x in the order given. NaN stands for what could not be computed, and `reason`
    says why.
    """

    exponent: float = NAN
    low: float = NAN
    high: float = NAN
    prefactor: float = NAN
    x: tuple[float, ...]
    y: tuple[float, ...]
    log_error: tuple[float, ...] = ()
    """Standard errors of log y that set the weights: 0 where no x has a spread, NaN if unused."""
    finite: tuple[int, ...]
    total: tuple[int, ...]
    used: tuple[bool, ...]
    """Whether the point entered the fit."""
    misfit: float = NAN
    """χ² per degree of freedom of the points about the line; NaN with fewer than three."""
    misfit_p: float = NAN
    """Probability of a misfit as large were the law exact."""
    curvature: float = NAN
    """Coefficient of (log x)² in a quadratic fit; a power law has 0."""
    local_slopes: tuple[float, ...] = ()
    """Slopes between neighbouring points that entered the fit, by increasing x."""
    reason: str = ""
    """What went wrong or was left out, in words; empty where nothing was."""

    @property
    def straight(self) -> bool:
        """Whether the points are consistent with a power law (misfit_p ≥ 0.01, or unknown)."""
        return not self.misfit_p < 0.01


@dataclass(frozen=True)
class _Group:
    """The finite samples of one x and their bootstrap."""

    y: float
    log_variance: float
    freedom: int
    resampled: Array
    """Resampled values of the statistic, shape (resamples,)."""
    resampled_variance: Array
    """Variance of log y as each resample would estimate it, shape (resamples,)."""


def fit_power_law(
    x: ArrayLike,
    samples: Sequence[ArrayLike],
    *,
    statistic: str | Statistic = "mean",
    weights: Literal["spread", "equal"] = "spread",
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> PowerLaw:
    """Fit y(x) = statistic over seeds of samples[x] to a power law, with a bootstrap interval.

    x: shape (n,), positive. samples: one array per x, of shape (seeds,) or (seeds, …); lengths may
    differ. A seed with a non-finite entry is counted and left out. `statistic` is a name of
    STATISTICS or a function as described at `Statistic`. With weights "spread" a point weighs
    1/Var(log y), estimated from its seeds and drawn towards the average of all points (by
    PRIOR_FREEDOM), which keeps few seeds from setting wild weights; a point with one seed takes
    the average.

    Too little data gives NaN and a reason, never an error: no interval where no x has two seeds,
    no slope where fewer than two x have a positive finite y. ValueError for arguments that cannot
    be meant (an x that is not positive, lengths that differ, an unknown statistic).
    """
    points = np.asarray(x, dtype=np.float64)
    if points.ndim != 1 or len(points) != len(samples):
        raise ValueError("x and samples must have the same length")
    if not np.all(np.isfinite(points) & (points > 0)):
        raise ValueError("every x must be finite and positive")
    function = _statistic(statistic)
    arrays = [_array(sample) for sample in samples]
    kept = [array[_finite_rows(array)] for array in arrays]
    generators = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(len(kept))]
    groups = [
        _bootstrap(values, function, resamples, generator)
        for values, generator in zip(kept, generators, strict=True)
    ]
    y = np.array([group.y for group in groups])
    used = np.isfinite(y) & (y > 0)
    notes = _notes(points, arrays, kept, y)
    data = PowerLaw(
        x=tuple(points.tolist()),
        y=tuple(y.tolist()),
        finite=tuple(len(values) for values in kept),
        total=tuple(len(array) for array in arrays),
        used=tuple(used.tolist()),
    )
    if len(np.unique(points[used])) < 2:
        notes.insert(0, "fewer than two x have a positive finite value, so there is no slope")
        return replace(data, reason="; ".join(notes))

    fitted = [group for group, use in zip(groups, used, strict=True) if use]
    log_x = np.log(points[used])
    log_y = np.log(y[used])
    freedom = np.array([group.freedom for group in fitted])
    variance = _moderated(np.array([[group.log_variance] for group in fitted]), freedom)[:, 0]
    weight = np.ones_like(log_x) if weights == "equal" else _weights(variance)
    slope_of = _slope_coefficients(log_x, weight[:, None])[:, 0]
    exponent = float(slope_of @ log_y)
    intercept = float(np.average(log_y, weights=weight) - exponent * _mean(log_x, weight))
    low, high, problem = _slope_interval(
        fitted, log_x, log_y, exponent, slope_of, variance, weights, level
    )
    if problem:
        notes.insert(0, problem)
    residual = log_y - intercept - exponent * log_x
    misfit, misfit_p = _misfit(residual, variance, freedom, len(np.unique(log_x)) - 2)
    order = np.argsort(log_x, kind="stable")
    steps = np.diff(log_x[order])
    slopes = np.diff(log_y[order])[steps > 0] / steps[steps > 0]
    log_error = np.full(len(points), NAN)
    log_error[used] = np.sqrt(variance)
    return replace(
        data,
        exponent=exponent,
        low=low,
        high=high,
        prefactor=float(np.exp(intercept)),
        log_error=tuple(log_error.tolist()),
        misfit=misfit,
        misfit_p=misfit_p,
        curvature=_curvature(log_x, log_y, weight),
        local_slopes=tuple(slopes.tolist()),
        reason="; ".join(notes),
    )


def fit_estimates(
    x: ArrayLike, estimates: ArrayLike, resampled: Sequence[ArrayLike], *, level: float = 0.95
) -> PowerLaw:
    """Fit estimates y (n,) that come with resamples of their own, in log–log with equal weights.

    `resampled` has one array for each x, all of one length, or of length 1 for a y that is known
    exactly. Its percentiles are the interval; a resample that is not positive and finite could lie
    anywhere, so it counts in both tails. An x whose y is not positive and finite is left out.
    """
    points, y = np.asarray(x, dtype=np.float64), np.asarray(estimates, dtype=np.float64)
    used = np.isfinite(y) & (y > 0)
    data = PowerLaw(
        x=tuple(points.tolist()),
        y=tuple(y.tolist()),
        finite=tuple(int(u) for u in used),
        total=(1,) * len(y),
        used=tuple(used.tolist()),
    )
    if len(np.unique(points[used])) < 2:
        return replace(data, reason="fewer than two x have a value, so there is no slope")
    log_x, log_y = np.log(points[used]), np.log(y[used])
    slope_of = _slope_coefficients(log_x, np.ones((len(log_x), 1)))[:, 0]
    exponent = float(slope_of @ log_y)
    kept = [
        np.asarray(own, dtype=np.float64) for own, use in zip(resampled, used, strict=True) if use
    ]
    drawn = np.stack(np.broadcast_arrays(*kept))
    good = np.isfinite(drawn) & (drawn > 0)
    slopes = slope_of @ np.log(np.where(good, drawn, 1.0))
    lost, tail = ~good.all(axis=0), (1 - level) / 2
    low = float(np.quantile(np.where(lost, -np.inf, slopes), tail, method="lower"))
    high = float(np.quantile(np.where(lost, np.inf, slopes), 1 - tail, method="higher"))
    reason = ""
    if not np.isfinite([low, high]).all():
        low, high, reason = NAN, NAN, "too many resamples have no value, so there is no interval"
    order = np.argsort(log_x)
    return replace(
        data,
        exponent=exponent,
        low=low,
        high=high,
        prefactor=float(np.exp(log_y.mean() - exponent * log_x.mean())),
        local_slopes=tuple((np.diff(log_y[order]) / np.diff(log_x[order])).tolist()),
        curvature=_curvature(log_x, log_y, np.ones_like(log_x)),
        reason=reason,
    )


def bootstrap_interval(
    samples: ArrayLike,
    statistic: str | Statistic = "mean",
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """A statistic over seeds with a bootstrap interval.

    At either end it is the wider of two: the widened percentile interval (see the module), and
    Student's with the bootstrap's standard error, because resamples of one small group cannot
    reach far enough into the tails.

    samples: shape (seeds,) or (seeds, …). Non-finite seeds are counted and left out. Fewer than
    two finite ones give a NaN interval and a reason.
    """
    array = _array(samples)
    values = array[_finite_rows(array)]
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    group = _bootstrap(values, _statistic(statistic), resamples, generator)
    if len(values) < 2:
        return Interval(group.y, NAN, NAN, len(values), len(array), _few(len(values), len(array)))
    deviations = _stretch(len(values)) * (group.resampled - group.y)
    if not np.all(np.isfinite(deviations)):
        reason = "the statistic is not finite on some resamples of the seeds"
        return Interval(group.y, NAN, NAN, len(values), len(array), reason)
    low, high = np.quantile(group.y + deviations, _levels(level, len(values) - 1))
    half = student.ppf(0.5 + level / 2, len(values) - 1) * np.sqrt(np.mean(deviations**2))
    low, high = float(min(low, group.y - half)), float(max(high, group.y + half))
    return Interval(group.y, low, high, len(values), len(array))


def mean_interval(samples: ArrayLike, *, level: float = 0.95) -> Interval:
    """The mean of samples, shape (n,), with Student's t interval.

    Non-finite samples are counted and left out; fewer than two finite ones give a NaN interval and
    a reason.
    """
    array = _array(samples).ravel()
    values = array[np.isfinite(array)]
    mean = float(values.mean()) if len(values) else NAN
    if len(values) < 2:
        return Interval(mean, NAN, NAN, len(values), len(array), _few(len(values), len(array)))
    error = values.std(ddof=1) / np.sqrt(len(values))
    half = float(student.ppf(0.5 + level / 2, len(values) - 1) * error)
    return Interval(mean, mean - half, mean + half, len(values), len(array))


# ── the bootstrap ───────────────────────────────────────────────────────────────────────────


def _bootstrap(
    values: Array, statistic: Statistic, resamples: int, generator: np.random.Generator
) -> _Group:
    """Resample the seeds of one group; the variance of log y by the delta method."""
    n = len(values)
    if n == 0:
        return _Group(NAN, NAN, 0, np.full(resamples, NAN), np.full(resamples, NAN))
    estimate = float(statistic(values[None])[0])
    if n == 1:
        return _Group(estimate, NAN, 0, np.full(resamples, estimate), np.full(resamples, NAN))
    size = max(1, _BATCH // values.size)
    drawn: list[Array] = []
    spread: list[Array] = []
    influence = _influence(values, statistic, estimate)
    for start in range(0, resamples, size):
        rows = generator.integers(0, n, size=(min(size, resamples - start), n))
        drawn.append(statistic(values[rows]))
        spread.append(influence[rows].var(axis=1, ddof=1) / n)
    y = np.concatenate(drawn)
    variance, resampled_variance = float(influence.var(ddof=1) / n), np.concatenate(spread)
    if statistic is not STATISTICS["mean"] and variance > 0 and np.all(np.isfinite(y)):
        # the jackknife is only a shape here: it misjudges the size for statistics like the median
        size_of = float(y.var()) * n / (n - 1)
        variance, resampled_variance = size_of, resampled_variance * (size_of / variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_variance = float(np.divide(variance, estimate**2))
        log_resampled_variance = resampled_variance / np.square(y)
    return _Group(estimate, log_variance, n - 1, y, log_resampled_variance)


def _influence(values: Array, statistic: Statistic, estimate: float) -> Array:
    """Jackknife pseudo-values, shape (n,): their variance over n is that of the statistic.

    For the mean they are the samples. Long samples are taken in blocks of seeds, so that the cost
    stays linear.
    """
    n = len(values)
    if statistic is STATISTICS["mean"]:
        return values
    blocks = np.arange(n) % min(n, 200)
    pseudo = np.empty(n)
    for block in np.unique(blocks):
        inside = blocks == block
        without = float(statistic(values[~inside][None])[0])
        share = float(inside.sum())
        # scaled so that n pseudo-values spread as n independent samples would
        pseudo[inside] = np.sqrt((n - share) * (n - 1) / share) * (estimate - without)
    return pseudo


def _slope_interval(
    groups: list[_Group],
    log_x: Array,
    log_y: Array,
    exponent: float,
    slope_of: Array,
    variance: Array,
    weights: str,
    level: float,
) -> tuple[float, float, str]:
    """Low and high of the exponent, and why they are NaN if they are."""
    freedom = np.array([group.freedom for group in groups])
    if not np.any(freedom):
        return NAN, NAN, "no x has two finite seeds, so there is no interval"
    resampled = np.stack([group.resampled for group in groups])
    positive = resampled > 0
    stretch = np.array([_stretch(group.freedom + 1) for group in groups])
    deviation = np.log(np.where(positive, resampled, 1.0)) - log_y[:, None]
    log_resampled = log_y[:, None] + stretch[:, None] * deviation
    if weights == "spread":
        spread = np.stack([group.resampled_variance for group in groups])
        spread = np.where(positive, spread, NAN)
        coefficients = _slope_coefficients(log_x, _weights(_moderated(spread, freedom)))
    else:
        coefficients = slope_of[:, None]
    slopes = np.sum(coefficients * log_resampled, axis=0)
    part = (slope_of**2 * variance)[freedom > 0]
    effective = float(freedom[freedom > 0].min())
    if part.sum() > 0:
        # Welch and Satterthwaite's degrees of freedom of the slope
        effective = float(part.sum() ** 2 / np.sum(part**2 / freedom[freedom > 0]))
    # a resample without a logarithm could lie anywhere, so it counts in both tails
    lost = ~positive.all(axis=0)
    tails = _levels(level, effective)
    low = float(np.quantile(np.where(lost, -np.inf, slopes), tails[0], method="lower"))
    high = float(np.quantile(np.where(lost, np.inf, slopes), tails[1], method="higher"))
    if not np.isfinite([low, high]).all():
        worst = float(np.exp(log_x[np.argmin(positive.mean(axis=1))]))
        problem = f"at x = {worst:.6g} the value is not distinguishable from 0"
        return NAN, NAN, f"{problem}, so the slope has no interval; take more seeds"
    if np.any(freedom == 0):
        return low, high, "an x with one seed adds nothing to the interval, which is too narrow"
    return low, high, ""


def _stretch(n: int) -> float:
    return float(np.sqrt(n / (n - 1))) if n > 1 else 1.0


def _levels(level: float, freedom: float) -> tuple[float, float]:
    """Percentiles that widen a normal interval to Student's."""
    tail = float(norm.cdf(student.ppf(0.5 - level / 2, freedom)))
    return tail, 1 - tail


# ── the weighted fit ────────────────────────────────────────────────────────────────────────


def _moderated(variance: Array, freedom: NDArray[np.int_]) -> Array:
    """Draw each group's log-variance towards their average; shape (groups, batch).

    Groups without one (a single seed) take the average; where no group has one, all are 0.
    """
    known = (freedom > 0)[:, None] & np.isfinite(variance)
    clean = np.where(known, variance, 0.0)
    dof = np.where(known, freedom[:, None].astype(np.float64), 0.0)
    average = (dof * clean).sum(axis=0) / np.maximum(dof.sum(axis=0), 1.0)
    result: Array = (PRIOR_FREEDOM * average + dof * clean) / (PRIOR_FREEDOM + dof)
    return result


def _weights(variance: Array) -> Array:
    """Inverse variances; equal where nothing varies."""
    positive = variance > 0
    return np.where(positive, 1.0 / np.where(positive, variance, 1.0), 1.0)


def _mean(values: Array, weight: Array) -> float:
    return float(np.average(values, weights=weight))


def _slope_coefficients(log_x: Array, weight: Array) -> Array:
    """c with slope = Σ c·log y, for weights of shape (n, batch)."""
    centre = (weight * log_x[:, None]).sum(axis=0) / weight.sum(axis=0)
    lever = weight * (log_x[:, None] - centre)
    result: Array = lever / (lever * log_x[:, None]).sum(axis=0)
    return result


def _misfit(
    residual: Array, variance: Array, freedom: NDArray[np.int_], dof: int
) -> tuple[float, float]:
    """χ² per degree of freedom, and its p-value with the variances' own uncertainty."""
    if dof < 1 or not np.any(freedom) or not np.all(variance > 0):
        return NAN, NAN
    misfit = float(np.sum(residual**2 / variance)) / dof
    return misfit, float(fisher.sf(misfit, dof, freedom.sum()))


def _curvature(log_x: Array, log_y: Array, weight: Array) -> float:
    if len(np.unique(log_x)) < 3:
        return NAN
    centred = log_x - _mean(log_x, weight)
    return float(np.polyfit(centred, log_y, 2, w=np.sqrt(weight))[0])


# ── input and words ─────────────────────────────────────────────────────────────────────────


def _statistic(statistic: str | Statistic) -> Statistic:
    if not isinstance(statistic, str):
        return statistic
    if statistic not in STATISTICS:
        raise ValueError(f"unknown statistic {statistic!r}; known: {', '.join(STATISTICS)}")
    return STATISTICS[statistic]


def _array(sample: ArrayLike) -> Array:
    array = np.asarray(sample, dtype=np.float64)
    if array.ndim == 0:
        raise ValueError("samples must be arrays with one entry per seed")
    return array


def _finite_rows(array: Array) -> NDArray[np.bool_]:
    rows: NDArray[np.bool_] = np.all(np.isfinite(array), axis=tuple(range(1, array.ndim)))
    return rows


def _few(finite: int, total: int) -> str:
    return f"{finite} of {total} samples are finite, and an interval needs two"


def _notes(points: Array, arrays: list[Array], kept: list[Array], y: Array) -> list[str]:
    """What was left out, one sentence for each x."""
    notes = []
    for x, array, values, value in zip(points, arrays, kept, y, strict=True):
        if len(values) < len(array):
            notes.append(f"at x = {x:.6g} only {len(values)} of {len(array)} seeds are finite")
        elif len(array) == 0:
            notes.append(f"at x = {x:.6g} there are no seeds")
        if len(values) and not value > 0:
            notes.append(f"x = {x:.6g} is left out, its value {value:.3g} is not positive")
    return notes
