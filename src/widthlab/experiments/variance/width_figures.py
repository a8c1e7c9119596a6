"""Figures of the variance experiment across widths: scaling, collapse, distribution, windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.shared.frames import by_model, curves, drawn_layers
from widthlab.experiments.variance.layer_figures import counted, layer_table
from widthlab.experiments.variance.windows import LIMIT, QUANTITIES

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

    from widthlab.report.figures import Figure
    from widthlab.report.plots import Style


FLUCTUATION_LAWS: tuple[tuple[str, str, Style], ...] = (
    ("exact_log_variance", "exact law", "dashed"),
    ("corrected_log_variance", "order 1/N", "dotted"),
)


def scaling(dataset: xr.Dataset) -> Figure:
    """Draw Var log q at the last layer against width, with fitted exponents."""
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    data = layer_table(dataset)
    depth = int(dataset["layer"].to_numpy()[-1])
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
        for law, title, style in FLUCTUATION_LAWS:
            curves(axes, data, "width", law, title, style, by="model")
        plots.limits_from(axes, list(data["log_variance"]))
        page.legend()
    return page.finish(
        "variance-scaling",
        "Fluctuations of the signal variance against width",
        f"Variance over draws of log(q/q₀) at layer {depth}; {counted(dataset, data)}. Bars: two "
        "standard errors over draws. Dashed: the exact law, dotted: order 1/N, where there is one."
        f"{_exponents(dataset)}",
        "The variance of log q against width on two logarithmic axes, for each architecture.",
        data,
    )


def _exponents(dataset: xr.Dataset) -> str:
    """Say the fitted exponents, from the claims about them."""
    fitted = _fitted(dataset, "exponent", "{}")
    words = ", ".join(f"{label} {words}" for label, words in fitted.items())
    return f" Exponents in N where l/N is small: {words}." if words else ""


def _fitted(dataset: xr.Dataset, name: str, form: str) -> dict[str, str]:
    """Return fitted exponents with their intervals by model, from the claims of a name."""
    from widthlab.claims import from_json

    found = {}
    for claim in from_json(dataset.attrs["claims"]):
        _, label, own = claim.id.split(".")
        if own == name and None not in (claim.measured, claim.low, claim.high):
            ends = f"[{claim.low:.2f}, {claim.high:.2f}]"
            found[label] = form.format(f"{claim.measured:.2f} {ends}")
    return found


def collapse(dataset: xr.Dataset) -> Figure:
    """Draw Var log q at all layers and widths against l/N."""
    from widthlab.report import plots

    data = layer_table(dataset)
    columns = ["model", "width", "layer", "layer_over_width", "alive", "log_variance"]
    data = data.loc[data["layer"] > 0, columns]

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        plots.loglog(
            axes,
            own,
            x="layer_over_width",
            y="log_variance",
            hue="width",
            line=False,
            labels=("depth over width l/N", "Var log q"),
        )

    return by_model(
        data,
        draw,
        id="variance-collapse",
        title="Fluctuations against depth over width",
        caption="Variance over draws of log(q/q₀) at every layer and width against l/N; "
        f"{counted(dataset, data)}. Where points of all widths lie on one curve, l/N controls.",
        alt="The variance of log q at all layers and widths against l over N, a colour for each "
        "width.",
        legend="width N",
    )


def quantiles(dataset: xr.Dataset) -> list[Figure]:
    """Draw measured against exact quantiles of log q_L, where there is an exact law."""
    from widthlab.report import plots

    names = ["quantile", "quantile_low", "quantile_high", "exact_quantile"]
    data = dataset[names].to_dataframe().reset_index().dropna(subset=names)
    if data.empty:
        return []
    depth, draws = int(dataset["layer"].to_numpy()[-1]), dataset["draws"].to_numpy()

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        plots.quantiles(
            axes,
            own,
            x="exact_quantile",
            y="quantile",
            hue="width",
            low="quantile_low",
            high="quantile_high",
            labels=("exact quantile of log q", "measured quantile"),
        )

    return [
        by_model(
            data,
            draw,
            id="variance-quantiles",
            title="Distribution of the signal variance at the last layer",
            caption=f"Quantiles from 1 % to 99 % of log q of one input at layer {depth}, over "
            f"{int(draws[draws > 0].min())} draws or more, against those of the exact law. Bars: "
            "quantiles at probabilities two standard errors lower and higher.",
            alt="Measured against exact quantiles of log q, with the line of equality.",
            legend="width N",
        )
    ]


def windows(dataset: xr.Dataset) -> list[Figure]:
    """Draw how far predictions of order 1/N are off against l/N, a figure for each quantity."""
    made = []
    for quantity, words in QUANTITIES.items():
        data = _departures(dataset.sel(quantity=quantity))
        if not data.empty:
            titles = _fitted(dataset, f"window_{quantity}", "(slope {})")
            published = _fitted(dataset, f"small_branch_window_{quantity}", "(slope {})")
            titles |= {f"{label}{SMALL_BRANCH}": words for label, words in published.items()}
            made.append(_window_figure(data, quantity, words, titles))
    return made


SMALL_BRANCH = ", small branch"
"""What is added to a model's name where the published theory of small branches is judged."""
VISIBLE = 1e-4
"""Smallest departure that is drawn: below are rounding errors, at the first layer for instance."""


