"""Maps of the phase diagram: its phases and boundaries, and each quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from widthlab.experiments.phase_diagram.lines import MOST, counted_words, slug_of_label
from widthlab.experiments.phase_diagram.phases import (
    DOUBLED,
    KEPT,
    LAZY,
    LEARNED,
    LINEAR,
    PHASES,
    VALID,
)
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas
from widthlab.report.style import CATEGORIES, INK, PAPER, ramp
from widthlab.theory.deep_limits import LOCAL_UPDATE_SCALE

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

PANELS = 3
"""Most depths whose phases are drawn."""
PHASE_COLOURS = [CATEGORIES[name][0] for name in ("c2", "c4", "c1", "c5", "c3")]
PHASE_MARKS = ("o", "s", "^", "x", "D")
MAPPED = {
    "local_update": "Local update",
    "preactivation_change": "Relative change of pre-activations",
    "distance_lazy": "Distance to the block-linearised network",
    "loss_ratio": "Loss reached / loss before",
}


def phase_map(own: xr.Dataset) -> Figure:
    """Draw the phases over D and σ_v, one panel for each depth, with their boundaries."""
    depths = own["depth"].to_numpy()
    chosen = depths[np.unique(np.linspace(0, len(depths) - 1, PANELS).round().astype(int))]
    titles = []
    with canvas(ncols=len(chosen), height=400, sharey=True) as page:
        for axes, depth in zip(page.axes, chosen, strict=True):
            one = own.sel(depth=depth)
            _phases(axes, one)
            _boundaries(axes, one)
            titles.append(f"L = {depth}")
            axes.set_ylabel("σ_v" if axes is page.axes[0] else "")
        page.letter(*titles)
        page.legend()
    label, counted = str(own["model"].item()), counted_words(own)
    table = own[["phase", "finite", "diverged", "local_update", "loss_ratio"]]
    return page.finish(
        f"phase-diagram-{slug_of_label(label)}",
        f"Phases over embedding width and scale of outer weights: {label}",
        "Each field is one point of the grid, by embedding width D and the standard deviation σ_v "
        f"of outer weights; {counted}. MLU: local updates are at least {LAZY:g} of their maximum "
        "over σ_v, or σ_v is smaller than there. Beyond, lazy where the network ends within "
        f"{LINEAR:g} of its block-linearised one and pre-activations change by less than "
        f"{KEPT:g} of their size, small updates where not so. Exploding: "
        "either pass grows by "
        f"{DOUBLED:g} before training, most draws diverge, or the loss rises. Nothing learned: "
        f"the loss stays above {LEARNED:g} of its first value. Points: measured boundaries with "
        "95 % intervals over draws. Dashed: the first-order √D; dash-dotted: the predicted √(ML), "
        "independent of D; both through the middle of the measured points. Dotted: "
        f"σ_v = {VALID:g} √(ML), beyond which the lazy law is not expected to hold.",
        f"Maps of phases for {label} over D and σ_v on logarithmic axes, a panel for each depth: "
        "maximal local updates below a line of slope one half, small or lazy ones above it, "
        "exploding at the top.",
        table.to_dataframe().reset_index(),
    )


def _phases(axes: Axes, one: xr.Dataset) -> None:
    phase = one["phase"].transpose("sigma_v", "width").to_numpy()
    width, sigma = one["width"].to_numpy(), one["sigma_v"].to_numpy()
    axes.set_xscale("log")
    axes.set_yscale("log")
    x, y = _corners(width, sigma)
    shown = np.ma.masked_less(phase, 0)
    colours = ListedColormap(PHASE_COLOURS)
    norm = BoundaryNorm(np.arange(-0.5, len(PHASES)), len(PHASES))
    axes.pcolormesh(
        x, y, shown, cmap=colours, norm=norm, alpha=0.5, edgecolors=PAPER, linewidth=0.8
    )
    for number, (name, colour, mark) in enumerate(
        zip(PHASES, PHASE_COLOURS, PHASE_MARKS, strict=True)
    ):
        rows, columns = np.nonzero(phase == number)
        axes.plot(
            width[columns],
            sigma[rows] * np.sqrt(width[columns]),
            linestyle="",
            marker=mark,
            markersize=6,
            markeredgewidth=1.6,
            color=colour,
            zorder=3,
        )
        # The legend names all phases, also those that no point of the grid is in.
        axes.plot(
            [],
            [],
            linestyle="",
            marker=mark,
            markersize=9,
            markeredgewidth=1.6,
            color=colour,
            label=name,
        )
    ticks.at_values(axes.xaxis, width)
    axes.set_xlim(x.min(), x.max())
    axes.set_ylim(y.min(), y.max())
    axes.set_xlabel("embedding width D")
    axes.grid(visible=False)


def _boundaries(axes: Axes, one: xr.Dataset) -> None:
    width = one["width"].to_numpy().astype(float)
    ends = np.array(axes.get_xlim())
    for name, mark, power, style, words in (
        ("lazy_boundary", "D", LOCAL_UPDATE_SCALE, "dashed", "half of the local update"),
        ("exploding_boundary", "v", 0.0, "dashdot", "a pass doubles"),
    ):
        edge, low, high = (one[f"{name}{end}"].to_numpy() for end in ("", "_low", "_high"))
        known = np.isfinite(edge)
        if known.any():
            # An interval without an end is drawn without a bar.
            reach = np.nan_to_num(np.vstack([edge - low, high - edge])[:, known]).clip(min=0)
            axes.errorbar(
                width[known],
                edge[known],
                yerr=reach,
                fmt=mark,
                color=INK,
                markerfacecolor=PAPER,
                markeredgecolor=INK,
                markersize=8,
                elinewidth=1.4,
                capsize=4,
                zorder=6,
                label=words,
            )
            middle = np.exp(np.mean(np.log(edge[known]) - power * np.log(width[known])))
            law = "∝ √D" if power else "∝ √(ML)"
            plots.theory(axes, ends, middle * ends**power, law, style=style)  # type: ignore[arg-type]
    limits = axes.get_ylim()
    if limits[0] < float(one["valid_end"]) < limits[1]:
        label = f"{VALID:g} √(ML)"
        plots.theory(axes, ends, [float(one["valid_end"])] * 2, label, style="dotted")
    axes.set_xlim(*ends)


def quantity_maps(own: xr.Dataset) -> Figure:
    """Draw maps of four quantities over D and σ_v/√D, at the largest depth."""
    one = own.isel(depth=-1)
    width, sigma = one["width"].to_numpy(), one["sigma_v"].to_numpy()
    colours = ListedColormap([light for light, _ in ramp().values()])
    with canvas(ncols=2, nrows=2) as page:
        for axes, name in zip(page.axes, MAPPED, strict=True):
            values = one[name].transpose("sigma_v", "width").to_numpy()
            good = values[np.isfinite(values) & (values > 0)]
            axes.set_xscale("log")
            axes.set_yscale("log")
            x, y = _edges(width), _edges(sigma)
            low, high = (good.min(), min(good.max(), MOST)) if len(good) else (0.1, 1.0)
            low = max(low, 1e-3 * high)
            norm = LogNorm(low, high * 1.001 if high > low else low * 2)
            mesh = axes.pcolormesh(
                x, y, np.ma.masked_invalid(values), cmap=colours, norm=norm, edgecolors="none"
            )
            bar = page.figure.colorbar(
                mesh, ax=axes, extend="max" if len(good) and good.max() > MOST else "neither"
            )
            bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: ticks.log_label(v)))
            bar.ax.yaxis.set_major_locator(_few(low, high))
            bar.ax.yaxis.set_minor_locator(NullLocator())
            bar.outline.set_visible(False)
            end = float(one["valid_end"]) / np.sqrt(x)
            # Readable on any colour: a line of the paper on one of the ink.
            axes.plot(x, end, color=INK, linewidth=3, label=f"σ_v = {VALID:g} √(ML)")
            axes.plot(x, end, color=PAPER, linewidth=1.2)
            edge = one["lazy_boundary"].to_numpy() / np.sqrt(width)
            axes.plot(
                width, edge, "D", color=INK, markerfacecolor=PAPER, label="half of the local update"
            )
            ticks.at_values(axes.xaxis, width)
            axes.set_xlim(x[0], x[-1])
            axes.set_ylim(y[0], y[-1])
            axes.set_xlabel("embedding width D")
            axes.set_ylabel("σ_v / √D")
            axes.grid(visible=False)
        page.letter(*MAPPED.values())
        page.legend()
    label = str(own["model"].item())
    return page.finish(
        f"phase-diagram-{slug_of_label(label)}-maps",
        f"What training changed, over D and σ_v: {label}",
        f"Geometric means over draws at L = {int(one['depth'])}; {counted_words(one)}. a: what the "
        "change of a unit's own weights does to its pre-activation. b: change of pre-activations, "
        "that of the stream included, over their initial size. c: difference of the last embedding "
        "from that of the network with each block linearised about its initial weights, over the "
        "embedding's change. d: loss after training over that before. Values above "
        f"{MOST:g} have the colour of {MOST:g}. Diamonds: half of the largest local update. "
        "Line: where the domain of the lazy law ends.",
        f"Four maps for {label} over embedding width and σ_v in units of √D, with colour bars.",
        one[[*MAPPED]].to_dataframe().reset_index(),
    )


def _edges(values: Array) -> Array:
    """Return the ends of fields about rising positive values, one more than there are."""
    logs = np.log(np.asarray(values, dtype=float))
    if len(logs) == 1:
        return np.asarray(np.exp(logs[0] + np.array([-0.35, 0.35])))
    inner = (logs[1:] + logs[:-1]) / 2
    ends = [logs[0] - (inner[0] - logs[0]), *inner, logs[-1] + (logs[-1] - inner[-1])]
    return np.asarray(np.exp(ends))


def _corners(width: Array, sigma: Array) -> tuple[Array, Array]:
    """Return corners of the fields in D and σ_v, for σ_v in units of √D."""
    x, ratio = np.meshgrid(_edges(width), _edges(sigma))
    return x, ratio * np.sqrt(x)


def _few(low: float, high: float) -> FixedLocator:
    """Return a locator with a few round ticks of a logarithmic scale."""
    powers = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        places = sorted(float(f"{step * 10.0**p:.3g}") for p in powers for step in steps)
        inside = [place for place in places if low <= place <= high * 1.001]
        if len(inside) >= 3:
            break
    return FixedLocator(inside[:: max(1, len(inside) // 4)])
