"""Signal variance at initialisation, against depth and width.

Networks are drawn at random and run on a few real inputs, scaled to |x|² = d. The signal
variance q_l = |h_l|²/N of the carried signal is compared with the block law of infinite width,
its logarithm with the exact laws of finite width, and its second moment with the exact ReLU and
linear products. Sources: Hanin & Nica (2020); Roberts, Yaida & Hanin (2022).
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
from widthlab.specs import Perceptron

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Signal variance at initialisation"
QUESTION = (
    "How does the variance of a random network's signal move with depth, and how much of that "
    "is an effect of finite width?"
)
METHOD = (
    "At every width, networks are drawn at random and run on training inputs that are scaled to "
    "|x|² = d. The signal variance q = |h|²/N of every layer is averaged over inputs within a "
    "draw, since they share the weights, and errors come from the spread over draws. Signals that "
    "have died (q = 0) or are not finite are counted; dead ones are left out of logarithms only."
)
SMALL = 0.1
"""Largest l/N at which means of q and q² are compared: beyond, heavy tails hide them."""
LEADING = 0.25
"""Largest L/N at which the leading order in 1/N is judged by an exponent."""


class Section(LayersSection):
    """Grid of the variance experiment."""


Cell = DrawsCell


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every architecture and width."""
    return draws_requests(section, [section.depth])


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return signal variance and mean by layer, and correlations of inputs, over draws."""
    return measure_draws(cell, inputs, ["signals"])


# ── the sweep ───────────────────────────────────────────────────────────────────────────────


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return moments by model, width and layer, with theory beside them and claims."""
    import xarray as xr

    from widthlab.claims import to_json
    from widthlab.experiments.shared.laws import signal_laws
    from widthlab.statistics.moments import signal_moments

    labels, widths = list(section.models), section.width
    shape = (len(labels), len(widths), section.depth + 1)
    found = {name: np.full(shape, np.nan) for name in (*MEASURED, *THEORY)}
    draws = np.zeros(shape[:2], dtype=np.int64)
    signals: dict[tuple[str, int], Array] = {}
    for one in measured:
        at = labels.index(one.label), widths.index(one.cell.width)
        q = one.statistics["signal_variance"].transpose("draw", "layer", "input").to_numpy()
        signals[one.label, one.cell.width] = q
        draws[at] = len(q)
        for name, values in vars(signal_moments(q)).items():
            found[name][at] = values
    for i, architecture in enumerate(section.models.values()):
        for j, width in enumerate(widths):
            for name, values in signal_laws(architecture, width, section.depth).items():
                found[name][i, j] = values
    dims = ("model", "width", "layer")
    dataset = xr.Dataset(
        {
            **{
                name: (dims, found[name], {"units": "1", "description": text})
                for name, text in (MEASURED | THEORY).items()
            },
            "draws": (dims[:2], draws, {"units": "1", "description": "networks drawn"}),
        },
        coords={"model": labels, "width": widths, "layer": np.arange(section.depth + 1)},
        attrs={"experiment": "variance", "inputs": section.inputs},
    )
    dataset.attrs["claims"] = to_json(claims(section, dataset, signals))
    return dataset


MEASURED = {
    "mean": "mean of the signal variance q over draws",
    "mean_error": "standard error of mean",
    "median": "median of q over draws and inputs",
    "square": "mean of (q_l / q_0)²",
    "square_error": "standard error of square",
    "log_mean": "mean of log(q_l / q_0) over living signals",
    "log_mean_error": "standard error of log_mean",
    "log_median": "median of log(q_l / q_0) over living signals",
    "log_variance": "variance of log(q_l / q_0) over draws",
    "log_variance_error": "standard error of log_variance",
    "alive": "share of draws and inputs whose signal is alive",
}
THEORY = {
    "block_law": "q at infinite width, by the block law from q_0 = 1",
    "exact_square": "exact E (q_l / q_0)² at this width, where there is a law",
    "exact_log_mean": "exact mean of log(q_l / q_0), where there is a law",
    "exact_log_variance": "exact variance of log(q_l / q_0), where there is a law",
}


