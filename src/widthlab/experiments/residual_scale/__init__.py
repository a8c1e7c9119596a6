"""Residual scales 1/L^p side by side at growing depth: a limit, laziness, or explosion.

h_l = h_{l−1} + (L^−p/M) Σ_j v_j s(u_j·h_{l−1}/D). At p = 1 networks tend to the mean ODE: random
parts vanish as L^−½, and every unit learns features of order one. At p = ½ the random parts stay,
as in a stochastic differential equation, and local updates vanish as L^−½: layers are lazy. At
p = 0 the signal grows with depth beyond all bounds. Sources: Chizat, The Hidden Width of Deep
ResNets (2025); Yang, Yu, Zhu & Hayou, Tensor Programs VI (2023), on laziness within blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from widthlab.experiments.shared.base import Grid, Inputs, Measured, Request
from widthlab.experiments.shared.deep_networks import (
    DeepCell,
    DeepSection,
    deep_cost,
    deep_problem,
)
from widthlab.experiments.shared.deep_runs import changes, changes_dataset, trained
from widthlab.specs import WHOLE, Count, DataSet, Gaussian, NonNegative, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Residual scales: which has a limit in depth"
QUESTION = "What do branches scaled by 1/L, by 1/√L and by a constant become as depth grows?"
METHOD = (
    "Networks of two-layer blocks with branches scaled by 1/L^p are trained by full-batch gradient "
    "descent on a few labelled samples, all seeds of all depths with the same embedding and "
    "readout. Rates are η·L·M·D/α² with α = L/L^p, which keeps the speed of learning where the "
    "passes stay of order one. The spread is the root of the variance over seeds of the last "
    "embedding, after training, per coordinate, where that of the inputs is about 1. Seeds that "
    "diverge are counted, shown and left out of medians."
)


MOST = 1e6
"""Largest α = L^(1−p), and its inverse the smallest: rates go as 1/α² in single precision."""


def _falling(values: list[float]) -> list[float]:
    if len(set(values)) != len(values):
        raise ValueError("has a value twice; write each once")
    return sorted(values, reverse=True)


class Section(DeepSection):
    """Grid over exponents and depths."""

    exponent: Annotated[
        list[Annotated[NonNegative, Field(le=4)]],
        Field(min_length=1),
        AfterValidator(_falling),
        Unit("1"),
    ] = Field(default=[1.0, 0.5, 0.0])
    """p, so that branches are scaled by L^−p."""
    depth: Annotated[Grid, Unit("layers")]
    """Depths L to sweep."""
    width: Annotated[Count, Unit("coordinates")] = 16
    """D, embedding width."""
    hidden: Annotated[Count, Unit("units")] = 16
    """M, units in each block."""
    seeds: Annotated[int, Field(ge=4), WHOLE, Unit("networks")] = 32
    """Networks at every exponent and depth."""
    data: DataSet = Gaussian()
    """Where the inputs and their labels come from."""

    @model_validator(mode="after")
    def _scales(self) -> Self:
        for exponent in self.exponent:
            alpha = float(self.depth[-1]) ** (1 - exponent)
            if not 1 / MOST <= alpha <= MOST:
                raise ValueError(
                    f"exponent: {exponent:g} at depth {self.depth[-1]} makes α = L^(1−p) "
                    f"{alpha:.3g}, outside {1 / MOST:g} … {MOST:g}; take it nearer to 1, or "
                    "smaller depths"
                )
        return self


class Cell(DeepCell):
    """One exponent at one depth; seeds are a dimension of its statistics."""

    exponent: NonNegative


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every exponent and depth."""
    requests = []
    for exponent in section.exponent:
        for depth in section.depth:
            cell = Cell.model_validate(
                {
                    **section.shared_fields(seed),
                    "exponent": exponent,
                    "alpha": float(depth) ** (1 - exponent),
                    "depth": depth,
                    "width": section.width,
                    "hidden": section.hidden,
                    "seeds": section.seeds,
                }
            )
            slug = f"p{exponent:g}-d{depth}-w{section.width}-m{section.hidden}".replace(".", "_")
            cost = deep_cost(cell, companions=2)
            requests.append(Request(cell, section.activation, slug, section.data, cost=cost))
    return requests


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return what training changed (seed), and embeddings before and after."""
    problem = deep_problem(cell, inputs)
    run = trained(cell, problem, inputs, cell.learning_rate, cell.seeds)
    found = changes(run, problem)
    dataset = changes_dataset(found, ("seed",), run["diverged"].to_numpy(), seed=run["seed"])
    h0 = problem.embedding.cpu().numpy()
    about = {"units": "1", "description": "h_0, embeddings of the inputs"}
    return dataset.assign(
        embedding=run["embedding"], input_embedding=(("input", "coordinate"), h0, about)
    )


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return means over seeds by exponent and depth, with the spread, theory and claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.residual_scale.claims import Table, claims

    table = Table(section, measured)
    dataset = table.dataset()
    dataset.attrs["claims"] = to_json(claims(section, table))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return one figure with all quantities against depth."""
    from widthlab.experiments.residual_scale.drawings import against_depth

    return [against_depth(dataset)]
