"""Does a large branch scale make a deep residual network lazy, and how large may it be?

As α grows, weights move less and blocks become linear in them: the mean ODE tends to the lazy ODE,
which is linear in the weights but not in the stream. At finite size the distance to it is bounded
by c/α + a/L + b·α/√(ML), so that there is a best α of order (ML)^¼, with 1 ≪ α ≪ √(ML). Where the
law of the weights is symmetric under a change of sign of a block's output, as Gaussian v makes it,
the first order in 1/α vanishes: then c/α² and (ML)^{1/6}. Source: Chizat, "The Hidden Width of Deep
ResNets: Tight Error Bounds and Phase Diagrams" (2025), for the bound; the project's theory for the
second order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from widthlab.costs import Cost
from widthlab.experiments.shared.base import Inputs, Measured, Request, ordered
from widthlab.experiments.shared.deep_networks import (
    NEXT_ORDER,
    BranchScale,
    DeepCell,
    DeepSection,
    deep_cost,
)
from widthlab.specs import WHOLE, Count, Spec, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

TITLE = "The lazy ODE"
QUESTION = (
    "At which branch scale α is a deep residual network nearest to its lazy limit, and how near?"
)
METHOD = (
    "Networks of two-layer-perceptron blocks learn one-hot targets in the square loss by "
    "full-batch gradient descent at the limit's learning rates, which go as 1/α², for branch "
    "scales from below 1 to beyond √(ML). Their last embedding and output are compared with the "
    "lazy ODE for the same data, which is solved from its kernel without sampling; with the same "
    "network whose blocks are linearised about their own initial weights. The mean ODE is compared "
    "with itself at the largest α, with the same particles, whose error cancels, and there with "
    "the lazy ODE. Distances are root "
    "mean squares over seeds, inputs and coordinates. Exponents are judged at 1 ≪ α ≪ √(ML/D), "
    "that is, from four times the one to a quarter of the other, and the form of the bound at all "
    "α between them. The best α is the minimum of a parabola through the lowest point of the "
    "distance and its neighbours, in logarithms."
)

LARGE = 1 / NEXT_ORDER
"""The factor that ≪ stands for: 1/α and α√(D/(ML)), the next orders, are at most a quarter."""


class Size(Spec):
    """A network's depth and hidden width."""

    depth: Annotated[Count, Unit("layers")]
    """L."""
    hidden: Annotated[Count, Unit("units")]
    """M."""

    @property
    def units(self) -> int:
        """L·M."""
        return self.depth * self.hidden


def _by_units(sizes: list[Size]) -> list[Size]:
    ordered = sorted(sizes, key=lambda size: (size.units, size.depth))
    if len({size.units for size in ordered}) != len(ordered):
        raise ValueError("has two sizes of the same L·M; curves are told apart by it")
    return ordered


class Section(DeepSection):
    """Grid of the lazy-ODE experiment."""

    activation: Literal["tanh"] = "tanh"
    """Activation s of the blocks; the kernel of the lazy ODE has a cusp for relu."""
    alpha: Annotated[list[BranchScale], Field(min_length=3), AfterValidator(ordered), Unit("1")] = (
        Field(default=[0.5, 0.71, 1, 1.41, 2, 2.83, 4, 5.66, 8, 11.3, 16, 22.6, 32, 64, 128])
    )
    """Branch scales α to sweep."""
    sizes: Annotated[list[Size], Field(min_length=1), AfterValidator(_by_units)]
    """Depths and hidden widths, of different products L·M."""
    width: Annotated[Count, Unit("coordinates")] = 8
    """D, embedding width."""
    seeds: Annotated[int, Field(ge=4), WHOLE, Unit("networks")] = 16
    """Networks trained at every size and α."""
    particles: Annotated[int, Field(ge=16), WHOLE, Unit("particles")] = 512
    """Particles at every node of the solution of the mean ODE, the same at every α."""
    replicates: Annotated[int, Field(ge=12, multiple_of=2), WHOLE, Unit("solutions")] = 12
    """Independent solutions, in pairs, whose spread tells its error."""


class Cell(DeepCell):
    """Networks of one size at every α, or the mean ODE at every α, or the lazy ODE."""

    kind: Literal["network", "mean", "lazy"]
    alphas: list[BranchScale]
    particles: Count = 1
    """Of kind mean, whose seeds are the replicates."""


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every size, and two for the limits."""
    shared = section.shared_fields(seed) | {"width": section.width}
    found = []

    def add(slug: str, **fields: object) -> None:
        cell = Cell.model_validate({**shared, **fields})
        found.append(Request(cell, cell.kind, slug, section.data, cost=_cost(cell)))

    for size in section.sizes:
        add(
            f"l{size.depth}-m{size.hidden}-d{section.width}",
            kind="network",
            alphas=section.alpha,
            seeds=section.seeds,
            **size.model_dump(),
        )
    mean = {"particles": section.particles, "seeds": section.replicates}
    add(f"mean-d{section.width}", kind="mean", alphas=section.alpha, **mean)
    add(f"lazy-d{section.width}", kind="lazy", alphas=[1.0])
    return found


def _cost(cell: Cell) -> Cost:
    size = cell.inputs * cell.width
    if cell.kind == "network":
        one = deep_cost(cell, companions=1, disk=8.0 * cell.seeds * 2 * size)
        flops = len(cell.alphas) * one.flops
        return Cost(flops, memory=one.memory, disk=len(cell.alphas) * one.disk, files=24)
    if cell.kind == "mean":
        flops = 1200.0 * len(cell.alphas) * cell.steps * cell.seeds * 8 * cell.particles * size
        return Cost(flops, memory=64.0 * 8 * cell.particles * size, disk=1e5, files=24)
    # Hermite coefficients of every pair of an embedding and a past one.
    flops = 4e5 * (cell.steps * cell.inputs) ** 2
    return Cost(flops, memory=1e8, disk=1e5, files=24)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return trained embeddings and outputs, by α, and distances to networks of linear blocks."""
    from widthlab.experiments.lazy_ode import measuring

    measure = {
        "network": measuring.networks,
        "mean": measuring.mean_ode,
        "lazy": measuring.lazy_ode,
    }[cell.kind]
    return measure(cell, inputs)


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return distances to the lazy ODE by size and α, with fits and claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.lazy_ode.claims import claims
    from widthlab.experiments.lazy_ode.distances import Distances
    from widthlab.experiments.lazy_ode.tables import dataset as as_dataset

    distances = Distances.of(section, measured)
    dataset = as_dataset(distances)
    dataset.attrs["claims"] = to_json(claims(distances))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return distances against α, those of linearised blocks, the best α, and the fit."""
    from widthlab.experiments.lazy_ode import drawings

    return drawings.figures(dataset)