# ── claims ──────────────────────────────────────────────────────────────────────────────────


def claims(
    section: Section, dataset: xr.Dataset, signals: dict[tuple[str, int], Array]
) -> list[Claim]:
    """Judge the laws of every model that has them."""
    made: list[Claim] = []
    for label, architecture in section.models.items():
        own = dataset.sel(model=label)
        present = [width for width in section.width if (label, width) in signals]
        if not present:
            continue
        own = own.sel(width=present)
        made.extend(_law_claims(label, architecture, own, section.draws))
        made.append(_scaling_claim(label, section, present, signals))
    return made


def _law_claims(label: str, architecture: Perceptron, own: xr.Dataset, draws: int) -> list[Claim]:
    """Judge the block law and the exact laws that the model has."""
    depth = int(own["layer"][-1])
    laws = {name for name in THEORY if np.isfinite(own[name]).all()}
    made: list[Claim] = []
    shallow = _shallow(own)
    if "block_law" in laws and shallow is not None:
        made.append(_mean_claim(label, shallow, draws, exact="exact_square" in laws))
    if "exact_square" in laws and shallow is not None:
        made.append(_square_claim(label, architecture, shallow, draws))
    last = own.sel(layer=depth)
    widths = own["width"].to_numpy()
    # What would be the case if nothing drifted, and if fluctuations fell as 1/√N only.
    slow = np.sqrt(widths[-1] / widths)
    rivals = {
        "log_mean": np.zeros(len(widths)),
        "log_variance": last["exact_log_variance"].to_numpy()[-1] * slow,
    }
    for name, text in (("log_mean", "mean"), ("log_variance", "variance")):
        if f"exact_{name}" in laws:
            made.append(
                _band(
                    f"variance.{label}.{name}",
                    f"{label}: the {text} of log(q/q₀) over draws follows its exact law in N",
                    "Hanin & Nica (2020): sums of ψ and ψ' over layers",
                    last.stack(point=["width"]),
                    (f"exact_{name}", name),
                    rivals[name],
                    draws,
                    labels=[f"N = {width}, l = {depth}" for width in widths],
                )
            )
    return made


def _shallow(own: xr.Dataset) -> xr.Dataset | None:
    """Return, for every width, the deepest layer with l/N small enough for moments of q."""
    widths = own["width"].to_numpy()
    layers = np.floor(SMALL * widths).astype(int).clip(max=int(own["layer"][-1]))
    few = np.flatnonzero(layers >= 1)
    if len(few) == 0:
        return None
    import xarray as xr

    points = {
        "width": xr.DataArray(widths[few], dims="point"),
        "layer": xr.DataArray(layers[few], dims="point"),
    }
    return own.sel(points)


def _band(
    identifier: str,
    statement: str,
    source: str,
    points: xr.Dataset,
    names: tuple[str, str],
    rival: Array,
    draws: int,
    *,
    labels: list[str] | None = None,
    tolerance: Array | float = 0.0,
) -> Claim:
    """Judge the law names[0] of the measured names[1] at points of (width, layer)."""
    from widthlab.experiments.shared.verdicts import band_claim

    law, measured = names
    if labels is None:
        pairs = zip(points["width"].to_numpy(), points["layer"].to_numpy(), strict=True)
        labels = [f"N = {width}, l = {layer}" for width, layer in pairs]
    return band_claim(
        identifier,
        statement,
        source,
        points[law].to_numpy(),
        points[measured].to_numpy(),
        points[f"{measured}_error"].to_numpy(),
        rival=rival,
        labels=labels,
        draws=draws,
        tolerance=tolerance,
    )


