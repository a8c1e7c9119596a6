"""Figures of the lazy-ODE experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.lazy_ode import LARGE
from widthlab.experiments.lazy_ode.distances import PARTS
from widthlab.report import plots
from widthlab.report.figures import Figure, canvas
from widthlab.report.style import MUTED, PAPER
from widthlab.theory import deep_limits

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

NAMES = {"embedding": "Embedding", "output": "Output"}
STYLES: dict[float, plots.Style] = {
    deep_limits.LAZY_BOUND: "dotted",
    deep_limits.LAZY_SYMMETRIC: "dashed",
}
"""How laws with these powers of 1/α are drawn."""
ORDERS = {deep_limits.LAZY_BOUND: "1/α", deep_limits.LAZY_SYMMETRIC: "1/α²"}
RANGE = f"{LARGE:g} ≤ α ≤ √(ML/D)/{LARGE:g}"


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return all figures, in the order of the question."""
    names = ["distance", "spread", "blocks"]
    every = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    data = dataset[[*every, "seeds", "finite", "valid"]].to_dataframe().reset_index()
    data = data[data["seeds"] > 0]
    total = dataset[["seeds", "finite"]].sum()
    counted = f"{int(total['finite']):,} of {int(total['seeds']):,} networks did not diverge"
    return [
        against_alpha(dataset, data, counted),
        blocks(dataset, data, counted),
        best_alpha(dataset),
        form(dataset, counted),
    ]


def _outside(axes: Axes, data: pd.DataFrame, x: str, y: str) -> None:
    """Open the points that lie outside of 1 ≪ α ≪ √(ML/D)."""
    out = data[(data["valid"] == 0) & np.isfinite(data[y]) & (data[y] > 0)]
    axes.plot(out[x], out[y], "o", color=PAPER, markersize=2.8, zorder=4)


