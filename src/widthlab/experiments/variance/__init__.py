"""Signal variance at initialisation, against depth and width.

Networks are drawn at random and run on a few real inputs, scaled to |x|² = d. The signal
variance q_l = |h_l|²/N of the carried signal is compared with the block law of infinite width and
its corrections of order 1/N, and with the exact laws of finite width: of its moments, of its
logarithm, and of its whole distribution. Sources: Hanin & Nica (2020); Roberts, Yaida & Hanin
(2022); Kawase & Ota (2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from widthlab.experiments.shared.base import Inputs, Label, Measured, Request
from widthlab.experiments.shared.random_draws import (
    DrawsCell,
    LayersSection,
    draws_request,
    measure_draws,
)
from widthlab.specs import Count, Unit, nearest

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.experiments.variance.comparison import Comparison
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
    "have died (q = 0) or are not finite are counted; dead ones are left out of logarithms only. "
    "Moments that are held against the theory of order 1/N are freed of noise whose mean is known "
    "to vanish, if it does vanish in the draws: all that is new in a layer where q depends on the "
    "one below alone (a martingale), and the embedding's own elsewhere. Where that theory is 5 % "
    "off, its validity window ends; the truth is the exact law where there is one, and the draws "
    "elsewhere."
)


class Section(LayersSection):
    """Grid of the variance experiment."""

    more_draws: Annotated[dict[Label, Count], Unit("networks")] = Field(default={})
    """Draws of models that need more of them, by label; others take `draws`. A window of validity
    of a one-layer branch needs some 8000, since little of its noise is known."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for label, draws in self.more_draws.items():
            if label not in self.models:
                known = nearest(label, self.models)
                raise ValueError(f"more_draws: no model {label!r}; {known}")
            if draws < self.draws:
                raise ValueError(
                    f"more_draws.{label}: {draws} is fewer than draws ({self.draws}); leave it out"
                )
        return self

    def draws_of(self, label: str) -> int:
        """Return how many networks of a model are drawn at every width."""
        return self.more_draws.get(label, self.draws)


Cell = DrawsCell


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every architecture and width."""
    return [
        draws_request(
            section.model_copy(update={"draws": section.draws_of(label)}),
            label,
            architecture,
            width,
            section.depth,
        )
        for label, architecture in section.models.items()
        for width in section.width
    ]


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return signal variance and mean by layer, and correlations of inputs, over draws."""
    return measure_draws(cell, inputs, ["signals"])


# ── the sweep ───────────────────────────────────────────────────────────────────────────────


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return moments by model, width and layer, with theory beside them and claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.shared.frames import LayerTable
    from widthlab.experiments.shared.laws import signal_laws
    from widthlab.experiments.variance.comparison import (
        CORRECTED,
        MOMENTS,
        compare,
        corrected,
    )
    from widthlab.experiments.variance.width_claims import scaling_layer
    from widthlab.statistics.moments import log_ratio, signal_moments

    table = LayerTable(section, MEASURED | MOMENTS | THEORY | CORRECTED)
    logs: dict[tuple[str, int], Array] = {}
    compared: dict[tuple[str, int], Comparison] = {}
    for one in measured:
        key = one.label, one.cell.width
        q = one.statistics["signal_variance"].transpose("draw", "layer", "input").to_numpy()
        compared[key] = compare(section.models[one.label], one.cell.width, q)
        judged = scaling_layer(section.models[one.label], section.width, section.depth)
        logs[key] = log_ratio(q, judged)
        table.count(*key, len(q))
        table.put(*key, vars(signal_moments(q)))
        table.put(*key, compared[key].moments)
    for label, architecture in section.models.items():
        for width in section.width:
            table.put(label, width, signal_laws(architecture, width, section.depth))
            table.put(label, width, corrected(architecture, width, section.depth))
    dataset = table.dataset(experiment="variance", inputs=section.inputs)
    dataset = dataset.assign(_windows(dataset, compared)).assign(_quantiles(dataset, compared))
    dataset.attrs["claims"] = to_json(claims(section, dataset, logs, compared))
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
    "exact_variance": "exact Var q_l, that of a random embedding included",
    "exact_log_mean": "exact mean of log(q_l / q_0), where there is a law",
    "exact_log_variance": "exact variance of log(q_l / q_0), where there is a law",
}