def _mean_claim(label: str, points: xr.Dataset, draws: int, *, exact: bool) -> Claim:
    """Judge the block law of the mean: exact at every width, or up to order l/N."""
    law = points["block_law"].to_numpy()
    order = law * (points["layer"] / points["width"]).to_numpy()
    if exact:
        words = f"at every width, without any shift of order l/N (depths up to {SMALL:g} N)"
        # The rival: the mean drifts as the typical value does, or by l/N where that is unknown.
        typical = law * np.exp(points["exact_log_mean"].to_numpy())
        rival = np.where(np.isfinite(typical), typical, law - order)
        tolerance = 0.0 * law
    else:
        words = f"up to corrections of order l/N (depths up to {SMALL:g} N)"
        rival, tolerance = np.ones_like(law), order
    return _band(
        f"variance.{label}.mean",
        f"{label}: the mean signal variance follows the block law {words}",
        "block law; Hanin & Nica (2020)" if exact else "Poole et al. (2016); block law",
        points,
        ("block_law", "mean"),
        rival,
        draws,
        tolerance=tolerance,
    )


def _square_claim(label: str, architecture: Perceptron, points: xr.Dataset, draws: int) -> Claim:
    product = architecture.name == "mlp"
    return _band(
        f"variance.{label}.square",
        f"{label}: E (q/q₀)² follows its exact law in N at depths up to {SMALL:g} N",
        "Hanin & Nica (2020): ∏(1 + 5/N) for ReLU, ∏(1 + 2/N) for linear layers, at criticality"
        if product
        else "exact second moment of residual blocks with Gaussian weights",
        points,
        ("exact_square", "square"),
        points["block_law"].to_numpy() ** 2,
        draws,
    )


def _scaling_claim(
    label: str, section: Section, widths: list[int], signals: dict[tuple[str, int], Array]
) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.moments import log_ratio

    widths = [width for width in widths if section.depth <= LEADING * width]
    samples = [log_ratio(signals[label, width], section.depth) for width in widths]
    law = fit_power_law(widths, samples, statistic=_variance, seed=0)
    # A layer's fluctuation has corrections of relative order 5/N (ReLU's own constant).
    reach = np.log(widths[-1] / widths[0]) if len(widths) > 1 else 1.0
    tolerance = 5 / widths[0] / reach if widths else 0.0
    return exponent_claim(
        f"variance.{label}.exponent",
        f"{label}: the variance of log q over draws falls as 1/N at fixed depth, where "
        f"L/N ≤ {LEADING:g}",
        "Roberts, Yaida & Hanin (2022): fluctuations are of order L/N",
        law,
        -1.0,
        (-0.5, -2.0),
        tolerance=tolerance,
    )


def _variance(values: Array) -> Array:
    """Variance over draws of each input, averaged: (batch, draws, inputs) → (batch,)."""
    return np.asarray(values.var(axis=1, ddof=1).mean(axis=-1))


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the signal by layer, its fluctuations by width, and their collapse in L/N."""
    return [
        *(_layer_figure(dataset, str(label)) for label in dataset["model"].to_numpy()),
        _scaling_figure(dataset),
        _collapse_figure(dataset),
    ]


def _table(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the sweep as a tidy table with two-standard-error intervals."""
    data = dataset.drop_vars("draws").to_dataframe().reset_index().dropna(subset=["mean"])
    for name in ("mean", "square", "log_mean", "log_variance"):
        data[f"{name}_low"] = data[name] - 2 * data[f"{name}_error"]
        data[f"{name}_high"] = data[name] + 2 * data[f"{name}_error"]
    data["layer_over_width"] = data["layer"] / data["width"]
    return data


def _counted(dataset: xr.Dataset, data: pd.DataFrame) -> str:
    """Say how many signals are alive at the last layer, of how many."""
    last = data[data["layer"] == data["layer"].max()]
    draws = dataset["draws"].to_dataframe().reset_index()
    total = last.merge(draws, on=["model", "width"])
    signals = total["draws"] * int(dataset.attrs["inputs"])
    alive = round(float((signals * total["alive"]).sum()))
    return f"{alive:,} of {int(signals.sum()):,} signals are alive at the last layer"


