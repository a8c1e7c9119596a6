"""Figures of the variance experiment along the layers, one for each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.shared.frames import curves, drawn_layers, with_ends
from widthlab.experiments.variance.width_claims import LEADING

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

    from widthlab.report.figures import Figure
    from widthlab.report.plots import Style

WITH_ERRORS = ("mean", "square", "log_mean", "log_variance", "shift", "relative_variance")


def layer_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Return what is measured by layer, at layers to draw, with two-standard-error intervals."""
    by_layer = {"model", "width", "layer"}
    names = [name for name in dataset.data_vars if set(dataset[name].dims) == by_layer]
    data = drawn_layers(dataset[names].to_dataframe().reset_index().dropna(subset=["mean"]))
    data["layer_over_width"] = data["layer"] / data["width"]
    return with_ends(data, WITH_ERRORS)


def counted(dataset: xr.Dataset, data: pd.DataFrame) -> str:
    """Say how many signals are alive at the last layer, of how many."""
    last = data[data["layer"] == dataset["layer"].to_numpy()[-1]]
    draws = dataset["draws"].to_dataframe().reset_index()
    total = last[["model", "width", "alive"]].merge(draws, on=["model", "width"])
    signals = total["draws"] * int(dataset.attrs["inputs"])
    alive = round(float((signals * total["alive"]).sum()))
    return f"{alive:,} of {int(signals.sum()):,} signals are alive at the last layer"


LAWS: tuple[tuple[str, str, Style], ...] = (
    ("block_law", "block law, N → ∞", "dashed"),
    ("exact", "exact law", "dashed"),
    ("corrected", "order 1/N", "dotted"),
    ("small_branch", "order 1/N, small branch", "dashdot"),
)
"""Theories by the beginning of their variables' names, with legend and line."""


def layers(dataset: xr.Dataset, label: str) -> Figure:
    """Draw the signal variance along the layers for one model, with every law that it has."""
    from widthlab.report.figures import canvas

    whole = layer_table(dataset)
    data = whole[whole["model"] == label]
    width = data["width"].astype(float)
    near = data["layer"] <= LEADING * width
    # coefficients of 1/N are the same at every width, as far as the next order is small
    scaled = data.assign(
        **{
            name: np.where(near, data[name] * width, np.nan)
            for name in data.columns
            if name.removesuffix("_low").removesuffix("_high").endswith(("shift", "tive_variance"))
        }
    )
    panels = (
        ("mean", "mean of q", "Mean", data, ("block_law",)),
        ("log_mean", "mean of log(q/q₀)", "Typical value", data, ("exact", "corrected")),
        ("log_median", "median of log(q/q₀)", "Median", data, ()),
        ("log_variance", "Var log(q/q₀)", "Spread", data, ("exact", "corrected")),
        ("shift", "N (E q/q∞ − 1)", "Shift", scaled, ("corrected", "small_branch")),
        ("relative_variance", "N Var q / q∞²", "Variance", scaled, ("corrected", "small_branch")),
    )
    with canvas(ncols=2, nrows=3) as page:
        for axes, (name, words, _, own, laws) in zip(page.axes, panels, strict=True):
            _panel(axes, own, name, words, laws)
        page.letter(*(title for _, _, title, _, _ in panels))
        page.legend("width N")
    draws = int(dataset["draws"].sel(model=label).max())
    return page.finish(
        f"variance-layers-{label.replace('_', '-')}",
        f"Signal variance along the layers: {label}",
        f"Signal variance q over {draws} random networks at each width, inputs with |x|² = d; "
        f"{counted(dataset, data)}. Bands: two standard errors over draws. Dashed: block law and "
        "exact laws; dotted: corrections of order 1/N; dash-dotted: their published form for small "
        f"branches; each where there is one. e and f: times N, at l/N ≤ {LEADING:g}, relative to "
        "the block law q∞.",
        f"Mean of q, mean, median and variance of log(q/q₀), and the coefficients of 1/N in mean "
        f"and variance of q, by layer for {label} at several widths.",
        data[[name for name in data.columns if not name.startswith(NOT_DRAWN)]],
    )


NOT_DRAWN = ("square", "exact_square", "exact_variance", "median")
"""What else is in the sweep."""


def _panel(axes: Axes, data: pd.DataFrame, name: str, words: str, laws: tuple[str, ...]) -> None:
    from widthlab.report import plots

    ends = {"low": f"{name}_low", "high": f"{name}_high"} if f"{name}_low" in data else {}
    plots.layers(axes, data, y=name, labels=("layer l", words), **ends)
    same_at_all = name in ("mean", "shift", "relative_variance")
    for prefix, title, style in LAWS:
        law = prefix if prefix == "block_law" else f"{prefix}_{name}"
        if prefix not in laws or data[law].isna().all():
            continue
        known = data.dropna(subset=[law])
        if same_at_all:
            known = known[known["width"] == known["width"].max()]
        curves(axes, known, "layer", law, title, style)
    # a mean that does not move is a flat line, and not its rounding errors
    least = [-0.5, 0.5] if name == "shift" else []
    plots.limits_from(axes, [*data[name], *least])
