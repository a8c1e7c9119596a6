"""The phases of training of deep residual networks, over σ_v, embedding width D and depth L.

Two-layer blocks with outer weights of standard deviation σ_v are trained at rates η·L·M·D. The
size of a unit's own feature update is of order one for σ_v up to √D (maximal local updates, MLU)
and falls as √D/σ_v beyond, where blocks become linear in their weights (lazy).
Random branches add σ_v²/(ML) to the signal, so that forward and backward pass blow up where σ_v
reaches √(ML), whatever D. Source: Chizat, The Hidden Width of Deep
ResNets: Tight Error Bounds and Phase Diagrams (2025).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from widthlab.costs import Cost
from widthlab.experiments.shared.base import Grid, Inputs, Label, Measured, Request, ordered
from widthlab.experiments.shared.deep_networks import DeepCell, deep_cost, deep_problem
from widthlab.experiments.shared.deep_runs import CHANGES, RATE, changes, changes_dataset, trained
from widthlab.specs import (
    WHOLE,
    Count,
    DataSet,
    Fraction,
    Gaussian,
    Positive,
    Seed,
    Spec,
    Unit,
)

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.meanode import Problem
    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Phases of training: feature learning, laziness and explosion"
QUESTION = "At what scale of the outer weights does a deep residual network learn features?"
METHOD = (
    "At every embedding width D, depth L and σ_v, networks of two-layer blocks are trained by "
    "full-batch gradient descent on a few labelled samples, each draw with weights, embedding and "
    "readout of its own. Rates are η·L·M·D, with η one share of the network's stability limit, "
    "that of gradient descent in the tangent ODE of its own task, σ_u and σ_v; but never above a "
    "stated rate, for weights that start at a saddle, whose tangent kernel says little. This "
    "normalises the speed, and the normalisation implies some of what is found: the tangent kernel "
    "has a part of the outer weights and one of the inner, which grows as σ_v²/D. To first order a "
    "local update is therefore ∝ s/(a + b·s²) with s = σ_v/√D, with its maximum and its half at "
    "fixed s. Claims on the size of updates test that networks follow this order at finite "
    "updates, L and M, and not a law beyond it. Whether networks are lazy is measured by other "
    "quantities: how far pre-activations change, and how far the network ends from two "
    "linearisations, of the whole network (tangent) and of each block at the stream that results. "
    "Quantities are geometric means over draws. A network is exploding where either pass doubles "
    "before training, where most draws diverge, or where the loss ends above its beginning; "
    "nothing is learned where it ends above nine tenths of it. Beyond the σ_v of the largest local "
    "update, where it is less than half of that (the measured boundary), updates are small; such a "
    "network is called lazy only where it ends within a tenth of its block-linearised network and "
    "its pre-activations change by less than their initial size. "
    "These laws need σ_v ≪ √(ML): boundaries and slopes are taken from σ_v ≤ ½√(ML) only."
)


Scale = Annotated[Positive, Field(ge=1e-6, le=1e6)]
"""A standard deviation whose square, and that of what it makes, is a number in single precision."""


class Blocks(Spec):
    """What the blocks are."""

    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function s."""
    sigma_u: Annotated[Scale, Unit("sqrt(D)")] = 1.0
    """Standard deviation of inner weights; where σ_v is small too, weights start at a saddle."""


