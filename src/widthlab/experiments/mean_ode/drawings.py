"""Figures of the mean-ODE experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from widthlab.experiments.mean_ode.errors import PARTS
from widthlab.experiments.mean_ode.tables import SCALARS
from widthlab.experiments.mean_ode.trajectories import NAMES, along_training, thin
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

UNITS = "units M·L"


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return all figures, in the order of the question."""
    names = [*SCALARS, "bound", "seeds", "finite"]
    data = dataset[names].to_dataframe().reset_index().dropna(subset=["sampling"])
    data["units"] = data["depth"] * data["hidden"]
    data["ratio"] = data["total"] / data["bound"]
    known = dataset[["seeds", "finite"]].sum()
    counted = f"{int(known['finite']):,} of {int(known['seeds']):,} networks did not diverge"
    return [
        by_depth(dataset, data, counted),
        thin(dataset),
        collapse(data, counted),
        by_width(dataset),
        along_training(dataset, counted),
        bound(dataset, data, counted),
    ]


def by_depth(dataset: xr.Dataset, data: pd.DataFrame, counted: str) -> Figure:
    """Draw total error, sampling error and bias against depth, by hidden width."""
    rows = {
        "total": ("error", "distance to the mean ODE", -0.5),
        "sampling": ("sampling", "spread over seeds", -0.5),
        "bias": ("Euler", "bias of the mean over seeds", -1.0),
    }
    seen = _seen(data)
    hiddens = sorted(data["hidden"].unique())
    titles = []
    with canvas(ncols=2, nrows=3, height=300) as page:
        for axes, (name, part) in zip(
            page.axes, ((name, part) for name in rows for part in PARTS), strict=True
        ):
            word, label, exponent = rows[name]
            own = (seen if name == "bias" else data).query("part == @part")
            _panel(axes, own, "depth", name, hiddens, ("depth L", label))
            _guide(axes, own, "depth", name, exponent)
            titles.append(f"{NAMES[part]}: {word}")
        page.letter(*titles)
        page.legend("hidden width M")
    limit = dataset["limit_error"].isel(step=-1)
    errors = " and ".join(f"{float(limit.sel(part=p)):.2g} ({p})" for p in PARTS)
    return page.finish(
        "mean-ode-depth",
        "Distance to the mean ODE by depth",
        f"Root mean squares over inputs and coordinates after training; {counted}. a, b: distance "
        "of networks to the mean ODE. c, d: spread over seeds, which is the sampling error. e, f: "
        "bias of the mean over seeds, where the interval lies above zero: the Euler error, and at "
        "small M also what a spread of order √(D/(ML)) does to the mean, in second order. Bars: "
        "95 % intervals. Lines: predicted slopes. Standard "
        f"error of the limit itself: {errors}.",
        "Six log–log panels: error, spread and bias against depth for several hidden widths, with "
        "lines of slope minus a half and minus one.",
        data,
    )


def _seen(data: pd.DataFrame) -> pd.DataFrame:
    """Keep the biases whose interval does not reach zero."""
    return data[data["bias_low"] > 0]


def _panel(
    axes: Axes,
    data: pd.DataFrame,
    x: str,
    y: str,
    hiddens: list[int],
    labels: tuple[str, str],
    **options: Any,
) -> None:
    plots.loglog(
        axes,
        data,
        x=x,
        y=y,
        hue="hidden",
        order=hiddens,
        low=f"{y}_low",
        high=f"{y}_high",
        labels=labels,
        **options,
    )


def _guide(axes: Axes, data: pd.DataFrame, x: str, y: str, exponent: float) -> None:
    """Draw a slope above the points."""
    drawn = data[data[y] > 0]
    if drawn[x].nunique() < 2:
        return
    middle = float(np.exp(np.log(drawn[x].to_numpy(float)).mean()))
    top = drawn.groupby(x)[y].max()
    at = float(np.exp(np.interp(np.log(middle), np.log(top.index.to_numpy(float)), np.log(top))))
    plots.slope(axes, exponent, (middle, 1.7 * at), f"slope {exponent:g}".replace("-", "−"))


