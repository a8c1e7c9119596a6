"""Ranked dot plots: what is largest, and which differences are larger than their intervals."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from widthlab.report.style import INK, MUTED, category_colours


def ranked(
    axes: Axes,
    data: pd.DataFrame,
    *,
    name: str,
    x: str,
    low: str,
    high: str,
    label: str,
    points: pd.DataFrame | None = None,
    scale: Literal["linear", "log"] = "linear",
    reference: float | None = None,
) -> None:
    """Draw one row for each name, ranked by x from below, with the interval from low to high.

    points: a tidy table with the same columns `name` and `x`, drawn faint behind the rows (the
    grid points of which a row is the summary). reference: a value to mark with a line. Rows that
    are not finite (not positive on a logarithmic axis) stand on top with their names only.
    """
    values = data[x].to_numpy(dtype=float)
    known = np.isfinite(values) & ((values > 0) | (scale == "linear"))
    rows = pd.concat([data[known].sort_values(x, kind="stable"), data[~known]])
    places = {str(one): place for place, one in enumerate(rows[name])}
    axes.set_xscale(scale)
    if reference is not None:
        axes.axvline(reference, color=MUTED, linewidth=1, linestyle="dotted", zorder=1)
    if points is not None:
        faint = points[np.isfinite(points[x].to_numpy(dtype=float))]
        if scale == "log":
            faint = faint[faint[x] > 0]
        rows_of = [places[str(one)] for one in faint[name]]
        axes.plot(faint[x], rows_of, "o", color=MUTED, markersize=3, alpha=0.5, zorder=2)
    drawn = rows.iloc[: int(known.sum())]
    if drawn.empty:
        axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", va="center")
    else:
        middle, ends = drawn[x].to_numpy(float), drawn[[low, high]].to_numpy(float)
        if scale == "log":
            ends = ends.clip(min=float(middle.min()) / 10)
        reach = np.nan_to_num(np.abs(ends.T - middle))
        heights = np.arange(len(drawn))
        colour = category_colours([None])[None]
        axes.errorbar(
            middle, heights, xerr=reach, fmt="none", color=INK, elinewidth=1.4, capsize=3, zorder=3
        )
        axes.plot(middle, heights, "o", color=colour, markersize=6.5, zorder=4)
    axes.set_yticks(range(len(rows)), [str(one) for one in rows[name]])
    axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    axes.set_xlabel(label)
    axes.grid(visible=True, axis="y", linestyle="dotted")
