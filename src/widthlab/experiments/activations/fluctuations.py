"""Fluctuations and shifts of random networks over widths and depths, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.base import Measured
from widthlab.experiments.shared.resampling import (
    RESAMPLES,
    Resampled,
    combine,
    resampled_means,
    resampled_variances,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

MEASURES = {
    "fluctuation": "variance over draws of log(q_L/q_0)",
    "gradient": "variance over draws of log |g_1|²",
    "typical_shift": "shift of the mean of log(q_L/q_0) against infinite width",
    "mean_shift": "relative shift of the mean of q_L against infinite width",
}
POSITIVE = ("fluctuation", "gradient")
"""Measures that are compared by their ratio; the others have a sign, and their sizes are."""


@dataclass(frozen=True)
class Grid:
    """Measures by name, each of shape (model, width, ratio), NaN where a cell is missing."""

    labels: list[str]
    ratio: Array
    """L/N that is really drawn, (width, ratio)."""
    measures: dict[str, Resampled]
    draws: NDArray[np.int64]
    alive: Array


# ── collecting ──────────────────────────────────────────────────────────────────────────────


def collect(
    labels: list[str],
    widths: list[int],
    depths: NDArray[np.int64],
    wide: list[int],
    measured: list[Measured],
) -> Grid:
    """Collect cells: `depths` (width, ratio), and `wide` the width of every model's reference."""
    shape = (len(labels), len(widths), depths.shape[1])
    measures = {
        name: Resampled(np.full(shape, np.nan), np.full((RESAMPLES, *shape), np.nan))
        for name in MEASURES
    }
    draws, alive = np.zeros(shape, dtype=np.int64), np.full(shape, np.nan)
    references = {
        (one.label, one.cell.depth): _averages(one, labels)
        for one in measured
        if one.cell.reference
    }
    for one in (one for one in measured if not one.cell.reference):
        model, width, depth = labels.index(one.label), one.cell.width, one.cell.depth
        row = widths.index(width)
        at = (model, row, int(np.flatnonzero(depths[row] == depth)[0]))
        logs = _logs(one.statistics)
        draws[at] = len(logs)
        alive[at] = np.isfinite(logs).all(axis=(1, 2)).mean()
        spread = combine(
            lambda variances: variances.mean(axis=-2), resampled_variances(logs, _seed(one, labels))
        )
        found = {"fluctuation": _item(spread, 0), "gradient": _item(spread, 1)}
        reference = references.get((one.label, depth))
        if reference is not None:
            # The reference has the share N/N_ref of a shift of order 1/N.
            rest = 1 - width / wide[model]
            own = _averages(one, labels)
            found["typical_shift"] = combine(
                lambda a, b, rest=rest: (a[..., 0] - b[..., 0]) / rest, own, reference
            )
            found["mean_shift"] = combine(
                lambda a, b, rest=rest: (a[..., 1] / b[..., 1] - 1) / rest, own, reference
            )
        for name, value in found.items():
            measures[name].value[at] = value.value
            measures[name].resamples[(slice(None), *at)] = value.resamples
    return Grid(labels, depths / np.array(widths)[:, None], measures, draws, alive)


def _logs(statistics: xr.Dataset) -> Array:
    """log(q_L/q_0) and log |g_1|² of (draws, inputs, 2); NaN where dead or not finite."""
    arrays = {name: statistics[name].transpose("draw", "input") for name in statistics.data_vars}
    first, last = arrays["first"].to_numpy(), arrays["last"].to_numpy()
    parts = [np.divide(last, first, out=np.zeros_like(last), where=first > 0)]
    if "gradient" in arrays:
        parts.append(arrays["gradient"].to_numpy() ** 2)
    both = np.stack(parts, axis=-1)
    alive = np.isfinite(both) & (both > 0)
    return np.where(alive, np.log(np.where(alive, both, 1.0)), np.nan)


def _averages(one: Measured, labels: list[str]) -> Resampled:
    """Means of log(q_L/q_0) and of q_L, (2,): inputs share the weights, so they come first."""
    last = one.statistics["last"].transpose("draw", "input").to_numpy().mean(axis=1)
    typical = _logs(one.statistics)[..., 0].mean(axis=1)
    return resampled_means(np.stack([typical, last], axis=1), _seed(one, labels))


