"""Figures of the tangent kernel at initialisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.shared.frames import by_model, curves, with_ends

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

    from widthlab.report.figures import Figure


def table(dataset: xr.Dataset, names: Sequence[str]) -> pd.DataFrame:
    """Return scalars of the sweep as a tidy table with two-standard-error ends, without holes."""
    data = dataset[list(names)].to_dataframe().reset_index().dropna(subset=["mean"])
    data["depth_over_width"] = data["depth"] / data["width"]
    return with_ends(data, ("mean", "relative_variance", "log_variance"))


def convergence(data: pd.DataFrame, dataset: xr.Dataset, counted: str) -> Figure:
    """Draw fluctuation and shift of the mean against width, at the depths of their fits."""
    from widthlab.report import plots
    from widthlab.report.figures import canvas

    depth = dataset["slope_depth"]
    chosen = {
        name: data[data["depth"] == data["model"].map(depth.sel(quantity=name).to_series())]
        for name in ("fluctuation", "shift")
    }
    words = {"fluctuation": "‖Θ − E Θ‖ / ‖Θ∞‖", "shift": "‖E Θ − Θ∞‖ / ‖Θ∞‖"}
    with canvas(ncols=2) as page:
        for axes, (name, exponent) in zip(
            page.axes, (("fluctuation", -0.5), ("shift", -1.0)), strict=True
        ):
            ends = {"low": "shift_low", "high": "shift_high"} if name == "shift" else {}
            plots.loglog(
                axes,
                chosen[name],
                x="width",
                y=name,
                hue="model",
                kind="category",
                line=False,
                labels=("width N", words[name]),
                **ends,
            )
            if name == "shift":
                curves(
                    axes, chosen[name], "width", "floor", "noise of the mean", "dotted", by="model"
                )
            drawn = chosen[name][chosen[name][name] > 0]
            if len(drawn):
                middle = float(np.exp(np.log(drawn["width"]).mean()))
                height = float(drawn[name].max())
                plots.slope(axes, exponent, (middle, height), f"slope {exponent:g}")
        page.letter("Fluctuation", "Shift of the mean")
        page.legend()
    return page.finish(
        "ntk-init-convergence",
        "Convergence of the tangent kernel to infinite width",
        "Root mean square over draws of the kernel's distance from its mean, and the distance of "
        f"the mean from the kernel of infinite width, against width; {counted}. "
        f"{_slope_words(dataset)} Bars: 95 % intervals. Dotted: noise of the mean, below which a "
        "shift cannot be seen (a shift of zero is not drawn).",
        "Two log–log panels: the fluctuation falls as one over the root of width, the shift of the "
        "mean as one over width, for each architecture.",
        data,
    )


def _slope_words(dataset: xr.Dataset) -> str:
    """Say the slopes with their intervals, as one sentence for a caption."""
    parts = []
    for name, title in (("fluctuation", "Slopes of the fluctuation"), ("shift", "of the shift")):
        fitted = dataset[["slope", "slope_low", "slope_high", "slope_depth"]].sel(quantity=name)
        rows = fitted.to_dataframe().dropna(subset=["slope"])
        each = [
            f"{label} {row['slope']:.2f} [{row['slope_low']:.2f}, {row['slope_high']:.2f}] at L = "
            f"{row['slope_depth']:g}"
            for label, row in rows.iterrows()
        ]
        parts.append(f"{title}: {', '.join(each) if each else 'none'}")
    return "; ".join(parts) + "."


def variance(data: pd.DataFrame, counted: str) -> Figure:
    """Draw Var Θ/(E Θ)² against L/N, with its laws."""
    from widthlab.report import plots

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        plots.series(
            axes,
            own,
            x="depth_over_width",
            y="relative_variance",
            scales=("log", "log"),
            spread="bars",
            hue="depth",
            low="relative_variance_low",
            high="relative_variance_high",
            line=False,
            labels=("depth over width L/N", "Var Θ / (E Θ)²"),
        )
        known, x = own.sort_values("depth_over_width"), "depth_over_width"
        curves(axes, known, x, "exact_variance", "exact law", by="depth")
        curves(axes, known, x, "leading_variance", "leading order in 1/N", "dotted", by="depth")
        plots.limits_from(axes, list(own["relative_variance"]))

    return by_model(
        data,
        draw,
        id="ntk-init-variance",
        title="Relative variance of the tangent kernel",
        caption=f"Var Θ(x, x)/(E Θ(x, x))² against depth over width; {counted}. Bars: two standard "
        "errors over draws, too small where tails are heavy (L/N near 1). Dashed: the exact law "
        "for ReLU and linear perceptrons without biases. Dotted: leading order in 1/N, which is "
        "L(11L + 7)/(3(L + 1)N) for ReLU.",
        alt="The relative variance of the kernel against L over N on two logarithmic axes, a colour"
        " for each depth, with theory.",
        legend="depth L",
    )


def collapse(data: pd.DataFrame, counted: str) -> Figure:
    """Draw Var log Θ against L/N, a colour for each width."""
    from widthlab.report import plots

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        plots.series(
            axes,
            own,
            x="depth_over_width",
            y="log_variance",
            scales=("log", "log"),
            spread="bars",
            hue="width",
            low="log_variance_low",
            high="log_variance_high",
            line=False,
            labels=("depth over width L/N", "Var log Θ"),
        )

    return by_model(
        data,
        draw,
        id="ntk-init-collapse",
        title="Fluctuations of the kernel against depth over width",
        caption=f"Variance over draws of log Θ(x, x), of all depths and widths; {counted}. Bars: "
        "two standard errors over draws. Where the points of all widths lie on one curve, L/N "
        "controls how random the kernel is.",
        alt="The variance of log Θ against L over N on two logarithmic axes, a colour for each "
        "width.",
        legend="width N",
    )


def mean(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the mean of Θ(x, x) against depth, with that of infinite width."""
    from widthlab.report import plots

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        ends = {"low": "mean_low", "high": "mean_high"}
        names = ("depth L", "mean of Θ(x, x)")
        plots.layers(axes, own, x="depth", y="mean", labels=names, **ends)
        law = own.dropna(subset=["infinite_mean"]).drop_duplicates("depth").sort_values("depth")
        plots.theory(axes, law["depth"], law["infinite_mean"], "infinite width")

    return by_model(
        data,
        draw,
        id="ntk-init-mean",
        title="Mean of the tangent kernel by depth",
        caption=f"Mean over draws and inputs of Θ(x, x); {counted}. Bands: two standard errors "
        "over draws. Dashed: the kernel of infinite width, L + 1 for critical ReLU perceptrons.",
        alt="The mean of the kernel's diagonal against depth, a line for each width, with the "
        "infinite-width kernel.",
        legend="width N",
    )


def condition(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the median condition number against width, with that of infinite width."""
    from widthlab.report import plots

    # An interval without an upper end, since many kernels are singular, has no upper bar.
    data = data.assign(condition_high=data["condition_high"].replace(np.inf, np.nan))

    def draw(axes: Axes, own: pd.DataFrame) -> None:
        plots.loglog(
            axes,
            own,
            x="width",
            y="condition",
            hue="depth",
            low="condition_low",
            high="condition_high",
            labels=("width N", "condition number"),
        )
        curves(axes, own, "width", "infinite_condition", "infinite width", by="depth")

    return by_model(
        data,
        draw,
        id="ntk-init-condition",
        title="Condition number of the tangent kernel",
        caption="Median over draws of λ_max/λ_min of the kernel on the inputs, whose number sets "
        f"its size; {counted}. Bars: 95 % intervals of the median. Dashed: of the kernel of "
        "infinite width.",
        alt="The median condition number against width, a colour for each depth, with that of the "
        "infinite-width kernel.",
        legend="depth L",
    )
