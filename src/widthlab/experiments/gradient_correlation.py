"""Correlation of neurons' gradients at initialisation, an effect of order 1/N.

The signed correlation E[g_i g_j] of two neurons is zero at every width by symmetry. What width
changes is the correlation of their squares, E[g_i² g_j²]/(E g_i²)² − 1, which is (1 + 5/N)^k − 1
with k ReLU layers above (2/N for linear ones): all neurons of a layer share the size of the
gradient that reaches them. Sources: Hanin & Nica (2020); Hanin (2018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.base import Inputs, Measured, Request
from widthlab.experiments.shared.random_draws import (
    DrawsCell,
    LayersSection,
    draws_requests,
    measure_draws,
)

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Gradient correlation at initialisation"
QUESTION = "How much do the gradients of a layer's neurons know of one another at finite width?"
METHOD = (
    "At every width, networks are drawn at random, and one output is differentiated by the carried "
    "signal of every layer. The squared form averages gᵢ² gⱼ² over all pairs of different "
    "neurons; the signed form averages gᵢ gⱼ. Both are averaged over inputs within a draw, and "
    "errors come from the spread over draws."
)
SMALL = 0.1
"""Largest k/N at which the exact form is tested: beyond, heavy tails hide it."""


class Section(LayersSection):
    """Grid of the gradient-correlation experiment."""


Cell = DrawsCell


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every architecture and width."""
    return draws_requests(section, [section.depth], ["gradients"])


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return gradient norms and pair moments by layer, over draws."""
    return measure_draws(cell, inputs, ["gradients"])


# ── the sweep ───────────────────────────────────────────────────────────────────────────────

MEASURED = {
    "squared": "E[g_i² g_j²]/(E g_i²)² − 1 over pairs of neurons",
    "squared_error": "standard error of squared (jackknife over draws)",
    "signed": "E[g_i g_j]/E g_i² over pairs of neurons",
    "signed_error": "standard error of signed (jackknife over draws)",
    "sampling_floor": "standard error of signed to expect where its true value is zero",
    "norm": "mean over draws of the gradient's norm |g|",
    "norm_spread": "standard deviation over draws of the gradient's norm |g|",
}


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return correlations by model, width and layer, with theory beside them and claims."""
    import xarray as xr

    from widthlab.claims import to_json
    from widthlab.experiments.shared.laws import gradient_law
    from widthlab.statistics.gradient_correlation import signed_correlation, squared_correlation

    labels, widths = list(section.models), section.width
    shape = (len(labels), len(widths), section.depth + 1)
    found = {name: np.full(shape, np.nan) for name in (*MEASURED, "exact")}
    draws = np.zeros(shape[:2], dtype=np.int64)
    samples: dict[tuple[str, int], Array] = {}
    for one in measured:
        at = labels.index(one.label), widths.index(one.cell.width)
        statistics = one.statistics.load()
        squared = squared_correlation(statistics["m22"], statistics["m2"])
        signed = signed_correlation(statistics["m11"], statistics["m2"], statistics["m22"])
        norm = statistics["gradient_norm"].mean("input")
        draws[at] = int(squared["draws"].min())
        for name, values in {
            "squared": squared["estimate"],
            "squared_error": squared["standard_error"],
            "signed": signed["estimate"],
            "signed_error": signed["standard_error"],
            "sampling_floor": signed["sampling_floor"],
            "norm": norm.mean("draw"),
            "norm_spread": norm.std("draw", ddof=1),
        }.items():
            found[name][at] = values.to_numpy()
        below = statistics[["m22", "m2"]].sel(layer=section.depth - 1)
        samples[one.label, one.cell.width] = (
            below.to_array().transpose("draw", "input", ...).to_numpy()
        )
    for i, architecture in enumerate(section.models.values()):
        for j, width in enumerate(widths):
            law = gradient_law(architecture, width, section.depth)
            if law is not None:
                found["exact"][i, j] = law
    texts = {**MEASURED, "exact": "exact law of squared, where there is one"}
    dims = ("model", "width", "layer")
    dataset = xr.Dataset(
        {
            **{n: (dims, found[n], {"units": "1", "description": t}) for n, t in texts.items()},
            "draws": (dims[:2], draws, {"units": "1", "description": "finite draws"}),
            "layers_above": (
                "layer",
                section.depth - np.arange(section.depth + 1),
                {"units": "layers", "description": "k, hidden layers above"},
            ),
        },
        coords={"model": labels, "width": widths, "layer": np.arange(section.depth + 1)},
        attrs={"experiment": "gradient_correlation", "asked": section.draws},
    )
    dataset.attrs["claims"] = to_json(claims(section, dataset, samples))
    return dataset