class Section(Spec):
    """Grid of the phase diagram."""

    models: Annotated[
        dict[Label, Blocks],
        Field(min_length=1),
        AfterValidator(lambda models: dict(sorted(models.items()))),
    ] = Field(default={"tanh": Blocks()})
    """Kinds of blocks, by the label that figures show."""
    sigma_v: Annotated[list[Scale], Field(min_length=3), AfterValidator(ordered), Unit("sqrt(D)")]
    """Standard deviations of outer weights, in units of √D."""
    width: Annotated[Grid, Unit("coordinates")]
    """Embedding widths D."""
    depth: Annotated[Grid, Unit("blocks")]
    """Depths L."""
    hidden: Annotated[Count, Unit("units")] = 128
    """M, units in each block; the lazy phase is seen where L·M is many times D."""
    share: Annotated[Fraction, Unit("1")] = 0.25
    """η over the stability limit of the tangent ODE; raw rates are η·L·M·D."""
    learning_rate: Annotated[Positive, Unit("1")] = 2.0
    """Largest η, reached only where weights start near a saddle."""
    steps: Annotated[Count, Unit("steps")] = 10
    """Steps of full-batch gradient descent."""
    draws: Annotated[int, Field(ge=4), WHOLE, Unit("networks")] = 8
    """Networks at every point of the grid, each with an embedding and a readout of its own."""
    inputs: Annotated[Count, Unit("samples")] = 8
    """n, training samples; the loss is ½|f − onehot|², mean over them."""
    data: DataSet = Gaussian()
    """Where the inputs and their labels come from. With few classes the error at the start is one
    of the targets at every D; that of the readout is of order classes²/D."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        most, _ = self.data.most()
        if self.inputs > most:
            raise ValueError(f"inputs: {self.inputs} are asked for, but data has {most:g} at most")
        return self


class Cell(Spec):
    """All σ_v of one embedding width and depth; draws are a dimension too."""

    blocks: Blocks
    sigma_v: list[Scale]
    width: Count
    depth: Count
    hidden: Count
    share: Fraction
    learning_rate: Positive
    steps: Count
    draws: Count
    inputs: Count
    task_seed: Seed

    def at(self, sigma_v: float) -> DeepCell:
        """Return the networks of one σ_v, one for each draw; their rate is the largest one."""
        return DeepCell(
            activation=self.blocks.activation,
            sigma_u=self.blocks.sigma_u,
            sigma_v=sigma_v,
            learning_rate=self.learning_rate,
            steps=self.steps,
            inputs=self.inputs,
            task_seed=self.task_seed,
            width=self.width,
            depth=self.depth,
            hidden=self.hidden,
        )


_SHARED = ("sigma_v", "hidden", "share", "learning_rate", "steps", "draws", "inputs")


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every kind of blocks, width and depth."""
    shared = {name: getattr(section, name) for name in _SHARED}
    requests = []
    for label, blocks in section.models.items():
        for depth in section.depth:
            for width in section.width:
                cell = Cell(blocks=blocks, width=width, depth=depth, task_seed=seed, **shared)
                sizes = f"w{width}-d{depth}-m{section.hidden}"
                slug = f"{blocks.activation}-u{blocks.sigma_u:g}-{sizes}".replace(".", "_")
                requests.append(Request(cell, label, slug, section.data, cost=_cost(cell)))
    return requests


def _cost(cell: Cell) -> Cost:
    """Estimate a cell, whose networks run one by one."""
    one = deep_cost(cell.at(cell.sigma_v[0]), companions=2)
    return replace(one, flops=cell.draws * len(cell.sigma_v) * one.flops)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return what training changed in networks of every σ_v, and their η, (sigma_v, draw).

    Draw d has the same embedding and readout at every σ_v and depth, and at every σ_v the same
    normal numbers for its weights.
    """
    shape = len(cell.sigma_v), cell.draws
    found = {name: np.full(shape, np.nan) for name in CHANGES}
    diverged, rates = np.full(shape, -1), np.full(shape, np.nan)
    networks = [cell.at(sigma_v) for sigma_v in cell.sigma_v]
    for draw in range(cell.draws):
        problem = deep_problem(networks[0], inputs, draw)
        for at, one in enumerate(networks):
            rates[at, draw] = rate = learning_rate(cell, one, problem)
            run = trained(one, problem, inputs, rate, [draw])
            diverged[at, draw] = int(run["diverged"].item())
            for name, values in changes(run, problem).items():
                found[name][at, draw] = values.item()
    dims = ("sigma_v", "draw")
    dataset = changes_dataset(found, dims, diverged, sigma_v=cell.sigma_v)
    return dataset.assign(learning_rate=(dims, rates, {"units": "1", "description": RATE}))


def learning_rate(cell: Cell, one: DeepCell, problem: Problem) -> float:
    """Return η: the cell's share of the stability limit of this σ_v, or its largest rate."""
    from widthlab.meanode import stability_limit

    return min(cell.learning_rate, cell.share * stability_limit(one.network, problem))


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return the maps, phases and boundaries of every kind of blocks, and claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.phase_diagram.claims import claims
    from widthlab.experiments.phase_diagram.phases import Maps

    maps = Maps(section, measured)
    dataset = maps.dataset()
    dataset.attrs["claims"] = to_json(claims(section, maps))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the phases with their boundaries, maps of each quantity, and curves in σ_v."""
    from widthlab.experiments.phase_diagram import drawings, lines

    found = []
    for label in dataset["model"].to_numpy():
        own = dataset.sel(model=label)
        found += [drawings.phase_map(own), drawings.quantity_maps(own), lines.curves(own)]
    return found
