"""Curves of the phase diagram: quantities against σ_v, and the gain of the passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from widthlab.experiments.phase_diagram.phases import DOUBLED, VALID
from widthlab.experiments.shared.caps import cap
from widthlab.experiments.shared.deep_runs import CHANGES, forward_law
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas
from widthlab.report.style import ordered_colours

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

MOST = 10.0
"""Largest value that a map or a curve shows."""
_CURVES = {
    "local_update": ("Local update", "rms of κ(u − u₀)·h"),
    "preactivation_change": ("Change of pre-activations", "change / rms before training"),
    "distance": ("Distance to the linearised network", "distance / change of h_L"),
    "distance_lazy": ("Distance to block-linearised", "distance / change of h_L"),
    "loss_ratio": ("Loss reached", "loss / loss before training"),
}


def curves(own: xr.Dataset) -> Figure:
    """Draw quantities against σ_v/√D by width, and the gain of the passes by depth."""
    deepest = own.isel(depth=-1)
    names = [f"{n}{e}" for n in CHANGES for e in ("", "_low", "_high")]
    data = deepest[[*names]].to_dataframe().reset_index()
    end = float(deepest["valid_end"])
    data["valid"] = data["sigma_v"] * np.sqrt(data["width"]) <= end
    colours = ordered_colours(list(own["width"].to_numpy()))
    with canvas(ncols=3, nrows=2) as page:
        for axes, (name, words) in zip(page.axes, _CURVES.items(), strict=False):
            _curve(axes, data, name, words, colours)
            if name == "local_update" and data["valid"].any():
                within = data[data["valid"] & (data["sigma_v"] >= 2)]
                if len(within):
                    middle = float(np.exp(np.log(within["sigma_v"]).mean()))
                    height = float(np.exp(np.log(within[name]).mean()))
                    plots.slope(axes, -1.0, (1.6 * middle, 1.6 * height), "slope −1")
        _gains(page.axes[-1], own)
        page.letter(*(title for title, _ in _CURVES.values()), "Gain of a pass before training")
        page.legend("embedding width D (a–e)")
    label = str(own["model"].item())
    width = int(own["width"][-1])
    return page.finish(
        f"phase-diagram-{slug_of_label(label)}-curves",
        f"From maximal local updates to laziness: {label}",
        f"a–e: geometric means over draws at L = {int(deepest['depth'])}, against σ_v in units of "
        f"√D; {counted_words(deepest)}. Bands: 95 % intervals over draws. Crosses: beyond σ_v = "
        f"{VALID:g} √(ML), where the lazy law is not expected. Arrows: points above the axes. "
        "b: change of pre-activations, that of the stream included, over their initial size. "
        "c, d: difference of the last embedding from that of the network linearised as a whole, "
        "and from that of the network with each block linearised. "
        f"f: the larger gain of forward and backward pass at D = {width}, against σ_v/√(ML). "
        "Dashed: gain of the forward pass at infinite width (block law of the signal variance).",
        f"Six panels for {label}: local update, change of pre-activations, distances to two "
        "linearised networks, and loss against σ_v over √D; gains of the passes against σ_v over "
        "the root of M L.",
        data,
    )


def _curve(
    axes: Axes,
    data: pd.DataFrame,
    name: str,
    words: tuple[str, str],
    colours: dict[Any, str],
) -> None:
    valid = data[data["valid"] & (data[name] <= MOST)]
    options: dict[str, Any] = {"low": f"{name}_low", "high": f"{name}_high"}
    plots.series(
        axes,
        valid,
        x="sigma_v",
        y=name,
        hue="width",
        order=list(colours),
        scales=("log", "log"),
        labels=("σ_v / √D", words[1]),
        **options,
    )
    beyond = data[~data["valid"]]
    inside = beyond[beyond[name] <= MOST]
    for width, one in inside.groupby("width"):
        axes.plot(
            one["sigma_v"], one[name], "x", color=colours[width], markeredgewidth=1.6, zorder=2
        )
    ticks.at_values(axes.xaxis, data["sigma_v"])
    plots.limits_from(axes, [*valid[name], *inside[name]])
    measured = data.dropna(subset=["loss_initial"])
    cap(axes, measured, "sigma_v", name, colours, "width")


def _gains(axes: Axes, own: xr.Dataset) -> None:
    one = own.isel(width=-1)
    data = one[["forward_gain", "backward_gain"]].to_dataframe().reset_index()
    hidden, width = float(own.attrs["hidden"]), float(one["width"])
    data["gain"] = data[["forward_gain", "backward_gain"]].max(axis=1)
    data["scale"] = data["sigma_v"] * np.sqrt(width / (hidden * data["depth"]))
    data = data[np.isfinite(data["gain"])]
    # Other colours than those of D in the panels beside it.
    data["at"] = [f"L = {depth}" for depth in data["depth"]]
    plots.series(
        axes,
        data,
        x="scale",
        y="gain",
        hue="at",
        kind="category",
        scales=("log", "log"),
        labels=("σ_v / √(ML)", "rms out / rms in"),
    )
    plots.theory(axes, list(axes.get_xlim()), [DOUBLED] * 2, "doubled", style="dotted")
    if (data["gain"] < 1e3).any():
        activation = str(own["activation"].item())
        sigma_u = float(own["sigma_u"])
        shown = data[data["gain"] < 1e3]
        scale = np.geomspace(data["scale"].min(), shown["scale"].max(), 40)
        depth = int(data["depth"].max())
        law = [forward_law(depth, activation, sigma_u, s / np.sqrt(depth)) for s in scale]
        plots.theory(axes, scale, law, "infinite width, forward")
        plots.limits_from(axes, [*data["gain"][data["gain"] < 1e3], 1.0])


def counted_words(own: xr.Dataset) -> str:
    """Say how many networks did not diverge."""
    finite, gone = int(own["finite"].sum()), int(own["diverged"].sum())
    return f"{finite:,} of {finite + gone:,} networks did not diverge"


def slug_of_label(label: str) -> str:
    """Return a label as a part of a figure's name."""
    return label.replace("_", "-")