# ── claims ──────────────────────────────────────────────────────────────────────────────────


def claims(
    section: Section, dataset: xr.Dataset, samples: dict[tuple[str, int], Array]
) -> list[Claim]:
    """Judge the exact form, the exponent in N and the zero of the signed form, by model."""
    made: list[Claim] = []
    for label in section.models:
        present = [width for width in section.width if (label, width) in samples]
        if not present:
            continue
        own = dataset.sel(model=label, width=present)
        draws = int(own["draws"].min())
        if np.isfinite(own["exact"]).all():
            made.append(_exact_claim(label, own, draws))
        made.append(_exponent_claim(label, present, samples))
        made.append(_signed_claim(label, own, draws))
    return made


def _points(own: xr.Dataset, names: tuple[str, ...], largest: float) -> pd.DataFrame:
    """Return hidden layers with at least one layer above and k/N small enough, as a table."""
    own = own.sel(layer=own["layer"] > 0)
    data = own[[*names, "layers_above"]].to_dataframe().reset_index()
    small = data["layers_above"] <= np.maximum(largest * data["width"], 1)
    return data[small & (data["layers_above"] > 0)]


def _named(data: pd.DataFrame) -> list[str]:
    return [f"N = {n}, k = {k}" for n, k in zip(data["width"], data["layers_above"], strict=True)]


def _exact_claim(label: str, own: xr.Dataset, draws: int) -> Claim:
    from widthlab.experiments.shared.verdicts import band_claim

    data = _points(own, ("exact", "squared", "squared_error"), SMALL)
    return band_claim(
        f"gradient_correlation.{label}.exact",
        f"{label}: squared gradients of two neurons are correlated by (1 + c/N)ᵏ − 1 with k "
        f"layers above (c = 5 for ReLU, 2 for linear), at k up to {SMALL:g} N",
        "Hanin (2018); Hanin & Nica (2020)",
        data["exact"].to_numpy(),
        data["squared"].to_numpy(),
        data["squared_error"].to_numpy(),
        labels=_named(data),
        draws=draws,
        rival=np.zeros(len(data)),
    )


def _exponent_claim(label: str, widths: list[int], samples: dict[tuple[str, int], Array]) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_power_law

    law = fit_power_law(
        widths, [samples[label, width] for width in widths], statistic=_squared, seed=0
    )
    return exponent_claim(
        f"gradient_correlation.{label}.exponent",
        f"{label}: the correlation of squared gradients through one layer (k = 1) falls as 1/N",
        "Hanin (2018): gradient fluctuations are of order L/N",
        law,
        -1.0,
        (-0.5, -2.0),
    )


def _squared(values: Array) -> Array:
    """E[m22]/(E m2)² − 1 from (batch, draws, inputs, 2), averaged over inputs."""
    mean = values.mean(axis=1)
    return np.asarray((mean[..., 0] / mean[..., 1] ** 2 - 1).mean(axis=1))


