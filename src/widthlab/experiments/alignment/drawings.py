"""Figures of alignment: by width, layer, budget and training step, and against the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import xarray as xr

from widthlab.experiments.alignment.growth_claims import mean_dimension
from widthlab.experiments.shared.frames import curves
from widthlab.experiments.shared.networks import (
    all_widths,
    counted,
    families_of,
    first_snapshot,
    last_snapshot,
    networks_of,
    over_seeds,
)
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATES = {"start": "initialisation", "end": "end of training"}


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return all figures; none where no network was measured."""
    if "d_align" not in dataset:
        return []
    return [
        _by_width(dataset),
        _by_layer(dataset),
        _by_budget(dataset),
        _against_bounds(dataset),
        _along_training(dataset),
    ]


def _states(dataset: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return the networks at initialisation, if any was measured there, and at the end."""
    start, end = first_snapshot(dataset), last_snapshot(dataset)
    measured = bool(start["signal"].notnull().any())
    return {"start": start, "end": end} if measured else {"end": end}


def _by_width(dataset: xr.Dataset) -> Figure:
    states = _states(dataset)
    apart = {key: state.sel(laws="different") for key, state in states.items()}
    published = states["end"].sel(laws="equal")
    noise = published["control_plug_in_d_align"].sel(control="centred").mean("layer")
    measured = {
        **{STATES[key]: mean_dimension(state) for key, state in apart.items()},
        "published estimate, end": published["plug_in_d_align"].mean("layer"),
        "published estimate, on noise": noise,
    }
    data = pd.concat(
        [
            over_seeds(dataset, values, "d_align").assign(estimate=name)
            for name, values in measured.items()
        ]
    )
    names = families_of(dataset)
    with canvas(ncols=len(names)) as page:
        for axes, family in zip(page.axes, names, strict=True):
            plots.loglog(
                axes,
                data[data["family"] == family],
                x="width",
                y="d_align",
                hue="estimate",
                kind="category",
                order=list(measured),
                low="low",
                high="high",
                labels=("width N", "d_align, mean over insertion points"),
            )
        page.letter(*names)
        page.legend()
    return page.finish(
        "alignment-width",
        "Effective alignment dimension against width",
        "Unbiased estimates, with laws of their own for training and test gradients, at "
        "initialisation and at the end of training, where a point whose estimates are not all "
        "positive counts as 0; beside them the published plug-in estimates of one law, on the "
        "gradients and on noise made of them (mean taken off, signs flipped): what lies no higher "
        f"than that noise says nothing. Bars: 95 % t intervals over seeds; {counted(dataset)}. "
        "Means of 0 cannot be drawn on a logarithmic axis.",
        "The effective alignment dimension against width on logarithmic axes for each family of "
        "networks, unbiased and published, and on noise.",
        data,
    )


def _by_layer(dataset: xr.Dataset) -> Figure:
    end = last_snapshot(dataset).sel(laws="different")
    names = families_of(dataset)
    parts = {"d_parallel": "d_∥", "d_2": "d₂", "snr": "signal's share m₁·m₂/√(tr Σ₁ tr Σ₂)"}
    tables = []
    for name in parts:
        for layer in range(end.sizes["layer"]):
            values = end[name].isel(layer=layer)
            tables.append(over_seeds(dataset, values, "value").assign(quantity=name, layer=layer))
    data = pd.concat(tables)
    with canvas(ncols=len(parts), nrows=len(names)) as page:
        for row, family in enumerate(names):
            for column, (name, words) in enumerate(parts.items()):
                own = data[(data["family"] == family) & (data["quantity"] == name)]
                plots.layers(
                    page.axes[len(parts) * row + column],
                    own,
                    y="value",
                    low="least",
                    high="most",
                    order=all_widths(dataset),
                    labels=("insertion point", words),
                )
        short = ("d_∥", "d₂", "signal's share")
        page.letter(*(f"{family}, {word}" for family in names for word in short))
        page.legend("width N")
    return page.finish(
        "alignment-layers",
        "Alignment by insertion point",
        "Unbiased estimates at the end of training along the network, mean over seeds of those "
        f"that are positive; {counted(dataset)}. Bands: range over seeds.",
        "The two dimensions and the signal's share of a gradient against the insertion point, a "
        "line for each width.",
        data,
    )


def _by_budget(dataset: xr.Dataset) -> Figure:
    """Draw the rate over M and K at the widest networks, with the bound."""
    states = {key: state.sel(laws="different") for key, state in _states(dataset).items()}
    names = families_of(dataset)
    rows = []
    for key, state in states.items():
        for family in names:
            own = networks_of(state, family)
            width = int(own["width"].max())
            own = own.isel(network=own["width"].to_numpy() == width).mean("layer")
            for budget in range(own.sizes["budget"]):
                one = own.isel(budget=budget)
                rows.append(
                    {
                        "family": family,
                        "state": key,
                        "width": width,
                        "M": int(one["train_samples"]),
                        "K": int(one["test_samples"]),
                        "rate": float(one["pool_rate"].mean()),
                        "b_exact": float(one["b_exact"].mean()),
                        "b_align": float(one["b_align"].mean()),
                    }
                )
    data = pd.DataFrame(rows)

    with canvas(ncols=len(states), nrows=len(names), sharey=True) as page:
        for row, family in enumerate(names):
            for column, key in enumerate(states):
                axes = page.axes[len(states) * row + column]
                panel = data[(data["family"] == family) & (data["state"] == key)]
                plots.series(
                    axes,
                    panel,
                    x="M",
                    y="rate",
                    hue="K",
                    scales=("log", "linear"),
                    labels=("training samples M of the step", "Pr(μ_M·g_K ≤ 0)"),
                )
                curves(axes, panel, "M", "b_exact", "B_exact", by="K")
                ticks.at_values(axes.xaxis, panel["M"])
                axes.set_ylim(0, 1.02)
        page.letter(*(f"{f}, {STATES[key]}" for f in names for key in states))
        page.legend("unseen samples K")
    return page.finish(
        "alignment-budgets",
        "Mismatches by samples of step and test",
        "How often the step of M training samples would harm K unseen ones, to first order, in the "
        "widest networks of each family: mean over insertion points and seeds of draws from the "
        "measured samples. Dashed: B_exact by unbiased estimates, one line for each K in the same "
        f"order. {counted(dataset)}.",
        "The rate of mismatches against M for several K, below the bound.",
        data,
    )


def _against_bounds(dataset: xr.Dataset) -> Figure:
    apart = dataset.sel(laws="different")
    names = families_of(dataset)
    rows = []
    for family in names:
        own = networks_of(apart, family)
        for width in sorted(set(own["width"].to_numpy().tolist())):
            one = own.isel(network=own["width"].to_numpy() == width)
            blocks = one["blocks"].where(one["b_exact"] < 1)
            over = ["network", "layer"]
            total = blocks.sum(over)
            bound = (one["b_exact"] * blocks).sum(over) / total
            rate = one["block_mismatches"].where(blocks > 0).sum(over) / total
            for b, r, n in zip(
                bound.to_numpy().ravel(),
                rate.to_numpy().ravel(),
                total.to_numpy().ravel(),
                strict=True,
            ):
                if n > 0:
                    rows.append(
                        {"family": family, "width": width, "b_exact": b, "rate": r, "blocks": n}
                    )
    data = pd.DataFrame(rows, columns=["family", "width", "b_exact", "rate", "blocks"])
    with canvas(ncols=len(names), sharey=True) as page:
        for axes, family in zip(page.axes, names, strict=True):
            plots.series(
                axes,
                data[data["family"] == family],
                x="b_exact",
                y="rate",
                hue="width",
                order=all_widths(dataset),
                line=False,
                labels=("B_exact", "share of blocks with μ_M·g_K ≤ 0"),
            )
            plots.theory(axes, [0, 1], [0, 1], "equal")
            axes.set_xlim(0, 1.02)
            axes.set_ylim(0, 1.02)
        page.letter(*names)
        page.legend("width N")
    return page.finish(
        "alignment-bounds",
        "Counted mismatches against the bound",
        "Every point is one budget (M, K) and one snapshot: the share of disjoint blocks of M "
        "training and K unseen samples with μ_M·g_K ≤ 0, against B_exact by unbiased estimates, "
        "both over all insertion points and seeds of a width at which the estimates give a bound "
        f"below 1. Below the line the bound is kept. {counted(dataset)}.",
        "The share of mismatches against the bound, with the line on which both are equal.",
        data,
    )


def _along_training(dataset: xr.Dataset) -> Figure:
    apart = dataset.sel(laws="different")
    names = families_of(dataset)
    tables = []
    for snapshot in range(apart.sizes["snapshot"]):
        one = apart.isel(snapshot=snapshot)
        for name, values in (
            ("d_align", mean_dimension(one)),
            ("bound", one["has_bound"].mean("layer")),
        ):
            table = over_seeds(dataset, values, "value").assign(quantity=name)
            steps = over_seeds(dataset, one["step"], "step")["step"]
            tables.append(table.assign(step=steps.to_numpy() + 1.0))
    data = pd.concat(tables)
    order = all_widths(dataset)
    parts = {"d_align": "d_align, mean over points", "bound": "share of points with a bound"}
    with canvas(ncols=len(parts), nrows=len(names)) as page:
        for row, family in enumerate(names):
            for column, (name, words) in enumerate(parts.items()):
                own = data[(data["family"] == family) & (data["quantity"] == name)]
                _training_panel(page.axes[len(parts) * row + column], own, words, order)
        page.letter(*(f"{f}, {what}" for f in names for what in ("dimension", "bounds")))
        page.legend("width N")
    return page.finish(
        "alignment-training",
        "Alignment along training",
        "Unbiased estimates at every snapshot, and the share of insertion points at which an upper "
        "confidence limit of a bound lies below 1. As training ends the mean gradient of training "
        "samples vanishes, and with it what they say of unseen ones. Bands: range over seeds. "
        f"{counted(dataset)}.",
        "The effective alignment dimension and the share of points with a bound against the step "
        "of training, a line for each width.",
        data,
    )


def _training_panel(axes: Axes, data: pd.DataFrame, words: str, order: list[int]) -> None:
    plots.series(
        axes,
        data,
        x="step",
        y="value",
        hue="width",
        order=order,
        low="least",
        high="most",
        scales=("log", "linear"),
        labels=("training step + 1", words),
    )
