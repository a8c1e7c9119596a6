"""What the figures and tables of sweeps by model, width and layer have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

    from widthlab.experiments.shared.random_draws import LayersSection
    from widthlab.report.figures import Figure
    from widthlab.report.plots import Style

Array = NDArray[np.float64]

DRAWN_LAYERS = 32
"""Layers that a figure shows of a deep network, evenly spaced, and as many again on a log scale."""

COLUMNS = 3
"""Most panels beside one another; further ones begin a new row."""


class LayerTable:
    """Values by model, width and layer, filled cell by cell: what is missing stays NaN."""

    def __init__(self, section: LayersSection, texts: Mapping[str, str]) -> None:
        """Make an empty table of the variables `texts`: name → description."""
        self.labels, self.widths = list(section.models), list(section.width)
        self.depth, self.texts = section.depth, texts
        self.draws = np.zeros((len(self.labels), len(self.widths)), dtype=np.int64)
        shape = (*self.draws.shape, section.depth + 1)
        self.found = {name: np.full(shape, np.nan) for name in texts}

    def put(self, label: str, width: int, values: Mapping[str, Array]) -> None:
        """Fill in variables of one model and width, each of shape (depth + 1,)."""
        at = self._place(label, width)
        for name, value in values.items():
            self.found[name][at] = value

    def count(self, label: str, width: int, draws: int) -> None:
        """Say how many draws stand behind the values of a model and width."""
        self.draws[self._place(label, width)] = draws

    def dataset(self, **attributes: object) -> xr.Dataset:
        """Return all as one dataset; `draws` is zero where a cell is missing."""
        import xarray as xr

        dims = ("model", "width", "layer")
        count = {"units": "1", "description": "networks drawn"}
        return xr.Dataset(
            {
                **{
                    name: (dims, self.found[name], {"units": "1", "description": text})
                    for name, text in self.texts.items()
                },
                "draws": (dims[:2], self.draws, count),
            },
            coords={
                "model": self.labels,
                "width": self.widths,
                "layer": np.arange(self.depth + 1),
            },
            attrs=attributes,
        )

    def _place(self, label: str, width: int) -> tuple[int, int]:
        return self.labels.index(label), self.widths.index(width)


def drawn_layers(data: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of a few dozen layers, the first and the last included; shallow ones whole.

    A page with every layer of deep networks would be too large to open; the sweep has them all.
    """
    depth = int(data["layer"].max()) if len(data) else 0
    even = np.linspace(0, depth, DRAWN_LAYERS + 1)
    rising = np.geomspace(1, max(depth, 1), DRAWN_LAYERS)
    return data[data["layer"].isin(np.unique(np.rint([*even, *rising])))]


def with_ends(data: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Add columns `<name>_low` and `<name>_high`, two standard errors from `<name>`."""
    ends = {}
    for name in names:
        reach = 2 * data[f"{name}_error"]
        ends[f"{name}_low"], ends[f"{name}_high"] = data[name] - reach, data[name] + reach
    return data.assign(**ends)


def by_model(
    data: pd.DataFrame,
    draw: Callable[[Axes, pd.DataFrame], None],
    *,
    id: str,
    title: str,
    caption: str,
    alt: str,
    legend: str | None = None,
    titles: Mapping[str, str] | None = None,
    height: float = 330,
) -> Figure:
    """Draw one panel for each model of a tidy table, in order of appearance, under one legend.

    `draw` is given the axes and the model's rows; `titles` add a few words (a slope, say) after a
    model's name. A table without rows gives one panel that says so.
    """
    from widthlab.report.figures import canvas

    labels = list(data["model"].unique())
    columns = min(len(labels), COLUMNS) or 1
    rows = -(-len(labels) // columns) or 1
    with canvas(ncols=columns, nrows=rows, height=height) as page:
        for axes in page.axes[max(len(labels), 1) :]:
            axes.set_axis_off()
        for axes, label in zip(page.axes, labels or [None], strict=False):
            draw(axes, data[data["model"] == label])
        words = titles or {}
        page.letter(*(f"{label} {words.get(label, '')}" for label in labels))
        page.legend(legend)
    return page.finish(id, title, caption, alt, data)


def curves(
    axes: Axes,
    data: pd.DataFrame,
    x: str,
    law: str,
    label: str,
    style: Style = "dashed",
    by: str = "width",
) -> None:
    """Draw a law, where it is known, once for each value of `by`; a legend shows it once."""
    from widthlab.report import plots

    for _, one in data.dropna(subset=[law]).groupby(by, sort=False):
        plots.theory(axes, one[x], one[law], label, style=style)