def _signed_claim(label: str, own: xr.Dataset, draws: int) -> Claim:
    from widthlab.experiments.shared.verdicts import band_claim

    data = _points(own, ("signed", "signed_error"), np.inf)
    return band_claim(
        f"gradient_correlation.{label}.signed",
        f"{label}: the signed correlation of two neurons' gradients is zero at every width",
        "symmetry of the weights; its sampling floor is √(2(1+ρ)/(N(N−1)·draws))",
        np.zeros(len(data)),
        data["signed"].to_numpy(),
        data["signed_error"].to_numpy(),
        rival=1 / data["width"].to_numpy(),
        labels=_named(data),
        draws=draws,
    )


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the correlation by layers above, its fall with width, and the signed form."""
    data = dataset.drop_vars("draws").to_dataframe().reset_index().dropna(subset=["squared"])
    for name in ("squared", "signed"):
        data[f"{name}_low"] = data[name] - 2 * data[f"{name}_error"]
        data[f"{name}_high"] = data[name] + 2 * data[f"{name}_error"]
    present = dataset["draws"].to_numpy()[dataset["draws"].to_numpy() > 0]
    counted = (
        f"{int(present.sum()):,} of {int(dataset.attrs['asked']) * len(present):,} draws are finite"
    )
    return [
        _above_figure(data, counted),
        _width_figure(data, counted),
        _norm_figure(data, counted),
        _signed_figure(data, counted),
    ]


def _above_figure(data: pd.DataFrame, counted: str) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = data[data["layer"] > 0]
    labels = list(data["model"].unique())
    with canvas(ncols=len(labels)) as page:
        for axes, label in zip(page.axes, labels, strict=True):
            own = data[data["model"] == label]
            plots.layers(
                axes,
                own,
                x="layers_above",
                y="squared",
                low="squared_low",
                high="squared_high",
                labels=("hidden layers above k", "correlation of squared gradients"),
            )
            for number, (_, law) in enumerate(own.dropna(subset=["exact"]).groupby("width")):
                name = None if number else "exact law"
                plots.theory(axes, law["layers_above"], law["exact"], name)
            plots.limits_from(axes, list(own["squared"]))
        page.letter(*labels)
        page.legend("width N")
    return page.finish(
        "gradient-correlation-layers",
        "Correlation of squared gradients by the layers above",
        f"E[gᵢ² gⱼ²]/(E gᵢ²)² − 1 against the number k of hidden layers above; {counted}. "
        "Bands: two standard errors (jackknife over draws). Dashed: (1 + 5/N)ᵏ − 1 for ReLU, "
        "(1 + 2/N)ᵏ − 1 for linear layers.",
        "The correlation of squared gradients against the number of layers above, a line for each "
        "width, with the exact law where there is one.",
        data,
    )


def _width_figure(data: pd.DataFrame, counted: str) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    depth = int(data["layer"].max())
    data = data[data["layer"] == 0]
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            data,
            x="width",
            y="squared",
            hue="model",
            kind="category",
            low="squared_low",
            high="squared_high",
            line=False,
            labels=("width N", f"correlation of squared gradients, k = {depth}"),
        )
        known = data.dropna(subset=["exact"])
        for number, (_, law) in enumerate(known.groupby("model", sort=False)):
            plots.theory(axes, law["width"], law["exact"], None if number else "exact law")
        page.legend()
    return page.finish(
        "gradient-correlation-width",
        "Correlation of squared gradients against width",
        f"The correlation at the first carried signal, {depth} layers below the output; {counted}. "
        "Bars: two standard errors over draws. Dashed: the exact law.",
        "The correlation against width on two logarithmic axes, for each architecture.",
        data,
    )


def _norm_figure(data: pd.DataFrame, counted: str) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = data.assign(
        norm_low=data["norm"] - data["norm_spread"], norm_high=data["norm"] + data["norm_spread"]
    )
    data = data[data["layer"] > 0]
    labels = list(data["model"].unique())
    with canvas(ncols=len(labels)) as page:
        for axes, label in zip(page.axes, labels, strict=True):
            plots.layers(
                axes,
                data[data["model"] == label],
                y="norm",
                low="norm_low",
                high="norm_high",
                labels=("layer l", "norm of the gradient"),
            )
        page.letter(*labels)
        page.legend("width N")
    return page.finish(
        "gradient-correlation-norm",
        "Norm of the gradient by layer",
        f"Norm of the gradient of one output by the carried signal of each layer; {counted}. "
        "Lines: mean over draws. Bands: one standard deviation over draws.",
        "The mean gradient norm by layer for several widths, with its spread over draws.",
        data,
    )


def _signed_figure(data: pd.DataFrame, counted: str) -> Figure:
    from widthlab.report import plots, ticks
    from widthlab.report.figures import canvas

    data = data[data["layer"] == 1]
    labels = list(data["model"].unique())
    with canvas(ncols=len(labels)) as page:
        for axes, label in zip(page.axes, labels, strict=True):
            own = data[data["model"] == label].sort_values("width")
            plots.series(
                axes,
                own,
                x="width",
                y="signed",
                low="signed_low",
                high="signed_high",
                spread="bars",
                line=False,
                scales=("log", "linear"),
                labels=("width N", "signed correlation"),
            )
            ticks.at_values(axes.xaxis, own["width"])
            for sign in (2, -2):
                plots.theory(
                    axes,
                    own["width"],
                    sign * own["sampling_floor"],
                    "± 2 sampling floors" if sign > 0 else None,
                    style="dotted",
                )
        page.letter(*labels)
        page.legend()
    return page.finish(
        "gradient-correlation-signed",
        "The signed correlation beside its sampling floor",
        f"E[gᵢ gⱼ]/E gᵢ² at the first hidden layer; {counted}. Bars: two standard errors over "
        "draws. Dotted: twice the standard error to expect, at most, where the true value is zero.",
        "Signed correlations by width, with twice their sampling floor about zero.",
        data,
    )
