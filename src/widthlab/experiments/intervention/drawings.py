"""Figures of interventions: where first order holds, and observed against predicted changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from widthlab.experiments.shared.networks import (
    all_widths,
    counted,
    families_of,
    networks_of,
    over_seeds,
)
from widthlab.report import plots
from widthlab.report.figures import Figure, canvas

SHOWN = 3
"""Insertion points, evenly spaced, whose draws are drawn one by one."""


RATIOS = (-1.0, 3.0)
"""What is drawn of the ratio: beyond it first order has long ended."""


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return all figures; none where no network was measured."""
    return [_by_scale(dataset), _ends(dataset), _draws(dataset)] if "ratio" in dataset else []


def _by_scale(dataset: xr.Dataset) -> Figure:
    names = families_of(dataset)
    resolved = dataset["resolved"] == 1
    parts = {"ratio": "observed/predicted change", "sign_agreement": "share with predicted sign"}
    tables = []
    for name in parts:
        for scale in dataset["scale"].to_numpy():
            at = dataset[name].where(resolved).sel(scale=scale).mean("layer")
            table = over_seeds(dataset, at, "value").assign(quantity=name, scale=scale)
            tables.append(table)
    data = pd.concat(tables)
    order = all_widths(dataset)
    with canvas(ncols=len(parts), nrows=len(names)) as page:
        for row, family in enumerate(names):
            for column, (name, words) in enumerate(parts.items()):
                axes = page.axes[len(parts) * row + column]
                own = data[(data["family"] == family) & (data["quantity"] == name)]
                plots.series(
                    axes,
                    own,
                    x="scale",
                    y="value",
                    hue="width",
                    order=order,
                    low="least",
                    high="most",
                    scales=("log", "linear"),
                    labels=("size of the step b over the activation", words),
                )
                ends = dataset["scale"].to_numpy()[[0, -1]]
                plots.theory(axes, ends, [1, 1], "to first order")
                if name == "ratio":
                    axes.set_ylim(*RATIOS)
        page.letter(*(f"{f}, {what}" for f in names for what in ("ratio", "sign")))
        page.legend("width N")
    return page.finish(
        "intervention-steps",
        "How far first order goes",
        "Change of the held-out loss when the activation is stepped along −μ_M, over its "
        "prediction −η μ_M·g_K, and the share of draws in which both have the same sign; mean over "
        "insertion points at which the step is resolved, then over seeds. Bands: range over seeds; "
        f"ratios are cut at {RATIOS[0]:g} and {RATIOS[1]:g}. "
        f"{counted(dataset)}.",
        "Ratio of observed to predicted change and share of equal signs against the step size, a "
        "line for each width.",
        data,
    )


def _ends(dataset: xr.Dataset) -> Figure:
    data = over_seeds(dataset, dataset["first_order_end"].median("layer"), "end")
    never = int(
        (dataset["first_order_end"].isnull() & dataset["ratio"].notnull().any("scale")).sum()
    )
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            data,
            x="width",
            y="end",
            hue="family",
            kind="category",
            low="least",
            high="most",
            labels=("width N", "largest first-order step, b over the activation"),
        )
        page.legend("family")
    return page.finish(
        "intervention-ends",
        "Where first order ends",
        "Largest step of the grid up to which the observed change is within 10 % of the predicted "
        "one at all resolved steps: median over insertion points, mean over seeds; bars: range "
        f"over seeds. At {never} points of all networks no step is. {counted(dataset)}.",
        "The largest step that is still of first order, against width, for each family.",
        data,
    )


def _draws(dataset: xr.Dataset) -> Figure:
    """Draw single draws at a small and at a large step."""
    names = families_of(dataset)
    scales = dataset["scale"].to_numpy()
    chosen = [scales[len(scales) // 3], scales[-1]]
    tables = []
    for family in names:
        own = networks_of(dataset, family)
        # Layers that this family does not have are NaN.
        layers = int((own["point"].to_numpy() != "").any(axis=0).sum())
        shown = np.unique(np.linspace(0, layers - 1, SHOWN).round().astype(int))
        for scale in chosen:
            part = own[["predicted", "observed"]].sel(scale=scale).isel(layer=shown)
            table = part.to_dataframe().reset_index().dropna(subset=["predicted", "observed"])
            tables.append(table.assign(family=family, scale=scale))
    data = pd.concat(tables)[["family", "width", "seed", "layer", "scale", "predicted", "observed"]]
    order = all_widths(dataset)
    with canvas(ncols=len(chosen), nrows=len(names)) as page:
        for row, family in enumerate(names):
            for column, scale in enumerate(chosen):
                own = data[(data["family"] == family) & (data["scale"] == scale)]
                plots.quantiles(
                    page.axes[len(chosen) * row + column],
                    own,
                    x="predicted",
                    y="observed",
                    hue="width",
                    order=order,
                    labels=("predicted change −η μ_M·g_K", "observed change of the loss"),
                )
        page.letter(*(f"{f}, |b|/|z| = {scale:g}" for f in names for scale in chosen))
        page.legend("width N")
    return page.finish(
        "intervention-draws",
        "Observed against predicted changes",
        f"Every point is one draw of M = {dataset.attrs['step_samples']} training and "
        f"K = {dataset.attrs['held_out_samples']} unseen samples, at {SHOWN} insertion points of "
        f"every network, at a small and at the largest step. {counted(dataset)}.",
        "Observed against predicted change of the held-out loss, with the line on which both are "
        "equal.",
        data,
    )
