"""The report's colours and figure style, for light and dark.

Every colour has a name and two values. Figures are drawn with the light value, and
`widthlab.report.svg` replaces it by the CSS variable of that name, so that one SVG follows the
reader's scheme; the page's style sheet takes the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
import seaborn as sns
from cycler import cycler
from matplotlib.colors import to_hex

INK = "#1d2228"
MUTED = "#59626c"
GRID = "#e3e6e8"
PAPER = "#fefefd"

BASE: dict[str, tuple[str, str]] = {
    "paper": (PAPER, "#14171a"),
    "raised": ("#f4f5f4", "#1d2125"),
    "ink": (INK, "#e5e8e6"),
    "muted": (MUTED, "#a2abb2"),
    "rule": ("#cdd2d5", "#3a4147"),
    "grid": (GRID, "#2b3136"),
    "link": ("#1a5a8e", "#8cc0ea"),
    "good": ("#17653a", "#7fd3a2"),
    "bad": ("#a23410", "#ffa07f"),
    "open": ("#6a5500", "#dcc369"),
}
"""Colours of page and axes: name → (light, dark)."""

CATEGORIES: dict[str, tuple[str, str]] = {
    "c0": ("#0072b2", "#56b4e9"),
    "c1": ("#d55e00", "#f08a45"),
    "c2": ("#008f68", "#2fc79b"),
    "c3": ("#b2528a", "#dea3c6"),
    "c4": ("#a86c00", "#e6b23c"),
    "c5": ("#5d6873", "#a9b3bb"),
}
"""Okabe and Ito's colours, darkened for light and lightened for dark paper to 3:1 at least."""

MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of categories in the same order, so that colour never stands alone."""

STOPS = 25


@cache
def ramp() -> dict[str, tuple[str, str]]:
    """Ordered colours from a small width (faint) to a large one (near the ink), by name.

    Both ends are cut off matplotlib's plasma where it would have less than 3:1 on the paper.
    """
    plasma = matplotlib.colormaps["plasma"]
    stops = {}
    for i in range(STOPS):
        t = i / (STOPS - 1)
        stops[f"r{i}"] = (to_hex(plasma(0.62 - 0.60 * t)), to_hex(plasma(0.41 + 0.57 * t)))
    return stops


@cache
def theme() -> dict[str, tuple[str, str]]:
    """All named colours: name → (light, dark)."""
    return {**BASE, **CATEGORIES, **ramp()}


def ordered_colours(values: Sequence[Any]) -> dict[Any, str]:
    """One colour of the ramp for each distinct value, by rank: small faint, large strong."""
    stops = [light for light, _ in ramp().values()]
    ranked = sorted(set(values))
    if len(ranked) == 1:
        return {ranked[0]: stops[STOPS // 2]}
    return {
        value: stops[round(i * (STOPS - 1) / (len(ranked) - 1))] for i, value in enumerate(ranked)
    }


def category_colours(values: Sequence[Any]) -> dict[Any, str]:
    """One colour for each distinct value in order of appearance; repeats after six."""
    colours = [light for light, _ in CATEGORIES.values()]
    return {value: colours[i % len(colours)] for i, value in enumerate(dict.fromkeys(values))}


def css_variables() -> str:
    """The theme as CSS: light by default, dark on screens that ask for it."""
    light = " ".join(f"--{name}: {pair[0]};" for name, pair in theme().items())
    dark = " ".join(f"--{name}: {pair[1]};" for name, pair in theme().items())
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )


@contextmanager
def themed() -> Iterator[None]:
    """Set the figure style for a while: seaborn's ticks, text kept as text, 1 unit = 1 CSS pixel.

    It starts from matplotlib's defaults, so that nobody's matplotlibrc changes a report.
    """
    own: dict[Any, Any] = {
        "figure.dpi": 72,
        "figure.facecolor": "none",
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.w_pad": 0.09,
        "figure.constrained_layout.h_pad": 0.06,
        "figure.constrained_layout.wspace": 0.06,
        "savefig.facecolor": "none",
        "axes.facecolor": "none",
        "axes.prop_cycle": cycler(color=[light for light, _ in CATEGORIES.values()]),
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.9,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 14,
        "axes.titleweight": "bold",
        "axes.titlecolor": INK,
        "axes.labelsize": 14,
        "axes.formatter.useoffset": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.9,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 13,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 13,
        "ytick.labelsize": 13,
        "xtick.major.size": 4,
        "ytick.major.size": 4,
        "xtick.minor.size": 2,
        "ytick.minor.size": 2,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
        "patch.edgecolor": INK,
        "legend.frameon": False,
        "legend.fontsize": 13,
        "legend.title_fontsize": 13,
        "mathtext.fontset": "dejavusans",
        "svg.fonttype": "none",
        "svg.hashsalt": "widthlab",
        "path.simplify": True,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**sns.axes_style("ticks"), **own})
        yield