def _seed(one: Measured, labels: list[str]) -> list[int]:
    cell = one.cell
    return [labels.index(one.label), cell.width, cell.depth, int(cell.reference)]


def _item(whole: Resampled, last: int) -> Resampled:
    return combine(lambda values: values[..., last], whole)


# ── summaries ───────────────────────────────────────────────────────────────────────────────


def summary(grid: Grid, kind: str, name: str, level: float) -> tuple[Array, Array, Array]:
    """Return a measure's summary of each model with the ends of its interval, each (model,).

    kind "rank": the mean over the grid of the measure over L/N, of the logarithm for fluctuations
    (a geometric mean). kind "drift": the slope of the measure in L/N at fixed width, averaged over
    widths; NaN where no width has two depths.
    """
    whole = _summarised(grid, kind, name, _points(grid, name))
    low, high = whole.interval(level, _fewest(grid))
    ends = whole.value, low, high
    if kind == "rank" and name in POSITIVE:
        return np.exp(ends[0]), np.exp(ends[1]), np.exp(ends[2])
    return ends


def compare(
    grid: Grid, kind: str, name: str, pair: tuple[str, str], level: float
) -> tuple[float, float, float, int]:
    """Compare two models on the grid points that both have: value, low, high, and their number.

    Ranks of fluctuations are compared by the ratio of the first to the second; all else by the
    difference of sizes, the first less the second.
    """
    first, second = (grid.labels.index(label) for label in pair)
    points = _points(grid, name)
    common = np.broadcast_to(points[first] & points[second], points.shape)
    whole = _summarised(grid, kind, name, common)
    a, b = (_item(whole, at) for at in (first, second))
    ratio = kind == "rank" and name in POSITIVE
    # Sizes by the sign of the estimate, since the size of noise is biased.
    signs = (1.0, 1.0) if ratio else tuple(np.sign(part.value) for part in (a, b))
    both = combine(lambda x, y: signs[0] * x - signs[1] * y, a, b)
    low, high = both.interval(level, _fewest(grid))
    values = [float(both.value), float(low), float(high)]
    if ratio:
        values = list(np.exp(values))
    return values[0], values[1], values[2], int(common[first].sum())


def _summarised(grid: Grid, kind: str, name: str, points: NDArray[np.bool_]) -> Resampled:
    """Return the summary of every model over the points given, shape (model,)."""
    whole = grid.measures[name]
    if kind == "drift":
        return combine(lambda values: _drift(values, grid.ratio, points), whole)
    logarithm = name in POSITIVE

    def rank(values: Array) -> Array:
        each = np.where(points, values, 1.0) / grid.ratio
        return _mean(np.log(each) if logarithm else each, points)

    return combine(rank, whole)


def _mean(values: Array, points: NDArray[np.bool_]) -> Array:
    """Mean over the points of the last two axes; NaN where there is none."""
    number = points.sum(axis=(-2, -1))
    total = np.where(points, values, 0.0).sum(axis=(-2, -1))
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _drift(values: Array, ratio: Array, points: NDArray[np.bool_]) -> Array:
    """Least-squares slope in L/N within each width, averaged over widths with two points."""
    number = points.sum(axis=-1, keepdims=True)
    centre = np.where(points, ratio, 0.0).sum(axis=-1, keepdims=True) / np.maximum(number, 1)
    lever = np.where(points & (number > 1), ratio - centre, 0.0)
    squares = (lever**2).sum(axis=-1)
    slopes = (lever * np.where(points, values, 0.0)).sum(axis=-1) / np.where(
        squares > 0, squares, 1
    )
    used = squares > 0
    count = used.sum(axis=-1)
    return np.where(
        count > 0, np.where(used, slopes, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan
    )


def _points(grid: Grid, name: str) -> NDArray[np.bool_]:
    """Return the grid points at which a measure and all its resamples can be used."""
    whole = grid.measures[name]
    known = np.isfinite(whole.value) & np.isfinite(whole.resamples).all(axis=0)
    if name in POSITIVE:
        known &= (whole.value > 0) & (whole.resamples > 0).all(axis=0)
    return np.asarray(known)


def _fewest(grid: Grid) -> int:
    """Return the fewest draws of any cell, which set the width of Student's intervals."""
    return int(grid.draws[grid.draws > 0].min(initial=int(grid.draws.max(initial=0))))
