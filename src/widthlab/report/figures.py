"""Figures as values: an inline SVG, its words, and the numbers that it plots.

with canvas(ncols=2) as page:
    left, right = page.axes
    plots.series(left, data, x="layer", y="q", hue="width")
    page.legend("width N")
return page.finish("variance-layers", "Signal variance", caption, alt, data)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import matplotlib.figure
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG

from widthlab.report import ticks
from widthlab.report.style import INK, themed
from widthlab.report.svg import to_svg

PANEL_WIDTH = 480
"""Width of a single panel in CSS pixels: what a phone still shows whole."""


LEGEND_ROW = 19
"""Height that a row of the legend adds to a figure, in CSS pixels."""


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure of the report."""

    id: str
    """Unique in a report: letters, digits, hyphens; the experiment's name comes first."""
    title: str
    """A few words."""
    caption: str
    """What is plotted, how many draws or seeds are finite of how many, what the bands are."""
    alt: str
    """What a reader who cannot see the figure should know."""
    svg: str
    """The drawing, an inline SVG."""
    table: pd.DataFrame
    """The plotted numbers, tidy; the index is not used."""


@dataclass(frozen=True, eq=False)
class Canvas:
    """A matplotlib figure being drawn, and its axes from left to right, top to bottom."""

    figure: matplotlib.figure.Figure
    axes: tuple[Axes, ...]

    def letter(self, *titles: str) -> None:
        """Title the panels a, b, c … with a few words each, in order."""
        for axes, mark, title in zip(self.axes, ascii_lowercase, titles, strict=False):
            axes.set_title(f"{mark}\u2002{title}".rstrip())

    def legend(self, title: str | None = None) -> None:
        """Put one legend for all panels above them, each label once, in as few rows as fit.

        Numbers (widths) come first and in order, though no panel may have them all.
        """
        entries: dict[str, Any] = {}
        for axes in self.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        if not entries:
            return
        entries = dict(sorted(entries.items(), key=lambda entry: _rank(entry[0])))
        longest = max(len(label) for label in entries)
        fits = int(self.figure.get_figwidth() * 72 / (longest * 8.5 + 52))
        columns = min(len(entries), max(1, fits))
        # matplotlib fills columns first; a reader reads rows first
        order = [list(entries)[start::columns] for start in range(columns)]
        labels = [label for column in order for label in column]
        made = self.figure.legend(
            [entries[label] for label in labels],
            labels,
            title=title,
            loc="outside upper left",
            ncols=columns,
            alignment="left",
            labelcolor=INK,
            handlelength=1.8,
            columnspacing=1.4,
        )
        made.get_title().set_color(INK)
        # the panels keep their height
        rows = math.ceil(len(entries) / columns) + (title is not None)
        self.figure.set_figheight(self.figure.get_figheight() + rows * LEGEND_ROW / 72)

    def finish(self, id: str, title: str, caption: str, alt: str, table: pd.DataFrame) -> Figure:
        """Turn the drawing into a `Figure`.

        Raises ValueError where the identifier would not be safe in HTML, or a text is empty.
        """
        if not re.fullmatch(r"[a-z][a-z0-9-]*", id):
            raise ValueError(f"figure id {id!r}: use small letters, digits and hyphens")
        for name, text in (("title", title), ("caption", caption), ("alt", alt)):
            if not text.strip():
                raise ValueError(f"figure {id}: {name} is empty")
        for axes in self.axes:
            ticks.tidy(axes)
        return Figure(id, title, caption, alt, to_svg(self.figure, id, title, alt), table)


def _rank(label: str) -> tuple[bool, float]:
    """Sort numbers before words, by value; words keep their order."""
    try:
        return False, float(label)
    except ValueError:
        return True, 0.0


@contextmanager
def canvas(
    width: float | None = None,
    height: float = 330,
    ncols: int = 1,
    nrows: int = 1,
    *,
    sharex: bool = False,
    sharey: bool = False,
) -> Iterator[Canvas]:
    """Open a canvas in the report's style; sizes are CSS pixels, height is that of one row.

    Left out, the width is that of `ncols` panels. Neither pyplot nor the global
    style keeps anything of it afterwards.
    """
    if width is None:
        width = PANEL_WIDTH if ncols == 1 else 430 * ncols
    with themed():
        figure = matplotlib.figure.Figure(figsize=(width / 72, height * nrows / 72))
        FigureCanvasSVG(figure)
        grid = figure.subplots(nrows, ncols, sharex=sharex, sharey=sharey, squeeze=False)
        yield Canvas(figure, tuple(grid.flat))