def _layer_figure(dataset: xr.Dataset, label: str) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = _table(dataset)
    data = data[data["model"] == label]
    panels = {
        "mean": ("block_law", "mean of q", "Mean"),
        "log_mean": ("exact_log_mean", "mean of log(q/q₀)", "Typical value"),
        "log_median": (None, "median of log(q/q₀)", "Median"),
        "log_variance": ("exact_log_variance", "Var log(q/q₀)", "Spread"),
    }
    with canvas(ncols=2, nrows=2) as page:
        for axes, (name, (law, words, _)) in zip(page.axes, panels.items(), strict=True):
            interval = {"low": f"{name}_low", "high": f"{name}_high"}
            ends = interval if f"{name}_low" in data else {}
            plots.layers(axes, data, y=name, labels=("layer l", words), **ends)
            known = data.dropna(subset=[law]) if law else data.iloc[:0]
            # The block law is the same at every width.
            drawn = known[known["width"] == known["width"].max()] if law == "block_law" else known
            for number, (_, one) in enumerate(drawn.groupby("width")):
                title = "block law, N → ∞" if law == "block_law" else "exact law"
                plots.theory(axes, one["layer"], one[law], None if number else title)
            plots.limits_from(axes, list(data[name]))
        page.letter(*(title for _, _, title in panels.values()))
        page.legend("width N")
    return page.finish(
        f"variance-layers-{label.replace('_', '-')}",
        f"Signal variance along the layers: {label}",
        f"Signal variance q over {int(dataset['draws'].max())} random networks at each width, "
        f"inputs with |x|² = d; {_counted(dataset, data)}. Bands: two standard errors over draws. "
        "Dashed: theory, where there is one.",
        f"Mean of q, and mean, median and variance of log(q/q₀), by layer for {label} at several "
        "widths.",
        data,
    )


def _scaling_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = _table(dataset)
    depth = int(data["layer"].max())
    data = data[data["layer"] == depth]
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            data,
            x="width",
            y="log_variance",
            hue="model",
            kind="category",
            low="log_variance_low",
            high="log_variance_high",
            line=False,
            labels=("width N", f"Var log q at layer {depth}"),
        )
        known = data[np.isfinite(data["exact_log_variance"])]
        for number, (_, law) in enumerate(known.groupby("model", sort=False)):
            name = None if number else "exact law"
            plots.theory(axes, law["width"], law["exact_log_variance"], name)
        page.legend()
    return page.finish(
        "variance-scaling",
        "Fluctuations of the signal variance against width",
        f"Variance over draws of log(q/q₀) at layer {depth}; {_counted(dataset, data)}. Bars: two "
        "standard errors over draws. Dashed: the exact law, where there is one.",
        "The variance of log q against width on two logarithmic axes, for each architecture.",
        data,
    )


def _collapse_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = _table(dataset)
    data = data[data["layer"] > 0]
    labels = list(data["model"].unique())
    with canvas(ncols=len(labels)) as page:
        for axes, label in zip(page.axes, labels, strict=True):
            plots.loglog(
                axes,
                data[data["model"] == label],
                x="layer_over_width",
                y="log_variance",
                hue="width",
                line=False,
                labels=("depth over width l/N", "Var log q"),
            )
        page.letter(*labels)
        page.legend("width N")
    return page.finish(
        "variance-collapse",
        "Fluctuations against depth over width",
        "Variance over draws of log(q/q₀) at every layer and width against l/N; "
        f"{_counted(dataset, data)}. Where points of all widths lie on one curve, l/N controls.",
        "The variance of log q at all layers and widths against l over N, a colour for each width.",
        data,
    )
