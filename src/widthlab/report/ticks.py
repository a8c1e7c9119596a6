"""Tick labels that a person reads at a glance: 10⁻³, 0.1, 64, 128; plain text, no TeX."""

from __future__ import annotations

import math
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def log_label(value: float) -> str:
    """Write a tick of a logarithmic axis: `0.01`, `1`, `200`, `10⁻⁵`, `2×10⁶`."""
    if value <= 0 or not math.isfinite(value):
        return ""
    exponent = math.floor(math.log10(value) + 1e-9)
    mantissa = value / 10.0**exponent
    if -3 < exponent < 4:
        return f"{value:.6g}"
    power = f"10{str(exponent).translate(_SUPERSCRIPT)}"
    return power if math.isclose(mantissa, 1, rel_tol=1e-6) else f"{mantissa:.3g}×{power}"


def at_values(axis: Axis, values: Iterable[float]) -> None:
    """Put ticks at the given values (widths, depths) only, thinned where they would touch."""
    ranked = sorted({float(value) for value in values})
    axis.set_major_locator(FixedLocator(_apart(ranked, axis.get_scale() == "log")))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _apart(values: list[float], log: bool) -> list[float]:
    """Keep ticks at least a fourteenth of the axis apart, from the largest down."""
    places = [math.log(value) for value in values] if log else values
    gap = (places[-1] - places[0]) / 14
    kept = [-1]
    for i in range(len(values) - 2, -1, -1):
        if places[kept[-1]] - places[i] > gap:
            kept.append(i)
    return [values[i] for i in reversed(kept)]


def tidy(axes: Axes) -> None:
    """Give logarithmic axes readable ticks; leave fixed and linear ones as they are.

    A logarithmic axis that holds a single value is widened, since it has no length of its own.
    """
    for limits, scale, widen in (
        (axes.get_xlim(), axes.get_xscale(), axes.set_xlim),
        (axes.get_ylim(), axes.get_yscale(), axes.set_ylim),
    ):
        if scale == "log" and math.isclose(*limits, rel_tol=1e-9):
            widen(limits[0] / 2, limits[1] * 2)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() != "log" or isinstance(axis.get_major_locator(), FixedLocator):
            continue
        decades = abs(math.log10(limits[1] / limits[0]))
        steps = (1.0,) if decades > 2.2 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(10, subs=steps, numticks=8 if decades > 2.2 else 12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: log_label(value)))
        axis.set_minor_locator(LogLocator(10, subs=tuple(range(1, 10)), numticks=20))
        axis.set_minor_formatter(NullFormatter())
