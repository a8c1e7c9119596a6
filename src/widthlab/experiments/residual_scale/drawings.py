"""The figure of the residual scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.residual_scale.claims import MEASURED, title
from widthlab.experiments.shared.caps import cap
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas
from widthlab.report.style import category_colours

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

PANELS = {
    "spread": ("Spread over seeds", "spread of h_L"),
    "local_update": ("Local feature updates", "rms of κ(u − u₀)·h"),
    "distance_lazy": ("Distance to linear blocks", "distance / change of h_L"),
    "forward_gain": ("Forward gain before training", "rms of h_L / rms of h_0"),
    "backward_gain": ("Backward gain before training", "gain of the gradient"),
    "loss_ratio": ("Loss reached", "loss / loss before training"),
}
SLOPES = {
    "spread": ((1.0, -0.5), (0.5, 0.0)),
    "local_update": ((1.0, 0.0), (0.5, -0.5)),
}
"""By panel: exponents p of which theory has the slope, and that slope."""
MOST = 30.0
"""Largest value that a panel shows; what lies above is marked at its top."""
LEAST = 1e-3


def against_depth(dataset: xr.Dataset) -> Figure:
    """Draw all quantities against depth, one colour for each residual scale."""
    names = [f"{name}{end}" for name in MEASURED for end in ("", "_low", "_high")]
    data = dataset[[*names, "theory_forward_gain"]].to_dataframe().reset_index()
    data["scale"] = data["exponent"].map(title)
    order = [title(float(exponent)) for exponent in dataset["exponent"]]
    with canvas(ncols=3, nrows=2) as page:
        for axes, (name, (_, words)) in zip(page.axes, PANELS.items(), strict=True):
            _panel(axes, data, name, words, order)
        page.letter(*(words for words, _ in PANELS.values()))
        page.legend("residual scale")
    finite, gone = int(dataset["finite"].sum()), int(dataset["diverged"].sum())
    sizes = {name: dataset.attrs[name] for name in ("width", "hidden", "steps")}
    return page.finish(
        "residual-scale-depth",
        "Three residual scales at growing depth",
        "Networks with branches (scale/M) Σ_j v_j s(u_j·h/D), against depth; D = "
        f"{sizes['width']}, M = {sizes['hidden']}, {sizes['steps']} steps; {finite:,} of "
        f"{finite + gone:,} networks did not diverge. a: root of the variance over seeds of the "
        "last embedding after training. b–f: medians over seeds. Bars: 95 % intervals (bootstrap "
        "over seeds). e: rms of the gradient by h_0 over that by h_L. Dotted: predicted slopes, "
        "through the middle of the points. Dashed: forward "
        f"gain at infinite width. Arrows: points above {MOST:g}, or all of whose networks "
        "diverged. c: difference of the last embedding from that of the network with each block "
        "linearised, at the stream that results, over the embedding's change. A layer is lazy "
        "where it is small, though the stream moves, and with it what every layer sees.",
        "Six log–log panels against depth for the scales one over L, one over root L and constant: "
        "the first has a spread that vanishes and local updates that stay, the second the reverse, "
        "and the third grows without bound.",
        data,
    )


def _panel(axes: Axes, data: pd.DataFrame, name: str, words: str, order: list[str]) -> None:
    shown = data[data[name] <= MOST].assign(
        **{f"{name}_high": data[f"{name}_high"].clip(upper=2 * MOST)}
    )
    plots.loglog(
        axes,
        shown,
        x="depth",
        y=name,
        hue="scale",
        kind="category",
        order=order,
        low=f"{name}_low",
        high=f"{name}_high",
        labels=("depth L", words),
    )
    inside = [max(value, LEAST) for value in shown[name]]
    plots.limits_from(axes, [*inside, *(1.6 * v for v in inside), *(v / 1.3 for v in inside)])
    if name == "forward_gain":
        for number, scale in enumerate(order):
            law = data[(data["scale"] == scale) & (data["theory_forward_gain"] <= MOST)]
            plots.theory(
                axes, law["depth"], law["theory_forward_gain"], None if number else "infinite width"
            )
    for exponent, power in SLOPES.get(name, ()):
        own = shown[(shown["exponent"] == exponent) & (shown[name] > 0)]
        if len(own) > 1:
            x = own["depth"].to_numpy(dtype=float)
            middle = np.exp(np.mean(np.log(own[name]) - power * np.log(x)))
            plots.theory(axes, x, middle * x**power, "predicted slope", style="dotted")
    ticks.at_values(axes.xaxis, data["depth"])
    measured = data[data["movement"].notna() | data["spread_initial"].notna()]
    cap(axes, measured, "depth", name, category_colours(order), "scale")