def collapse(data: pd.DataFrame, counted: str) -> Figure:
    """Draw the sampling error against M·L."""
    hiddens = sorted(data["hidden"].unique())
    with canvas(ncols=2) as page:
        for axes, part in zip(page.axes, PARTS, strict=True):
            own = data[data["part"] == part]
            plots.series(
                axes,
                own,
                x="units",
                y="sampling",
                hue="hidden",
                order=hiddens,
                low="sampling_low",
                high="sampling_high",
                spread="bars",
                line=False,
                scales=("log", "log"),
                labels=(UNITS, "spread over seeds"),
            )
            _guide(axes, own, "units", "sampling", -0.5)
        page.letter(*(NAMES[part] for part in PARTS))
        page.legend("hidden width M")
    return page.finish(
        "mean-ode-collapse",
        "The hidden width of a deep network is M·L",
        "Spread over seeds after training against M·L, at all depths and hidden widths; "
        f"{counted}. Points of equal M·L lie on one another where only the product matters. Bars: "
        "95 % intervals.",
        "Two log–log panels: the spreads of all networks lie on one line of slope minus a half in "
        "M times L.",
        data,
    )


def by_width(dataset: xr.Dataset) -> Figure:
    """Draw the sampling error against the embedding width."""
    names = [f"width_sampling{end}" for end in ("", "_low", "_high")]
    data = dataset[names].to_dataframe().reset_index().dropna(subset=["width_sampling"])
    data["part"] = data["part"].map(lambda part: NAMES[part].lower())
    lost = int(dataset.attrs["width_diverged"])
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            data,
            x="width",
            y=names[0],
            hue="part",
            kind="category",
            low=names[1],
            high=names[2],
            labels=("embedding width D", "spread over seeds"),
        )
        _guide(axes, data, "width", names[0], 0.5)
        page.legend()
    return page.finish(
        "mean-ode-width",
        "Sampling error by embedding width",
        f"Spread over seeds at M·L = {int(dataset.attrs['width_sweep_units']):,}, averaged over "
        f"random embeddings and readouts; {lost} networks diverged and are left out. Bars: 95 % "
        "intervals over embeddings. The law is one of D large against the numbers of inputs "
        "and outputs, and small against M·L.",
        "A log–log panel: the spread of the embedding grows with slope one half in D, that of the "
        "output does not.",
        data,
    )


def bound(dataset: xr.Dataset, data: pd.DataFrame, counted: str) -> Figure:
    """Draw the errors against the fitted bound, and their ratio."""
    fitted = data[np.isfinite(data["bound"])]
    hiddens = sorted(data["hidden"].unique())
    with canvas(ncols=2, nrows=2, height=300) as page:
        for number, axes in enumerate(page.axes):
            part = PARTS[number % 2]
            own = fitted[fitted["part"] == part]
            if number < 2:
                if len(own):  # one point alone gives a logarithmic axis no length
                    axes.set_xscale("log")
                    axes.set_xlim(0.8 * own["bound"].min(), 1.25 * own["bound"].max())
                plots.series(
                    axes,
                    own,
                    x="bound",
                    y="total",
                    hue="hidden",
                    order=hiddens,
                    low="total_low",
                    high="total_high",
                    spread="bars",
                    line=False,
                    scales=("log", "log"),
                    labels=("a/L + b·√(D/(ML))", "distance to the mean ODE"),
                )
                if len(own):
                    ends = np.array([own["bound"].min(), own["bound"].max()])
                    plots.theory(axes, ends, ends, "fit")
                    plots.theory(axes, ends, ends / 2**0.5, "fit/√2", style="dotted")
                continue
            plots.series(
                axes,
                own,
                x="depth",
                y="ratio",
                hue="hidden",
                order=hiddens,
                scales=("log", "linear"),
                labels=("depth L", "distance / fit"),
            )
            if len(own):
                ends = np.array([own["depth"].min(), own["depth"].max()], dtype=float)
                plots.theory(axes, ends, np.ones(2), "fit")
                ticks.at_values(axes.xaxis, own["depth"])
        page.letter(
            *(f"{NAMES[part]}: {_coefficients(dataset, part)}" for part in PARTS),
            *(f"{NAMES[part]}: residuals" for part in PARTS),
        )
        page.legend("hidden width M")
    return page.finish(
        "mean-ode-bound",
        "The form of the bound, fitted",
        "Root mean square distance to the mean ODE after training against a/L + b·√(D/(ML)), with "
        f"a and b fitted to logarithms with equal weights where D/(ML) and 1/L are at most a "
        f"quarter; {counted}. A sum leaves a factor of √2 open where its parts add in quadrature. "
        "Bars: 95 % intervals.",
        "Two panels of measured against fitted errors near the line of equality, and two of their "
        "ratio against depth.",
        fitted,
    )


def _coefficients(dataset: xr.Dataset, part: str) -> str:
    a, b = dataset["coefficient"].sel(part=part).to_numpy()
    return f"a = {a:.2g}, b = {b:.2g}" if np.isfinite(a) else "no fit"
