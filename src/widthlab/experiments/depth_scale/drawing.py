"""Figures of the depth scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.depth_scale.quantities import BY_LAYER, BY_WIDTH, INFINITE, THEORY
from widthlab.experiments.shared.frames import drawn_layers
from widthlab.report import plots, ticks
from widthlab.report.figures import Figure, canvas

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def _counted(dataset: xr.Dataset) -> str:
    draws = dataset["draws"].to_numpy()
    alive = np.nan_to_num(dataset["alive"].to_numpy())
    return (
        f"{round(float((draws * alive).sum())):,} of {int(draws.sum()):,} draws are alive at the "
        "last layer"
    )


def _by_layer(own: xr.Dataset) -> pd.DataFrame:
    """Return a model's curves with their distances from the limits, as a tidy table."""
    names = [*BY_LAYER, *INFINITE]
    data = own[names].to_dataframe().reset_index().dropna(subset=["signal"])
    for name in ("signal", "correlation"):
        distance, error = data[f"{name}_distance"], data[f"{name}_distance_error"]
        # From where noise could have made it on, it says nothing on a logarithmic axis.
        above = (distance > 2 * error).groupby(data["width"]).cummin()
        data[f"{name}_distance"] = distance.where(above)
        data[f"{name}_low"], data[f"{name}_high"] = distance - 2 * error, distance + 2 * error
    return drawn_layers(data)


def model_figure(dataset: xr.Dataset, label: str) -> Figure:
    """Return pairs, distances from the limits, and spread by layer, for one model."""
    own = dataset.sel(model=label)
    data = _by_layer(own)
    phase = str(own["phase"].item())
    pairs = _pairs(own)
    widest = int(pairs["width"].max()) if len(pairs) else 0
    power = phase == "critical"
    data = data[data["layer"] > 0] if power else data
    titles = ["Correlation of pairs"]
    with canvas(ncols=2, nrows=2) as page:
        first, *rest, last = page.axes
        plots.layers(
            first,
            pairs,
            y="pair_correlation",
            hue="rank",
            labels=("layer l", "correlation c"),
        )
        for number, (_, one) in enumerate(pairs.groupby("pair")):
            law = one.sort_values("layer")
            name = None if number else "recursion, N → ∞"
            plots.theory(first, law["layer"], law["infinite_pair_correlation"], name)
        for drawn in first.get_lines():
            if not str(drawn.get_label()).startswith("recursion"):
                drawn.set_label("_pair")  # named in the caption, not in the legend of widths
        for axes, (name, symbol, scale) in zip(
            rest, (("correlation", "c", "ξ_c"), ("signal", "q", "ξ_q")), strict=True
        ):
            y = f"{name}_distance"
            words = _limit(own, name, symbol)
            plots.series(
                axes,
                data,
                x="layer",
                y=y,
                hue="width",
                low=f"{name}_low",
                high=f"{name}_high",
                markers=False,
                labels=("layer l", words),
                scales=("log" if power else "linear", "linear" if phase == "none" else "log"),
            )
            law = data[data["width"] == data["width"].max()]
            law = law[law[f"infinite_{y}"] > 0]
            plots.theory(axes, law["layer"], law[f"infinite_{y}"], "recursion, N → ∞")
            plots.limits_from(axes, list(data[y]))
            titles.append(_scale_title(own, name, scale))
        plots.layers(
            last,
            data,
            y="correlation_spread",
            labels=("layer l", "standard deviation of c"),
        )
        page.letter(*titles, "Spread over draws")
        page.legend("width N")
    return page.finish(
        f"depth-scale-{label.replace('_', '-')}",
        f"Signals and correlations by layer: {label}{'' if phase == 'none' else f' ({phase})'}",
        f"a: correlation of every pair of inputs at width {widest}, the fainter the less alike the "
        "inputs are. b, c: distance of mean correlations (root mean square over pairs) and of the "
        "mean signal variance from where they go, down to where it is within two standard errors "
        "of zero; ξ as fitted at the largest width, with the interval of the verdict, and in "
        f"theory. d: standard deviation of c over draws. {_counted(own)}. Bands: two standard "
        "errors. Dashed: the recursion of infinite width.",
        f"For {label}: correlations of pairs by layer, distances of correlation and signal from "
        "their limits on a logarithmic axis, and the spread of correlations, by width.",
        data,
    )