def _windows(dataset: xr.Dataset, compared: dict[tuple[str, int], Comparison]) -> xr.Dataset:
    """Return departures of theories of order 1/N from the truth, and where they pass 5 %."""
    import xarray as xr

    from widthlab.experiments.variance.comparison import THEORIES
    from widthlab.experiments.variance.windows import LIMIT, QUANTITIES

    coords: dict[str, Sequence[str] | Array] = {
        "theory": list(THEORIES),
        "quantity": list(QUANTITIES),
        **{name: dataset[name].to_numpy() for name in ("model", "width", "layer")},
    }
    place, by_layer = list(coords)[:-1], list(coords)
    found = xr.Dataset(coords=coords)
    for name, (dims, units, text) in {
        "departure": (by_layer, "1", "predicted over true, minus 1"),
        "departure_error": (by_layer, "1", "its standard error; 0 where truth is an exact law"),
        "window": (
            place,
            "layers",
            f"layer at which |departure| first passes {LIMIT:.0%}; infinite where it does not, NaN "
            "where noise hides it",
        ),
        "window_low": (place, "layers", "lower end of its 95 % interval over draws"),
        "window_high": (place, "layers", "upper end of its 95 % interval over draws"),
    }.items():
        holes = np.full([len(coords[dim]) for dim in dims], np.nan)
        found[name] = dims, holes, {"units": units, "description": text}
    for (label, width), one in compared.items():
        for (theory, quantity), departure in one.departures.items():
            at = {"theory": theory, "quantity": quantity, "model": label, "width": width}
            end = one.windows[theory, quantity]
            found["departure"].loc[at] = departure.value
            found["departure_error"].loc[at] = departure.error
            found["window"].loc[at] = end.value
            found["window_low"].loc[at], found["window_high"].loc[at] = end.low, end.high
    return found


def _quantiles(dataset: xr.Dataset, compared: dict[tuple[str, int], Comparison]) -> xr.Dataset:
    """Return quantiles of log q_L of the first input, measured and exact."""
    import xarray as xr

    from widthlab.experiments.variance.comparison import PROBABILITIES

    shape = (dataset.sizes["model"], dataset.sizes["width"], len(PROBABILITIES))
    texts = {
        "quantile": "quantile of log q of one input at the last layer, over draws",
        "quantile_low": "the same at a probability two standard errors lower",
        "quantile_high": "the same at a probability two standard errors higher",
        "exact_quantile": "the same of the exact law, where there is one",
    }
    found = {name: np.full(shape, np.nan) for name in texts}
    labels, widths = list(dataset["model"].to_numpy()), list(dataset["width"].to_numpy())
    for (label, width), one in compared.items():
        at = labels.index(label), widths.index(width)
        reach = 2 * np.sqrt(PROBABILITIES * (1 - PROBABILITIES) / len(one.last))
        for name, shift in (("quantile", 0.0), ("quantile_low", -reach), ("quantile_high", reach)):
            found[name][at] = _log_quantile(one.last, PROBABILITIES + shift)
        if len(one.exact):
            found["exact_quantile"][at] = _log_quantile(one.exact, PROBABILITIES)
    dims = ("model", "width", "probability")
    return xr.Dataset(
        {n: (dims, found[n], {"units": "1", "description": text}) for n, text in texts.items()},
        coords={"model": labels, "width": widths, "probability": PROBABILITIES},
    )


def _log_quantile(q: Array, probabilities: Array) -> Array:
    values = np.quantile(q, np.clip(probabilities, 0, 1))
    alive = np.isfinite(values) & (values > 0)
    return np.where(alive, np.log(np.where(alive, values, 1.0)), np.nan)


# ── claims ──────────────────────────────────────────────────────────────────────────────────


def claims(
    section: Section,
    dataset: xr.Dataset,
    logs: dict[tuple[str, int], Array],
    compared: dict[tuple[str, int], Comparison],
) -> list[Claim]:
    """Judge the laws of every model that has them."""
    from widthlab.experiments.variance.law_claims import law_claims
    from widthlab.experiments.variance.width_claims import (
        collapse_claim,
        distribution_claim,
        scaling_claim,
        scaling_layer,
    )
    from widthlab.experiments.variance.window_claims import window_claims

    made: list[Claim | None] = []
    for label, architecture in section.models.items():
        present = [width for width in section.width if (label, width) in compared]
        if not present:
            continue
        own, draws = dataset.sel(model=label, width=present), section.draws_of(label)
        cells = {width: compared[label, width] for width in present}
        made.extend(law_claims(label, architecture, own, draws))
        made.append(distribution_claim(label, cells))
        of_widths = {width: logs[label, width] for width in present}
        layer = scaling_layer(architecture, section.width, section.depth)
        made.append(scaling_claim(label, architecture, section.depth, layer, of_widths))
        made.append(collapse_claim(label, own, draws))
        made.extend(window_claims(label, architecture, section.depth, cells))
    return [claim for claim in made if claim is not None]


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the signal by layer, its fluctuations by width, collapse, distribution, windows."""
    from widthlab.experiments.variance import layer_figures, width_figures

    return [
        *(layer_figures.layers(dataset, str(label)) for label in dataset["model"].to_numpy()),
        width_figures.scaling(dataset),
        width_figures.collapse(dataset),
        *width_figures.quantiles(dataset),
        *width_figures.windows(dataset),
    ]
