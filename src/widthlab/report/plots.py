"""The plots that experiments share: measured series with their intervals, theory drawn over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from widthlab.report import ticks
from widthlab.report.style import INK, MARKERS, PAPER, category_colours, ordered_colours

Scale = Literal["linear", "log"]
Hue = Literal["ordered", "category"]
Style = Literal["dashed", "dotted", "dashdot"]


def series(
    axes: Axes,
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str | None = None,
    kind: Hue = "ordered",
    order: Sequence[Any] | None = None,
    low: str | None = None,
    high: str | None = None,
    spread: Literal["band", "bars"] = "band",
    scales: tuple[Scale, Scale] = ("linear", "linear"),
    labels: tuple[str, str] | None = None,
    markers: bool = True,
    line: bool = True,
    label: str | None = None,
) -> None:
    """Draw y against x, one line for each value of hue, from a tidy table.

    low, high: columns with the ends of an interval, drawn as a band or as bars.
    kind: `ordered` colours hue by rank (widths, depths), `category` by name, with a marker each.
    order: all values of hue, so that panels in which some are missing have the same colours.
    label: the entry in the legend where there is no hue.
    labels: what to write on the axes, with units; left out, the columns' names.
    Rows with a non-finite y are left out; on a logarithmic axis so are those that are not
    positive, and the lower end of an interval is cut at a tenth of the smallest value.
    """
    data = _drawable(data, x, y, scales)
    axes.set_xscale(scales[0])
    axes.set_yscale(scales[1])
    if data.empty:
        _say_empty(axes)
        _name(axes, labels or (x, y))
        return
    if hue is None:
        groups: list[tuple[Any, pd.DataFrame]] = [(None, data)]
        colours: dict[Any, str] = category_colours([None])
    else:
        ordered = list(data[hue].unique() if order is None else order)
        ordered = sorted(ordered) if kind == "ordered" else ordered
        groups = [(value, data[data[hue] == value]) for value in ordered]
        colours = (ordered_colours if kind == "ordered" else category_colours)(ordered)
    floor = float(data[y].min()) / 10 if scales[1] == "log" else -math.inf
    if scales[1] == "log" and data[y].nunique() == 1:
        # One value has no range of its own, and matplotlib warns of that on a logarithmic axis.
        place, value = float(data[x].iloc[0]), float(data[y].iloc[0])
        axes.update_datalim([(place, value / 2), (place, value * 2)])
    for position, (value, group) in enumerate(groups):
        if group.empty:
            continue
        group = group.sort_values(x, kind="stable")
        if low is not None and high is not None:
            ends = group[[low, high]].to_numpy(dtype=float).clip(min=floor)
            _interval(axes, group[x], group[y], ends, colours[value], spread)
        shape = MARKERS[position % len(MARKERS)] if kind == "category" else "o"
        sns.lineplot(
            x=group[x].to_numpy(),
            y=group[y].to_numpy(),
            ax=axes,
            color=colours[value],
            marker=shape if markers else None,
            markeredgecolor=PAPER,
            markeredgewidth=0.8,
            linestyle="-" if line else "",
            estimator=None,
            errorbar=None,
            zorder=3,
            label=label if hue is None else f"{value:g}" if _real(value) else str(value),
            legend=False,
        )
    _name(axes, labels or (x, y))


def loglog(axes: Axes, data: pd.DataFrame, *, x: str, y: str, **options: Any) -> None:
    """Draw a scaling plot: `series` on two logarithmic axes, bars by default, ticks at the x."""
    options.setdefault("spread", "bars")
    series(axes, data, x=x, y=y, scales=("log", "log"), **options)
    drawn = _drawable(data, x, y, ("log", "log"))
    if not drawn.empty and drawn[x].nunique() <= 14:
        ticks.at_values(axes.xaxis, drawn[x])


def layers(
    axes: Axes, data: pd.DataFrame, *, y: str, x: str = "layer", hue: str = "width", **options: Any
) -> None:
    """Draw a quantity along the layers, one line for each width, without markers."""
    options.setdefault("markers", data[x].nunique() <= 12)
    series(axes, data, x=x, y=y, hue=hue, **options)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def quantiles(axes: Axes, data: pd.DataFrame, *, x: str, y: str, **options: Any) -> None:
    """Draw measured against predicted quantiles, with the line on which both are equal."""
    options.setdefault("spread", "bars")
    series(axes, data, x=x, y=y, line=False, **options)
    drawn = _drawable(data, x, y, ("linear", "linear"))
    if not drawn.empty:
        both = drawn[[x, y]].to_numpy(dtype=float)
        ends = [both.min(), both.max()]
        theory(axes, ends, ends, "equal")


def bars(
    axes: Axes,
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    low: str | None = None,
    high: str | None = None,
    kind: Hue | None = None,
    labels: tuple[str, str] | None = None,
) -> None:
    """Draw one bar for each row, from zero, with the ends of its interval as a whisker.

    All bars have one colour, since the axis names them; `kind` colours them as in `series`.
    """
    data = _drawable(data, x, y, ("linear", "linear"))
    if data.empty:
        _say_empty(axes)
    else:
        names = data[x].map(str)
        values = list(data[x])
        if kind is None:
            colours = dict.fromkeys(values, category_colours([None])[None])
        else:
            colours = (ordered_colours if kind == "ordered" else category_colours)(values)
        sns.barplot(
            x=names,
            y=data[y],
            hue=names,
            palette={str(value): colour for value, colour in colours.items()},
            saturation=1,
            errorbar=None,
            legend=False,
            ax=axes,
            width=0.62,
            linewidth=0,
        )
        if low is not None and high is not None:
            ends = data[[low, high]].to_numpy(dtype=float)
            _interval(axes, pd.Series(range(len(data))), data[y], ends, INK, "bars")
    _name(axes, labels or (x, y))
    axes.grid(visible=False, axis="x")


def theory(
    axes: Axes,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    label: str | None = "theory",
    *,
    style: Style = "dashed",
) -> None:
    """Draw a predicted curve over the data, dashed, in the colour of the text."""
    axes.plot(
        np.asarray(x, dtype=float),
        np.asarray(y, dtype=float),
        color=INK,
        linestyle=style,
        linewidth=1.4,
        zorder=5,
        label=label,
    )


def slope(axes: Axes, exponent: float, through: tuple[float, float], text: str) -> None:
    """Draw a short line of a power law y ~ x^exponent through a point, with a few words at it.

    For a plot with two logarithmic axes; `through` is the middle of the line.
    """
    span = math.log10(axes.get_xlim()[1] / axes.get_xlim()[0])
    reach = 10 ** (0.13 * span)
    x = np.array([through[0] / reach, through[0] * reach])
    axes.plot(x, through[1] * (x / through[0]) ** exponent, color=INK, linewidth=1, zorder=4)
    axes.annotate(
        text,
        through,
        xytext=(6, 6 if exponent < 0 else -6),
        textcoords="offset points",
        va="bottom" if exponent < 0 else "top",
        color=INK,
    )


def crossings(axes: Axes, places: npt.NDArray[np.float64], level: float, label: str) -> None:
    """Mark where curves cross a level: rows of (x, low, high), of which the ends may be infinite.

    An interval without an end is drawn to the edge of the axes.
    """
    if not len(places):
        return
    limits = axes.get_xlim()
    ends = np.clip(places[:, 1:], *limits)
    reach = np.abs(ends - places[:, :1]).T
    axes.errorbar(
        places[:, 0],
        np.full(len(places), level),
        xerr=reach,
        fmt="v",
        color=INK,
        markersize=7,
        elinewidth=1.2,
        capsize=3,
        zorder=6,
        label=label,
    )
    axes.set_xlim(*limits)


def limits_from(axes: Axes, values: Sequence[float], margin: float = 0.08) -> None:
    """Set the y limits from the data alone, so that a diverging theory does not squash them."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if axes.get_yscale() == "log":
        finite = np.log10(finite[finite > 0])
    if finite.size == 0:
        return
    # one value, or all of them equal, still need an axis of some length
    least = 1e-3 * max(float(np.abs(finite).max()), 1e-9)
    pad = margin * max(float(np.ptp(finite)), least)
    ends = (float(finite.min()) - pad, float(finite.max()) + pad)
    if axes.get_yscale() == "log":
        ends = (10.0 ** ends[0], 10.0 ** ends[1])
    axes.set_ylim(*ends)


