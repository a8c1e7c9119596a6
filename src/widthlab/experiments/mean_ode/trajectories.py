"""Figures of single networks, and of errors along training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.mean_ode.errors import PARTS
from widthlab.report import plots
from widthlab.report.figures import Figure, canvas
from widthlab.report.style import category_colours

if TYPE_CHECKING:
    import xarray as xr

NAMES = {"embedding": "Embedding", "output": "Output"}


def thin(dataset: xr.Dataset) -> Figure:
    """Draw single networks of the smallest hidden width beside the limit."""
    import pandas as pd

    depths = dataset["traced_depth"].to_numpy().tolist()
    hidden = int(dataset["hidden"].min())
    columns = max(len(depths), 1)
    rows = []
    colour = category_colours([None])[None]
    views = {
        "depth_trace": ("relative depth s", "a coordinate of h(s)", dataset["position"].to_numpy()),
        "training_trace": (
            "training step",
            "an output f",
            np.arange(dataset.sizes["training_step"]),
        ),
    }
    with canvas(ncols=columns, nrows=2, height=230, width=max(480, 250 * columns)) as page:
        for number, axes in enumerate(page.axes):
            if number % columns:
                axes.sharey(page.axes[number - number % columns])
                axes.tick_params(labelleft=False)
            name = list(views)[number // columns]
            x_label, y_label, x = views[name]
            own = dataset[name].to_numpy()
            for path in own[number % columns] if depths else []:
                if np.isfinite(path).any():
                    axes.plot(x, path, color=colour, linewidth=0.9, alpha=0.75, label="networks")
            limit = dataset[f"{name}_limit"].to_numpy()
            plots.theory(axes, x, limit, "mean ODE")
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label if number % columns == 0 else "")
            if depths:
                rows += [
                    {
                        "depth": depths[number % columns],
                        "view": name,
                        "network": str(seed),
                        "x": float(at),
                        "value": float(value),
                    }
                    for seed, path in [*enumerate(own[number % columns]), ("limit", limit)]
                    for at, value in zip(x, path, strict=True)
                ]
        page.letter(*(f"L = {depth}" for depth in depths * 2))
        page.legend()
    return page.finish(
        "mean-ode-thin",
        f"Tall thin networks (M = {hidden}) fall onto the mean ODE",
        f"Single networks of hidden width {hidden}, one line for each seed, at growing depth. "
        "Upper row: one coordinate of the embedding of the first input along depth, after "
        "training. Lower row: one output of that input along training. Those that learn most in "
        "the limit are drawn. Dashed: the mean ODE.",
        f"Panels for growing depth: lines of networks with M = {hidden} scatter about the dashed "
        "line of the mean ODE, and lie on it at the largest depth.",
        pd.DataFrame(rows, columns=["depth", "view", "network", "x", "value"]),
    )


def along_training(dataset: xr.Dataset, counted: str) -> Figure:
    """Draw the error of the thinnest networks against the training step."""
    hidden = int(dataset["hidden"].min())
    names = ["step_total", "step_sampling"]
    data = dataset[names].sel(hidden=hidden).to_dataframe().reset_index()
    data = data.dropna(subset=["step_total"])
    about: dict[str, tuple[str, plots.Style]] = {
        "limit_error": ("error of the limit", "dotted"),
        "reference_distance": ("large networks' mean", "dashdot"),
        "reference_error": ("its standard error", "dashed"),
    }
    with canvas(ncols=2) as page:
        for axes, part in zip(page.axes, PARTS, strict=True):
            own = data[data["part"] == part]
            plots.series(
                axes,
                own,
                x="step",
                y="step_total",
                hue="depth",
                order=sorted(data["depth"].unique()),
                scales=("linear", "log"),
                labels=("training step", "distance to the mean ODE"),
            )
            steps = dataset["step"].to_numpy()
            for name, (text, style) in about.items():
                values = dataset[name].sel(part=part).to_numpy()
                # At initialisation the limit is known exactly: it has not moved.
                shown = values > 1e-9
                if shown.any():
                    plots.theory(axes, steps[shown], values[shown], text, style=style)
        page.letter(*(NAMES[part] for part in PARTS))
        page.legend("depth L")
    return page.finish(
        "mean-ode-training",
        f"Error along training (M = {hidden})",
        f"Root mean square distance to the mean ODE after every recorded step; {counted}. Below: "
        "the standard error of the mean ODE's solution by particles; the distance from it of the "
        f"mean of large networks (M·L = {int(dataset.attrs['reference_units']):,}, extrapolated "
        "in depth), and the standard error of that mean.",
        "Two panels: the distance to the limit grows little along training and falls with depth at "
        "every step; below them are the errors of the limit.",
        data,
    )
