"""Figures of gradients at initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from widthlab.experiments.shared.frames import by_model, curves, drawn_layers, with_ends

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

    from widthlab.report.figures import Figure


def table(dataset: xr.Dataset) -> pd.DataFrame:
    """Return the sweep by model, width and layer as a tidy table, without holes."""
    scalars = dataset.drop_vars(["draws", "slope", "slope_low", "slope_high"])
    data = drawn_layers(scalars.to_dataframe().reset_index().dropna(subset=["squared"]))
    return with_ends(data, ("squared", "signed", "mean", "log_mean", "log_variance"))


def above(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the correlation of squared gradients by the layers above, with its laws."""
    from widthlab.report import plots

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        plots.layers(
            axes,
            own,
            x="layers_above",
            y="squared",
            low="squared_low",
            high="squared_high",
            labels=("hidden layers above k", "correlation of squared gradients"),
        )
        curves(axes, own, "layers_above", "leading", "leading order in 1/N", "dotted")
        curves(axes, own, "layers_above", "exact", "exact law")
        plots.limits_from(axes, list(own["squared"]))

    return by_model(
        data[data["layer"] > 0],
        draw,
        id="gradient-correlation-layers",
        title="Correlation of squared gradients by the layers above",
        caption="E[gᵢ² gⱼ²]/(E gᵢ²)² − 1 against the number k of hidden layers above; "
        f"{counted}. Bands: two standard errors (jackknife over draws). Dashed: (1 + 5/N)ᵏ − 1 for "
        "ReLU, (1 + 2/N)ᵏ − 1 for linear layers. Dotted: leading order in 1/N for any activation.",
        alt="The correlation of squared gradients against the number of layers above, a line for "
        "each width, with theory where there is one.",
        legend="width N",
    )


def width(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the correlation at the first carried signal against width."""
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    depth = int(data["layer"].max()) if len(data) else 0
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
        curves(axes, data, "width", "leading", "leading order in 1/N", "dotted", by="model")
        curves(axes, data, "width", "exact", "exact law", by="model")
        page.legend()
    return page.finish(
        "gradient-correlation-width",
        "Correlation of squared gradients against width",
        f"The correlation at the first carried signal, {depth} layers below the output; {counted}. "
        "Bars: two standard errors over draws. Dashed: the exact law. Dotted: leading order in "
        "1/N.",
        "The correlation against width on two logarithmic axes, for each architecture.",
        data,
    )


def norm(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the mean of |g|² by layer, with the backward law."""
    from widthlab.report import plots

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        ends = {"low": "mean_low", "high": "mean_high"}
        plots.layers(axes, own, y="mean", labels=("layer l", "mean of |g|²"), **ends)
        widest = own[own["width"] == own["width"].max()]
        curves(axes, widest, "layer", "backward_law", "infinite width")

    return by_model(
        data[data["layer"] > 0],
        draw,
        id="gradient-correlation-norm",
        title="Size of the gradient by layer",
        caption="Mean over draws of |g|², g being the gradient of one output by the carried signal "
        f"of a layer; {counted}. Bands: two standard errors over draws. Dashed: infinite width, "
        "where every layer multiplies |g|² by C_W⟨s'²⟩.",
        alt="The mean squared gradient norm by layer for several widths, with the infinite-width "
        "law.",
        legend="width N",
    )


def spread(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the variance of log(|g_l|²/|g_L|²) by layer, with its exact law."""
    from widthlab.report import plots

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        ends = {"low": "log_variance_low", "high": "log_variance_high"}
        labels = ("layer l", "Var log(|g_l|²/|g_L|²)")
        plots.layers(axes, own, y="log_variance", labels=labels, **ends)
        curves(axes, own, "layer", "exact_log_variance", "exact law")

    return by_model(
        data[data["layer"] > 0],
        draw,
        id="gradient-correlation-spread",
        title="Spread of the gradient's size by layer",
        caption="Variance over draws of log(|g_l|²/|g_L|²), the gradient's size in layer l over "
        f"that in the last layer, of living gradients; {counted}. Bands: two standard errors over "
        "draws. Dashed: the exact law for ReLU and linear perceptrons without biases.",
        alt="The variance of the logarithm of a layer's squared gradient norm over the last "
        "layer's, by layer, a line for each width.",
        legend="width N",
    )


def imbalance(data: pd.DataFrame, dataset: xr.Dataset, counted: str) -> Figure:
    """Draw mean and variance of log(|g_1|²/|g_L|²) against width, with slopes and exact laws."""
    from widthlab.report import plots, ticks
    from widthlab.report.figures import canvas

    fitted = dataset[["slope", "slope_low", "slope_high"]].to_dataframe().dropna()
    slopes = ", ".join(
        f"{label} {row['slope']:.2f} [{row['slope_low']:.2f}, {row['slope_high']:.2f}]"
        for label, row in fitted.iterrows()
    )
    data = data[data["layer"] == 1]
    words = {"log_mean": "mean of log(|g₁|²/|g_L|²)", "log_variance": "Var log(|g₁|²/|g_L|²)"}
    with canvas(ncols=2) as page:
        for axes, (name, label) in zip(page.axes, words.items(), strict=True):
            plots.series(
                axes,
                data,
                x="width",
                y=name,
                hue="model",
                kind="category",
                low=f"{name}_low",
                high=f"{name}_high",
                spread="bars",
                line=False,
                scales=("log", "log" if name == "log_variance" else "linear"),
                labels=("width N", label),
            )
            if len(data):
                ticks.at_values(axes.xaxis, data["width"])
            curves(axes, data, "width", f"exact_{name}", "exact law", by="model")
        page.letter("Drift", "Spread")
        page.legend()
    return page.finish(
        "gradient-correlation-imbalance",
        "Imbalance between the first and the last layer against width",
        "Mean and variance over draws of log(|g₁|²/|g_L|²), the size of the gradient in the first "
        f"layer over that in the last, of living gradients; {counted}. Slopes of the variance: "
        f"{slopes or 'none'}. Bars: two standard errors over draws. Dashed: the exact law for ReLU "
        "and linear perceptrons without biases.",
        "The mean of the logarithmic imbalance tends to its infinite-width value and its variance "
        "falls as one over width, for each architecture.",
        data,
    )


def signed(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the signed correlation against width, with its sampling floor."""
    from widthlab.report import plots, ticks

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        own = own.sort_values("width")
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
        if own.empty:
            return
        ticks.at_values(axes.xaxis, own["width"])
        curves(axes, own, "width", "signed_law", "law", by="model")
        for sign in (2, -2):
            floor = sign * own["sampling_floor"]
            plots.theory(axes, own["width"], floor, "± 2 sampling floors", style="dotted")

    return by_model(
        data[data["layer"] == 1],
        draw,
        id="gradient-correlation-signed",
        title="The signed correlation beside its sampling floor",
        caption=f"E[gᵢ gⱼ]/E gᵢ² at the first hidden layer; {counted}. Bars: two standard errors "
        "over draws. Dashed: zero where the sign of a neuron may be flipped, else leading order in "
        "1/N where it is known. Dotted: twice the standard error to expect, at most, where the "
        "true value is zero.",
        alt="Signed correlations by width, with twice their sampling floor about zero.",
    )
