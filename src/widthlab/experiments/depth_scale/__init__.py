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


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return signals and correlations by layer, their depth scales, and claims."""
    import xarray as xr

    from widthlab.claims import to_json
    from widthlab.experiments.depth_scale import correlations
    from widthlab.experiments.depth_scale.quantities import BY_LAYER, BY_WIDTH, INFINITE, THEORY
    from widthlab.experiments.depth_scale.verdicts import claims

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


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return signals and correlations by layer for each model, and depths against width."""
    from widthlab.experiments.depth_scale.drawing import model_figure, width_figure

    labels = [str(label) for label in dataset["model"].to_numpy()]
    return [*(model_figure(dataset, label) for label in labels), width_figure(dataset)]