def _interval(
    axes: Axes,
    x: pd.Series[Any],
    y: pd.Series[Any],
    ends: npt.NDArray[np.float64],
    colour: str,
    spread: Literal["band", "bars"],
) -> None:
    place = x.to_numpy(dtype=float)
    if spread == "band":
        axes.fill_between(place, ends[:, 0], ends[:, 1], color=colour, alpha=0.2, linewidth=0)
        return
    middle = y.to_numpy(dtype=float)
    below, above = np.nan_to_num(middle - ends[:, 0]), np.nan_to_num(ends[:, 1] - middle)
    reach = np.vstack([below, above]).clip(min=0)
    axes.errorbar(place, middle, reach, fmt="none", color=colour, elinewidth=1.4, capsize=3)


def _drawable(data: pd.DataFrame, x: str, y: str, scales: tuple[Scale, Scale]) -> pd.DataFrame:
    keep = np.isfinite(data[y].to_numpy(dtype=float))
    for column, scale in zip((x, y), scales, strict=True):
        if scale == "log":
            keep &= data[column].to_numpy(dtype=float) > 0
    kept: pd.DataFrame = data.loc[keep]
    return kept


def _name(axes: Axes, labels: tuple[str, str]) -> None:
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])


def _say_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, ha="center", va="center")


def _real(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