def against_alpha(dataset: xr.Dataset, data: pd.DataFrame, counted: str) -> Figure:
    """Draw the distance to the lazy ODE and the spread against α, by M·L."""
    rows = {"distance": "distance to the lazy ODE", "spread": "spread over seeds"}
    titles = []
    with canvas(ncols=2, nrows=2, height=320) as page:
        for number, axes in enumerate(page.axes):
            name, part = list(rows)[number // 2], PARTS[number % 2]
            own = data[data["part"] == part]
            plots.series(
                axes,
                own,
                x="alpha",
                y=name,
                hue="units",
                low=f"{name}_low",
                high=f"{name}_high",
                spread="bars",
                scales=("log", "log"),
                labels=("branch scale α", rows[name]),
            )
            _outside(axes, own, "alpha", name)
            if name == "distance":
                limit = dataset["mean_distance"].sel(part=part).to_series().dropna()
                plots.theory(axes, limit.index, limit, "mean ODE, M·L → ∞")
            largest = own[own["units"] == own["units"].max()]
            _slope_beside(axes, largest, name, 1.0)
            titles.append(f"{NAMES[part]}: {name}")
        page.letter(*titles)
        page.legend("units M·L")
    moved = " and ".join(f"{float(dataset['moved'].sel(part=p)):.2g} ({p})" for p in PARTS)
    return page.finish(
        "lazy-ode-alpha",
        "Distance to the lazy ODE by branch scale",
        f"Root mean squares over seeds, inputs and coordinates after training; {counted}. a, b: "
        "distance to the lazy ODE, which falls until the sampling error, that grows as α, takes "
        "over. c, d: spread over seeds. Dashed: distance of the mean ODE to itself at "
        f"the largest α. Open points lie outside of {RANGE}. Bars: 95 % "
        f"intervals over seeds. By training the lazy ODE moves by {moved}.",
        "Four log–log panels against α: distances fall and then rise, with a minimum at larger α "
        "for larger networks; spreads rise with slope one.",
        data,
    )


def _slope_beside(axes: Axes, data: pd.DataFrame, y: str, exponent: float) -> None:
    """Draw a slope under the right half of a curve."""
    own = data[(data[y] > 0) & (data["alpha"] > 1)].sort_values("alpha")
    if len(own) < 3:
        return
    middle = own.iloc[(2 * len(own)) // 3]
    at = (float(middle["alpha"]), 0.45 * float(middle[y]))
    plots.slope(axes, exponent, at, f"slope {exponent:g}".replace("-", "−"))


def blocks(dataset: xr.Dataset, data: pd.DataFrame, counted: str) -> Figure:
    """Draw the distance to networks of linearised blocks against α."""
    own = data[data["part"] == PARTS[0]]
    with canvas() as page:
        (axes,) = page.axes
        plots.series(
            axes,
            own,
            x="alpha",
            y="blocks",
            hue="units",
            low="blocks_low",
            high="blocks_high",
            spread="bars",
            scales=("log", "log"),
            labels=("branch scale α", "distance to linear blocks"),
        )
        _outside(axes, own, "alpha", "blocks")
        largest = own[own["units"] == own["units"].max()].sort_values("alpha")
        largest = largest[np.isfinite(largest["blocks"])]
        if len(largest):
            start = largest.iloc[len(largest) // 4]
            alpha = np.array([start["alpha"], largest["alpha"].max()], dtype=float)
            for power, style in STYLES.items():
                law = float(start["blocks"]) * (alpha / alpha[0]) ** -power
                plots.theory(axes, alpha, law, ORDERS[power], style=style)
        # Blocks far beyond the range blow up, and would leave no room for the others.
        plots.limits_from(axes, list(own["blocks"].clip(upper=3.0)))
        page.legend("units M·L")
    return page.finish(
        "lazy-ode-blocks",
        "How fast blocks become linear in their weights",
        "Root mean square distance of the embedding h_L, after training, to that of the same "
        "network with every block linearised about its own initial weights, trained at the same "
        f"rates; {counted}. Without noise of sampling, since both have the same weights. Dotted: "
        "the bound 1/α. Dashed: 1/α², the order that is left for symmetric laws of the weights. "
        f"Open points lie outside of {RANGE}; what is above the panel is cut. Bars: 95 % "
        "intervals over seeds.",
        "A log–log panel: the distance falls with slope minus two where α is small against the "
        "root of M times L.",
        own,
    )


def best_alpha(dataset: xr.Dataset) -> Figure:
    """Draw the best α against M·L, with both predicted exponents and the valid range."""
    names = [f"best_alpha{end}" for end in ("", "_low", "_high")]
    data = dataset[names].to_dataframe().reset_index().dropna(subset=["best_alpha"])
    data["part"] = data["part"].map(lambda part: NAMES[part].lower())
    width = float(dataset.attrs["embedding_width"])
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(
            axes,
            data,
            x="units",
            y=names[0],
            hue="part",
            kind="category",
            low=names[1],
            high=names[2],
            labels=("units M·L", "best α"),
            line=False,
        )
        units = dataset["units"].to_numpy().astype(float)
        own = data[data["part"] == "embedding"].sort_values("units")
        for (power, style), words in zip(STYLES.items(), ("(M·L)^¼", "(M·L)^1/6"), strict=True):
            if len(own):
                last = own.iloc[-1]
                x = np.array([units.min(), units.max()])
                law = (x / float(last["units"])) ** deep_limits.best_alpha_slope(power)
                plots.theory(axes, x, float(last["best_alpha"]) * law, words, style=style)
        if len(units) > 1:
            upper = np.sqrt(units / width) / LARGE
            axes.fill_between(
                units,
                LARGE,
                upper,
                where=upper > LARGE,
                color=MUTED,
                alpha=0.12,
                linewidth=0,
                label="1 ≪ α ≪ √(ML/D)",
            )
            ends = [*data["best_alpha"], *data["best_alpha_low"], *data["best_alpha_high"]]
            plots.limits_from(axes, [*ends, 1.0, 2.5 * LARGE], margin=0.1)
        page.legend()
    return page.finish(
        "lazy-ode-best",
        "The branch scale nearest to the lazy ODE",
        "α at which the distance to the lazy ODE is smallest, by a parabola through the lowest "
        "point and its neighbours; where the lowest is at an end of the grid there is none. "
        "Lines through the largest: the exponent ¼ of the bound, and 1/6 where the first order in "
        f"1/α vanishes. Shaded: {RANGE}. Bars: 95 % intervals over seeds.",
        "A log–log panel of the best α against M times L, with lines of exponents a quarter and a "
        "sixth.",
        data,
    )


def form(dataset: xr.Dataset, counted: str) -> Figure:
    """Draw the distance over the fitted form, for both powers."""
    data = dataset[["bound", "distance"]].to_dataframe().reset_index()
    data["ratio"] = data["distance"] / data["bound"]
    data = data[np.isfinite(data["ratio"])]
    powers = dataset["power"].to_numpy().tolist()
    titles = []
    with canvas(ncols=2, nrows=2, height=280, sharey=True) as page:
        for number, axes in enumerate(page.axes):
            power, part = powers[number // 2], PARTS[number % 2]
            own = data[(data["part"] == part) & (data["power"] == power)]
            plots.series(
                axes,
                own,
                x="alpha",
                y="ratio",
                hue="units",
                order=sorted(dataset["units"].to_numpy().tolist()),
                scales=("log", "linear"),
                labels=("branch scale α", "distance / fit"),
            )
            if len(own):
                ends = np.array([own["alpha"].min(), own["alpha"].max()])
                plots.theory(axes, ends, np.ones(2), "fit")
            titles.append(f"{NAMES[part]}, p = {power:g}: {_coefficients(dataset, part, power)}")
        page.letter(*titles)
        page.legend("units M·L")
    return page.finish(
        "lazy-ode-form",
        "The form c/α^p + a/L + b·α/√(ML), fitted",
        "Root mean square distance to the lazy ODE over the fitted form, at 1 ≤ α ≤ √(ML/D); "
        f"{counted}. Fitted to logarithms with equal weights, with p = 1 as in the "
        "bound and p = 2 as for symmetric laws of the weights. A sum leaves a factor of √3 open "
        "where its parts add in quadrature.",
        "Four panels of the ratio of measured to fitted distance against α, near one.",
        data,
    )


def _coefficients(dataset: xr.Dataset, part: str, power: float) -> str:
    c, a, b = dataset["coefficient"].sel(part=part, power=power).to_numpy()
    return f"c = {c:.2g}, a = {a:.2g}, b = {b:.2g}" if np.isfinite(c) else "no fit"