def _departures(dataset: xr.Dataset) -> pd.DataFrame:
    """Return departures by theory, model, width and layer; a panel's name is in `model`."""
    names = ["departure", "departure_error", "window", "window_low", "window_high"]
    data = dataset[names].to_dataframe().reset_index().dropna(subset=["departure"])
    data = drawn_layers(data[data["layer"] > 0])
    small = np.where(data["theory"] == "small_branch", SMALL_BRANCH, "")
    data = data.assign(model=data["model"] + small).sort_values(["model", "width", "layer"])
    size = np.abs(data["departure"])
    # below three standard errors there is nothing to see but noise
    seen = size > np.maximum(3 * data["departure_error"], VISIBLE)
    return data.assign(
        layer_over_width=data["layer"] / data["width"], size=np.where(seen, size, np.nan)
    )


def _window_figure(data: pd.DataFrame, quantity: str, words: str, titles: dict[str, str]) -> Figure:
    from widthlab.report import plots

    seen = data[np.isfinite(data["size"])]
    hidden = sorted(set(data["model"]) - set(seen["model"]))
    unseen = f" Nowhere off by more than that: {'; '.join(hidden)}." if hidden else ""

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        labels = ("depth over width l/N", "|predicted/true − 1|")
        plots.loglog(
            axes, own, x="layer_over_width", y="size", hue="width", markers=False, labels=labels
        )
        ends = own["layer_over_width"].agg(["min", "max"])
        plots.theory(axes, ends, [LIMIT] * 2, f"{LIMIT:.0%}", style="dotted")
        known = own.drop_duplicates("width")
        known = known[np.isfinite(known["window"]) & (known["window"] > 0)]
        place = known[["window", "window_low", "window_high"]].div(known["width"], axis=0)
        plots.crossings(axes, place.to_numpy(), LIMIT, "end of the window")

    return by_model(
        seen,
        draw,
        id=f"variance-window-{quantity}",
        title=f"Validity window of order 1/N: {words}",
        caption=f"How far the prediction of order 1/N for the {words} is off, against l/N, where "
        "it is more than three standard errors; the truth is an exact law or the draws. Triangles: "
        f"where it passes {LIMIT:.0%} for the first time, with a 95 % interval over draws; "
        f"none where it does not, or where two standard errors exceed that. Slope: exponent "
        f"in N of the layer where that is, with its interval, where it could be fitted.{unseen}",
        alt=f"The relative error of the prediction for the {words} against l over N, a line for "
        "each width, with the 5 % line and the places where it is crossed.",
        titles=titles,
        legend="width N",
    )