def _pairs(own: xr.Dataset) -> pd.DataFrame:
    """Return every pair's correlation at the largest width that has draws."""
    names = ["pair_correlation", "infinite_pair_correlation"]
    drawn = own["width"].to_numpy()[own["draws"].to_numpy() > 0]
    data = own[names].sel(width=drawn[-1:]).to_dataframe().reset_index()
    data["rank"] = data["initial_correlation"].rank(method="dense")
    return drawn_layers(data.dropna(subset=["pair_correlation"]))


def _limit(own: xr.Dataset, name: str, symbol: str) -> str:
    limit = float(own[f"limit_{name}"])
    if name == "signal":
        return f"|q − {limit:.3g}|" if limit > 0 else "q"
    return f"|c − {limit:.3g}|" if limit < 1 else "1 − c"


def _scale_title(own: xr.Dataset, name: str, scale: str) -> str:
    key = "variance_scale" if name == "signal" else "correlation_scale"
    what = "Signal" if name == "signal" else "Correlation"
    known = own[key].dropna("width")
    theory = float(own[f"theory_{key}"])
    if known.sizes["width"] == 0:
        return what
    at = known["width"].to_numpy()[-1]
    value, low, high = (float(own[f"{key}{end}"].sel(width=at)) for end in ("", "_low", "_high"))
    return f"{scale} = {value:.3g} [{low:.3g}, {high:.3g}], theory {theory:.3g}"


def width_figure(dataset: xr.Dataset) -> Figure:
    """Return the depths of all models against width."""
    labels = [str(label) for label in dataset["model"].to_numpy()]
    names = [f"{name}{end}" for name in BY_WIDTH for end in ("", "_low", "_high")]
    data = dataset[[*names, *THEORY]].to_dataframe().reset_index()
    for name in BY_WIDTH:
        ends = data[[f"{name}_low", f"{name}_high"]].to_numpy(float)
        data[name] = data[name].where(np.isfinite(ends).all(axis=1))
    panels = {
        "felt": ("layer l", None, "Finite width is felt (1 − c off by 10 %)"),
        "correlation_survival": (
            "layer l",
            "infinite_correlation_survival",
            "|c − c*| has fallen to 1/e",
        ),
        "correlation_scale": ("ξ_c in layers", "theory_correlation_scale", "ξ_c as fitted"),
        "variance_scale": ("ξ_q in layers", "theory_variance_scale", "ξ_q as fitted"),
    }
    with canvas(ncols=2, nrows=2) as page:
        for axes, (name, (words, law, _)) in zip(page.axes, panels.items(), strict=True):
            plots.series(
                axes,
                data,
                x="width",
                y=name,
                hue="model",
                kind="category",
                order=labels,
                low=f"{name}_low",
                high=f"{name}_high",
                spread="bars",
                line=False,
                scales=("log", "log" if law is None else "linear"),
                labels=("width N", words),
            )
            ticks.at_values(axes.xaxis, data["width"])
            if law is None:
                known = data[data[name] > 0]
                if len(known) > 1:
                    place = np.exp(np.log(known[["width", name]].to_numpy(float)).mean(axis=0))
                    plots.slope(axes, 1.0, (float(place[0]), 2.5 * float(place[1])), "∝ N")
                continue
            for number, (_, one) in enumerate(data.groupby("model", sort=False)):
                if np.isfinite(one[law]).all() and one[name].notna().any():
                    label = None if number else "infinite width"
                    plots.theory(axes, one["width"], one[law], label)
        page.letter(*(title for _, _, title in panels.values()))
        page.legend()
    return page.finish(
        "depth-scale-width",
        "Depths against width",
        "a: layer at which the typical 1 − c of two inputs is 10 % off the recursion of infinite "
        "width; the line is proportional to N. b: layer at which |c − c*| (root mean square over "
        "pairs) has fallen to 1/e. c, d: depth scales as fitted. "
        f"{_counted(dataset)}. Bars: 99.9 % intervals (bootstrap over draws), those of ξ with what "
        "the verdict allows for the transient and for a shift of order 1/N. Dashed: infinite "
        "width. Where a point is missing, the layer was not reached in all resamples, or there are "
        "no three layers between transient and noise.",
        "Four panels against width on logarithmic axes: where finite width is felt, where "
        "correlations have decayed, and the fitted depth scales beside theory.",
        data,
    )
