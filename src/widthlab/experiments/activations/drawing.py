"""Figures of architectures at equal depth over width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.activations.fluctuations import MEASURES
from widthlab.report import plots
from widthlab.report.figures import Figure, canvas
from widthlab.report.rankings import ranked

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def _table(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the grid as a tidy table, with measures over L/N and two-standard-error ends."""
    names = [*MEASURES, *(f"{name}_error" for name in MEASURES), "draws", "alive"]
    data = dataset[names].to_dataframe().reset_index()
    depth = dataset["depth"].to_dataframe().reset_index()
    data = data.merge(depth, on=["width", "ratio"])
    data["layers_over_width"] = data["depth"] / data["width"]
    for name in MEASURES:
        data[f"{name}_low"] = data[name] - 2 * data[f"{name}_error"]
        data[f"{name}_high"] = data[name] + 2 * data[f"{name}_error"]
        data[f"{name}_each"] = data[name] / data["layers_over_width"]
    return data[data["draws"] > 0]


def _counted(dataset: xr.Dataset) -> str:
    draws, alive = dataset["draws"].to_numpy(), np.nan_to_num(dataset["alive"].to_numpy())
    return (
        f"{round(float((draws * alive).sum())):,} of {int(draws.sum()):,} draws are alive and "
        "finite"
    )


def ranking_figure(dataset: xr.Dataset) -> Figure:
    """Return every measure's ranking of the models."""
    data = _table(dataset)
    names = [name for name in dataset.data_vars if str(name).startswith("rank_")]
    summary = dataset[names].to_dataframe().reset_index()
    panels = {
        "fluctuation": ("N/L · Var log(q/q₀)", "Fluctuations of the signal"),
        "gradient": ("N/L · Var log |g|²", "Fluctuations of the gradient"),
        "typical_shift": ("N/L · shift of E log(q/q₀)", "Shift of the typical signal"),
        "mean_shift": ("N/L · relative shift of E q", "Shift of the mean"),
    }
    height = max(250.0, 110 + 26 * len(summary))
    with canvas(ncols=2, nrows=2, height=height) as page:
        for axes, (name, (words, _)) in zip(page.axes, panels.items(), strict=True):
            signed = name.endswith("shift")
            each = f"{name}_each"
            ranked(
                axes,
                summary.rename(columns={f"rank_{name}": each}),
                name="model",
                x=each,
                low=f"rank_{name}_low",
                high=f"rank_{name}_high",
                label=words,
                points=data,
                scale="linear" if signed else "log",
                reference=0.0 if signed else None,
            )
        page.letter(*(title for _, title in panels.values()))
    return page.finish(
        "activations-ranking",
        "Effects of finite width, ranked",
        f"Effects of finite width at equal depth over width; {_counted(dataset)}. Large dots: mean "
        "over widths and L/N (geometric for fluctuations), with simultaneous 95 % intervals from a "
        "bootstrap over draws. Small dots: the single widths and L/N. Shifts are against networks "
        "of the same depth and "
        f"{_times(dataset)} the largest width; a missing dot was not measured.",
        "Four ranked lists of architectures by fluctuation of signal and gradient and by shift of "
        "the typical and the mean signal, with intervals.",
        summary,
    )


def _times(dataset: xr.Dataset) -> str:
    """Say how many times wider references are than the widest network of their model."""
    data = _table(dataset)
    if data.empty:
        return "many times"
    widest = data.groupby("model")["width"].max()
    wide = dataset["reference_width"].to_series()
    times = sorted({round(float(wide[model] / widest[model])) for model in widest.index})
    return " or ".join(f"{one}" for one in times) + " times"


def depth_figure(dataset: xr.Dataset, name: str, words: str) -> Figure:
    """Return one measure against L/N, a panel for each model."""
    data = _table(dataset)
    labels = [str(label) for label in dataset["model"].to_numpy()]
    columns = min(3, len(labels))
    signed = name.endswith("shift")
    text = MEASURES[name][0].upper() + MEASURES[name][1:]
    with canvas(ncols=columns, nrows=-(-len(labels) // columns), height=270) as page:
        for axes, label in zip(page.axes, labels, strict=False):
            plots.series(
                axes,
                data[data["model"] == label],
                x="layers_over_width",
                y=name,
                hue="width",
                low=f"{name}_low",
                high=f"{name}_high",
                spread="bars",
                scales=("log", "linear" if signed else "log"),
                labels=("depth over width L/N", words),
            )
        for axes in page.axes[len(labels) :]:
            axes.set_axis_off()
        page.letter(*labels)
        page.legend("width N")
    return page.finish(
        f"activations-{name.replace('_', '-')}",
        f"{words[0].upper()}{words[1:]} against depth over width",
        f"{text}, at the last layer of networks of several widths and depths; {_counted(dataset)}. "
        "Bars: two standard errors (bootstrap over draws). Where widths lie on one curve, L/N "
        "controls.",
        f"{words} against L over N, a panel for each architecture and a colour for each width.",
        data,
    )
