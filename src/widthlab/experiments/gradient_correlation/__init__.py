"""Gradients at initialisation: what neurons share, and what layers do not.

The signed correlation E[g_i g_j] of two neurons' gradients is zero at every width where the sign of
a neuron may be flipped, and of order 1/N at most otherwise. What width changes everywhere is the
correlation of their squares, E[g_i² g_j²]/(E g_i²)² − 1, which is
(1 + 5/N)^k − 1 with k ReLU layers above (2/N for linear ones): all neurons of a layer share the
size of the gradient that reaches them. For the same reason the sizes of the first and the last
layer's gradients drift apart in a single network, though not in the mean over networks. Sources:
Hanin & Nica (2020); Hanin (2018).
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

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.gradient_correlation.claims import Samples
    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Gradient correlation at initialisation"
QUESTION = (
    "How much do the gradients of a layer's neurons know of one another at finite width, and how "
    "unequal are the gradients of different layers?"
)
METHOD = (
    "At every width, networks are drawn at random, and one output is differentiated by the carried "
    "signal of every layer. The squared form averages gᵢ² gⱼ² over all pairs of different "
    "neurons; the signed form averages gᵢ gⱼ. The imbalance of layers is the logarithm of |g_l|² "
    "over that of the last layer, in networks whose gradients have not died. All are averaged over "
    "inputs within a draw, and errors come from the spread over draws."
)


class Section(LayersSection):
    """Grid of the gradient-correlation experiment."""


Cell = DrawsCell


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every architecture and width."""
    return draws_requests(section, [section.depth], ["gradients"])


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return gradient norms and pair moments by layer, over draws."""
    return measure_draws(cell, inputs, ["gradients"])


# ── the sweep ───────────────────────────────────────────────────────────────────────────────

MEASURED = {
    "squared": "E[g_i² g_j²]/(E g_i²)² − 1 over pairs of neurons",
    "squared_error": "standard error of squared (jackknife over draws)",
    "signed": "E[g_i g_j]/E g_i² over pairs of neurons",
    "signed_error": "standard error of signed (jackknife over draws)",
    "sampling_floor": "standard error of signed to expect where its true value is zero",
    "mean": "mean over draws of |g_l|²",
    "mean_error": "standard error of mean",
    "log_mean": "mean of log(|g_l|²/|g_L|²) over living gradients",
    "log_mean_error": "standard error of log_mean",
    "log_variance": "variance over draws of log(|g_l|²/|g_L|²) of living gradients",
    "log_variance_error": "standard error of log_variance",
    "alive": "share of draws and inputs whose gradient is alive",
}
THEORY = {
    "exact": "exact law of squared, where there is one",
    "leading": "law of squared to leading order in 1/N, where it is known",
    "signed_law": "law of signed: zero by symmetry, or leading order in 1/N, where it is known",
    "backward_law": "E|g_l|² at infinite width, from q_0 = 1",
    "exact_log_mean": "exact law of log_mean, where there is one",
    "exact_log_variance": "exact law of log_variance, where there is one",
}


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return correlations and norms by model, width and layer, with theory beside and claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.gradient_correlation import claims
    from widthlab.experiments.shared.frames import LayerTable
    from widthlab.statistics.gradient_correlation import signed_correlation, squared_correlation
    from widthlab.statistics.moments import signal_moments

    table = LayerTable(section, MEASURED | THEORY)
    samples: Samples = {}
    for one in measured:
        label, width = one.label, one.cell.width
        statistics = one.statistics.load()
        squared = squared_correlation(statistics["m22"], statistics["m2"])
        signed = signed_correlation(statistics["m11"], statistics["m2"], statistics["m22"])
        # From the last layer backwards, gradients are what signals are forwards.
        norms = statistics["gradient_norm"].transpose("draw", "layer", "input").to_numpy()
        sizes = norms[:, ::-1] ** 2
        backwards = vars(signal_moments(sizes))
        table.count(label, width, int(squared["draws"].min()))
        table.put(
            label,
            width,
            {
                "squared": squared["estimate"].to_numpy(),
                "squared_error": squared["standard_error"].to_numpy(),
                "signed": signed["estimate"].to_numpy(),
                "signed_error": signed["standard_error"].to_numpy(),
                "sampling_floor": signed["sampling_floor"].to_numpy(),
                **{name: backwards[name][::-1] for name in MEASURED if name in backwards},
            },
        )
        below = statistics[["m22", "m2"]].sel(layer=section.depth - 1)
        pairs = below.to_array().transpose("draw", "input", ...).to_numpy()
        samples[label, width] = pairs, sizes
    for label in section.models:
        for width in section.width:
            table.put(label, width, _laws(section, label, width))
    dataset = table.dataset(
        experiment="gradient_correlation", asked=section.draws, inputs=section.inputs
    )
    above = section.depth - np.arange(section.depth + 1)
    about = {"units": "layers", "description": "k, hidden layers above"}
    dataset = dataset.assign(layers_above=("layer", above, about))
    dataset["draws"].attrs["description"] = "draws whose gradients are finite"
    fits = claims.fits(section, samples)
    dataset = dataset.assign(claims.slopes(section, fits).variables)
    dataset.attrs["claims"] = to_json(claims.claims(section, dataset, samples, fits))
    return dataset


def _laws(section: Section, label: str, width: int) -> dict[str, Array]:
    """Return the `THEORY` that a model has at a width, by layer."""
    from widthlab.experiments.shared import backward_laws
    from widthlab.experiments.shared.laws import gradient_law

    architecture, depth = section.models[label], section.depth
    laws = {
        "exact": gradient_law(architecture, width, depth),
        "leading": backward_laws.gradient_leading(architecture, width, depth),
        "signed_law": backward_laws.signed_correlation(architecture, width, depth),
        "backward_law": backward_laws.gradient_norm(architecture, depth),
    }
    logs = backward_laws.gradient_logarithms(architecture, width, depth)
    if logs is not None:
        # The input is no layer of this width, and its gradient has no such law.
        laws["exact_log_mean"] = np.concatenate([[np.nan], logs.mean])
        laws["exact_log_variance"] = np.concatenate([[np.nan], logs.variance])
    return {name: law for name, law in laws.items() if law is not None}


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the correlation by layers above and by width, norms, imbalance and signed form."""
    from widthlab.experiments.gradient_correlation import drawings

    data = drawings.table(dataset)
    present = dataset["draws"].to_numpy()[dataset["draws"].to_numpy() > 0]
    counted = (
        f"{int(present.sum()):,} of {int(dataset.attrs['asked']) * len(present):,} draws are finite"
    )
    return [
        drawings.above(data, counted),
        drawings.width(data, counted),
        drawings.norm(data, counted),
        drawings.spread(data, f"{counted}; {_alive(dataset)}"),
        drawings.imbalance(data, dataset, f"{counted}; {_alive(dataset)}"),
        drawings.signed(data, counted),
    ]


def _alive(dataset: xr.Dataset) -> str:
    """Say how many gradients are alive at the first layer, of how many."""
    first = dataset["alive"].sel(layer=1).fillna(0)
    total = dataset["draws"] * int(dataset.attrs["inputs"])
    return f"{round(float((first * total).sum())):,} of {int(total.sum()):,} gradients are alive"
