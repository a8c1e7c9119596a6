"""How deep a signal and a correlation survive, at and off criticality.

Random networks are run on several inputs. In the ordered phase all inputs become alike, in the
chaotic one alike inputs part, both exponentially, with the depth scales ξ_q of the signal variance
and ξ_c of correlations (Poole et al. 2016; Schoenholz et al. 2017). At criticality there is no
scale, and decays are power laws (Roberts, Yaida & Hanin 2022). All this is of infinite width; at
width N it holds down to depths of order N where fluctuations add up from layer to layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from widthlab.experiments.shared.base import Inputs, Measured, Request
from widthlab.experiments.shared.random_draws import (
    DrawsCell,
    LayersSection,
    draws_requests,
    measure_draws,
    sphere,
)

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "How deep signals and correlations survive"
QUESTION = "To what depth does a random network tell two inputs apart, and what does width change?"
METHOD = (
    "At every width, networks are drawn at random and run on training inputs with |x|² = d. The "
    "signal variance q = |h|²/N is averaged over inputs, and the correlation c of two inputs' "
    "signals over all pairs, within a draw; errors come from the spread over draws. Off "
    "criticality a depth scale is fitted to log |q − q*| or log |c − c*| of the mean over draws. "
    "The layers are chosen beforehand from the recursion of infinite width: from where its own "
    "rate is within 20 % of 1/ξ, to where it has fallen to five times 1/N plus the standard error. "
    "Finite width is felt by a pair of inputs at the layer where the typical value of 1 − c, "
    "exp E log(1 − c), is 10 % off the recursion. 1 − c below the resolution of the numbers is "
    "left out from the first layer at which any draw gets there."
)


class Section(LayersSection):
    """Grid of the depth-scale experiment."""

    @model_validator(mode="after")
    def _pairs(self) -> Section:
        if self.inputs < 2:
            raise ValueError("inputs: a correlation needs at least two inputs")
        if self.depth < 8:
            raise ValueError("depth: decays are compared between L/4, L/2 and L; take at least 8")
        return self


Cell = DrawsCell


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every architecture and width."""
    return draws_requests(section, [section.depth])


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return signal variances by layer, correlations of all pairs, and those of the inputs."""
    found = measure_draws(cell, inputs, ["signals"]).drop_vars("signal_mean")
    x = sphere(cell.inputs, inputs).double().cpu().numpy()
    first, second = found["input_a"].to_numpy(), found["input_b"].to_numpy()
    about = {"units": "1", "description": "x_a·x_b / (|x_a||x_b|) of the inputs themselves"}
    cosine = (x[first] * x[second]).sum(axis=1) / (x**2).sum(axis=1).mean()
    return found.assign(input_correlation=("pair", cosine, about))


# ── the sweep ───────────────────────────────────────────────────────────────────────────────

BY_LAYER = {
    "signal": "mean over draws of the signal variance q",
    "signal_error": "standard error of signal",
    "log_variance": "variance over draws of log(q_l / q_0)",
    "correlation": "mean over draws and pairs of the correlation c of two inputs",
    "correlation_error": "standard error of correlation",
    "signal_distance": "|q − q*| of the mean q (q itself where there is no limit)",
    "signal_distance_error": "standard error of signal_distance",
    "correlation_distance": "|c − c*| of mean correlations, root mean square over pairs",
    "correlation_distance_error": "standard error of correlation_distance",
    "correlation_spread": "standard deviation over draws of c (root mean square over pairs)",
    "log_decorrelation": "mean over draws and pairs of log(1 − c)",
    "log_decorrelation_error": "standard error of log_decorrelation",
}
INFINITE = {
    "infinite_signal": "q at infinite width, from q_0 = 1",
    "infinite_correlation": "c at infinite width, averaged over pairs",
    "infinite_signal_distance": "signal_distance at infinite width",
    "infinite_correlation_distance": "correlation_distance at infinite width",
    "infinite_log_decorrelation": "log(1 − c) at infinite width, averaged over pairs",
}
BY_WIDTH = {
    "variance_scale": ("layers", "ξ_q as fitted; its interval allows for transient and 1/N"),
    "correlation_scale": ("layers", "ξ_c as fitted (rates averaged over pairs), likewise"),
    "felt": ("layers", "depth at which finite width is felt by a pair: 1 − c typically 10 % off"),
    "signal_survival": ("layers", "layer at which signal_distance has fallen to 1/e"),
    "correlation_survival": ("layers", "layer at which correlation_distance has fallen to 1/e"),
}
"""Depths by width; survivals, those of the mean curve, also at infinite width."""
THEORY = {
    "limit_signal": ("1", "q*, to which q goes"),
    "limit_correlation": ("1", "c*, to which c of carried signals goes"),
    "theory_variance_scale": ("layers", "ξ_q of theory, infinite at criticality"),
    "theory_correlation_scale": ("layers", "ξ_c of theory, infinite at criticality"),
    "infinite_signal_survival": ("layers", "signal_survival at infinite width"),
    "infinite_correlation_survival": ("layers", "correlation_survival at infinite width"),
}


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return signals and correlations by layer, their depth scales, and claims."""
    import xarray as xr

    from widthlab.claims import to_json
    from widthlab.experiments.shared import correlations
    from widthlab.experiments.shared.decay_claims import claims

    labels, widths, depth = list(section.models), section.width, section.depth
    pairs = section.inputs * (section.inputs - 1) // 2
    start = np.full(pairs, np.nan)
    for one in measured[:1]:
        start = one.statistics["input_correlation"].to_numpy()
    shape = (len(labels), len(widths))
    found = {
        **{name: np.full((*shape, depth + 1), np.nan) for name in BY_LAYER},
        **{name: np.full((shape[0], depth + 1), np.nan) for name in INFINITE},
        **{name: np.full(shape[:1], np.nan) for name in THEORY},
        **{
            f"{name}{end}": np.full(shape, np.nan)
            for name in BY_WIDTH
            for end in ("", "_low", "_high")
        },
    }
    of_pair = np.full((*shape, depth + 1, pairs), np.nan)
    infinite_pair = np.full((shape[0], depth + 1, pairs), np.nan)
    draws, alive = np.zeros(shape, dtype=np.int64), np.full(shape, np.nan)
    phases, models = [], {}
    for i, (label, architecture) in enumerate(section.models.items()):
        model = correlations.Model.of(label, architecture, start, depth)
        models[label] = model
        phases.append(model.phase.name if model.phase else "none")
        for name, values in model.curves().items():
            found[name][i] = values
        infinite_pair[i] = model.correlation
    for one in sorted(measured, key=lambda one: (one.label, one.cell.width)):
        at = labels.index(one.label), widths.index(one.cell.width)
        cell = correlations.Draws.of(one.statistics, one.cell.width, models[one.label])
        models[one.label].cells.append(cell)
        draws[at], alive[at], of_pair[at] = cell.count, cell.alive, cell.pair_means
        for name, values in cell.summary().items():
            found[name][at] = values
    by_layer, by_width = ("model", "width", "layer"), ("model", "width")
    texts = {
        **{name: (by_layer, "1", text) for name, text in BY_LAYER.items()},
        **{name: (("model", "layer"), "1", text) for name, text in INFINITE.items()},
        **{name: (("model",), *words) for name, words in THEORY.items()},
        **{name: (by_width, *words) for name, words in BY_WIDTH.items()},
        **{
            f"{name}_{end}": (by_width, unit, f"{end} end of the 99.9 % interval of {name}")
            for name, (unit, _) in BY_WIDTH.items()
            for end in ("low", "high")
        },
    }
    variables = {
        name: (dims, found[name], {"units": unit, "description": text})
        for name, (dims, unit, text) in texts.items()
    }
    more = {
        "pair_correlation": ((*by_layer, "pair"), of_pair, "mean over draws of a pair's c"),
        "infinite_pair_correlation": (
            ("model", "layer", "pair"),
            infinite_pair,
            "a pair's c at infinite width",
        ),
        "alive": (by_width, alive, "share of draws whose signals are alive at the last layer"),
    }
    dataset = xr.Dataset(
        {
            **variables,
            **{n: (dims, a, {"units": "1", "description": t}) for n, (dims, a, t) in more.items()},
            "draws": (by_width, draws, {"units": "networks", "description": "networks drawn"}),
        },
        coords={
            "model": labels,
            "width": widths,
            "layer": np.arange(depth + 1),
            "phase": ("model", phases),
            "initial_correlation": ("pair", start),
        },
        attrs={"experiment": "depth_scale", "inputs": section.inputs},
    )
    dataset.attrs["claims"] = to_json(claims(list(models.values())))
    return dataset


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return signals and correlations by layer for each model, and depths against width."""
    return [
        *(_model_figure(dataset, str(label)) for label in dataset["model"].to_numpy()),
        _width_figure(dataset),
    ]


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
    return data


def _model_figure(dataset: xr.Dataset, label: str) -> Figure:
    from widthlab.report import plots
    from widthlab.report.figures import canvas

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
    return data.dropna(subset=["pair_correlation"])


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


def _width_figure(dataset: xr.Dataset) -> Figure:
    from widthlab.report import plots, ticks
    from widthlab.report.figures import canvas

    labels = [str(label) for label in dataset["model"].to_numpy()]
    names = [f"{name}{end}" for name in BY_WIDTH for end in ("", "_low", "_high")]
    data = dataset[[*names, *THEORY]].to_dataframe().reset_index()
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
        "width. Where a point is missing, the layer was not reached, or no three layers lie "
        "between transient and noise.",
        "Four panels against width on logarithmic axes: where finite width is felt, where "
        "correlations have decayed, and the fitted depth scales beside theory.",
        data,
    )
