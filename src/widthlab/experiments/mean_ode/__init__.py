"""Do deep residual networks train like an ODE, even with one hidden unit to a layer?

A residual network of L blocks with M units each, trained for K steps, tends to the neural mean ODE
as L grows, at any M. Its error in the embedding is a/L + b·√(D/(ML)): an Euler scheme's bias, and
the noise of the L·M units that sample the law of the weights. Both are measured apart: the bias of
the mean over seeds, and the spread over seeds. Source: Chizat, "The Hidden Width of Deep ResNets:
Tight Error Bounds and Phase Diagrams" (2025).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from widthlab.costs import Cost
from widthlab.experiments.shared.base import Grid, Inputs, Measured, Request
from widthlab.experiments.shared.deep_networks import (
    DeepCell,
    DeepSection,
    deep_cost,
    recorded,
)
from widthlab.specs import WHOLE, Count, DataSet, Spec, Unit
from widthlab.theory.deep_limits import REFERENCE_FACTOR

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

TITLE = "The neural mean ODE"
QUESTION = (
    "How far is a deep residual network of hidden width M, trained for a few steps, from its limit "
    "of infinite depth?"
)
METHOD = (
    "Networks of two-layer-perceptron blocks learn one-hot targets in the square loss by "
    "full-batch gradient descent at the limit's learning rates, many seeds at every depth L and "
    "hidden width M, and compared with the neural mean ODE for the same data, solved with "
    "particles in depth. The sampling error is the spread over seeds; the Euler error is the bias "
    "of the mean over seeds, from products of independent halves of the seeds, to which the noise "
    "of that mean does not add. Errors are root mean squares over inputs and coordinates, of the "
    "embedding h_L and of the output f. The solution is checked against large networks averaged "
    "over seeds and extrapolated in depth. In width, the spread is averaged over several random "
    "embeddings and readouts. Laws are judged where D/(ML) is at most a quarter, and the Euler law "
    "where 1/L is too."
)

TRACED = 6
"""Seeds of every network of which single trajectories are kept."""
PLACES = 64
"""Parts into which depth is cut for them."""


class WidthSweep(Spec):
    """Networks of several embedding widths, at one depth and hidden width."""

    width: Annotated[Grid, Unit("coordinates")]
    """Embedding widths D."""
    depth: Annotated[Count, Unit("layers")]
    """L."""
    hidden: Annotated[Count, Unit("units")]
    """M."""
    embeddings: Annotated[int, Field(ge=4), WHOLE, Unit("draws")] = 12
    """Random W_E and W_U at every width, over which the spread is averaged."""
    seeds: Annotated[int, Field(ge=4), WHOLE, Unit("networks")] = 16
    """Networks for each of them."""
    inputs: Annotated[int, Field(ge=1, le=256), WHOLE, Unit("samples")] = 2
    """Training samples: few, since n/D is the next order of the law in D."""
    data: DataSet | None = None
    """Where they come from; left out, the section's data. Few classes, for the same reason."""


class Reference(Spec):
    """Large networks by which the solution of the mean ODE is checked."""

    depth: Annotated[int, Field(ge=4, multiple_of=2), WHOLE, Unit("layers")]
    """L; half of it is run too."""
    hidden: Annotated[Count, Unit("units")]
    """M; L·M must be eight times that of any network of the grid, at least."""
    seeds: Annotated[int, Field(ge=4), WHOLE, Unit("networks")] = 16
    """Networks at either depth."""


class MoreSeeds(Spec):
    """More networks at one hidden width."""

    hidden: Annotated[Count, Unit("units")]
    """M."""
    seeds: Annotated[Count, Unit("networks")]
    """Networks at every depth, instead of the section's `seeds`."""


def _by_hidden(entries: list[MoreSeeds]) -> list[MoreSeeds]:
    if len({entry.hidden for entry in entries}) != len(entries):
        raise ValueError("has a hidden width twice; write each once")
    return sorted(entries, key=lambda entry: entry.hidden)


class Section(DeepSection):
    """Grid of the mean-ODE experiment."""

    depth: Annotated[Grid, Unit("layers")]
    """Depths L to sweep."""
    hidden: Annotated[Grid, Unit("units")]
    """Hidden widths M to sweep; 1 makes tall thin networks."""
    width: Annotated[Count, Unit("coordinates")] = 8
    """D, embedding width of these networks."""
    units: Annotated[Count, Unit("units")] = 4096
    """Largest L·M; larger networks of the grid are left out."""
    seeds: Annotated[int, Field(ge=8), WHOLE, Unit("networks")] = 32
    """Networks trained at every depth and hidden width."""
    more_seeds: Annotated[list[MoreSeeds], AfterValidator(_by_hidden)] = Field(default=[])
    """Where there are more seeds: the Euler error, which is seen at large M, needs many."""
    width_sweep: WidthSweep
    """The grid over embedding widths."""
    reference: Reference
    """The check of the limit."""
    particles: Annotated[int, Field(ge=16), WHOLE, Unit("particles")] = 2048
    """Particles at every node of the solution of the mean ODE."""
    replicates: Annotated[int, Field(ge=8, multiple_of=2), WHOLE, Unit("solutions")] = 8
    """Independent solutions, which tell its error."""

    @model_validator(mode="after")
    def _larger_reference(self) -> Self:
        for entry in self.more_seeds:
            if entry.hidden not in self.hidden:
                raise ValueError(f"more_seeds: {entry.hidden} is not one of hidden ({self.hidden})")
            if entry.seeds < self.seeds:
                raise ValueError(
                    f"more_seeds: {entry.seeds} at hidden width {entry.hidden} are fewer than seeds"
                    f" ({self.seeds})"
                )
        most_inputs, _ = (self.width_sweep.data or self.data).most()
        if self.width_sweep.inputs > most_inputs:
            raise ValueError(
                f"width_sweep: {self.width_sweep.inputs} inputs are asked for, but data has "
                f"{most_inputs:g} at most"
            )
        grid = [(at, of) for at in self.depth for of in self.hidden if at * of <= self.units]
        if not grid:
            raise ValueError(
                f"units: no network of the grid has L·M of {self.units} or less; raise it"
            )
        most = max(at * of for at, of in grid)
        own = self.reference.depth * self.reference.hidden
        if own < REFERENCE_FACTOR * most:
            raise ValueError(
                f"reference: its L·M is {own}, and must be {REFERENCE_FACTOR} times that of the "
                f"largest network ({most}) to be nearer to the limit; make it "
                f"{REFERENCE_FACTOR * most} or lower units"
            )
        return self

    def grid(self) -> list[tuple[int, int]]:
        """Return (depth, hidden) of all networks."""
        return [(at, of) for of in self.hidden for at in self.depth if at * of <= self.units]


class Cell(DeepCell):
    """What one cell measures: networks of one size, or of one width, or the limit, or its check."""

    kind: Literal["network", "width", "limit", "reference"]
    traced: bool = False
    """Whether single trajectories are kept; of kind network."""
    embeddings: Count = 1
    """Draws of W_E and W_U of kind width."""
    particles: Count = 1
    """Of kind limit, whose seeds are the replicates."""


def cells(section: Section, seed: int) -> list[Request]:
    """Return a cell for every depth and hidden width, every width, the limit and its check."""
    shared = section.shared_fields(seed)
    found = []

    def add(slug: str, data: DataSet, /, **fields: object) -> None:
        cell = Cell.model_validate({**shared, **fields})
        found.append(Request(cell, cell.kind, slug, data, cost=_cost(cell)))

    at, data = {"width": section.width}, section.data
    more = {entry.hidden: entry.seeds for entry in section.more_seeds}
    for depth, hidden in section.grid():
        seeds = more.get(hidden, section.seeds)
        traced = hidden == min(section.hidden)
        fields = {"depth": depth, "hidden": hidden, "seeds": seeds, "traced": traced}
        add(f"l{depth}-m{hidden}-d{section.width}", data, kind="network", **at, **fields)
    sweep = section.width_sweep
    for width in sweep.width:
        fields = sweep.model_dump(exclude={"data"}) | {"width": width}
        add(f"width-d{width}", sweep.data or data, kind="width", **fields)
    fields = section.reference.model_dump()
    add(f"reference-d{section.width}", data, kind="reference", **at, **fields)
    fields = {"particles": section.particles, "seeds": section.replicates}
    add(f"limit-d{section.width}", data, kind="limit", **at, **fields)
    return found


def _cost(cell: Cell) -> Cost:
    size = cell.inputs * cell.width
    if cell.kind == "limit":
        # Eight nodes, and about twenty iterations of a step.
        flops = 600.0 * cell.steps * cell.seeds * 8 * cell.particles * size
        return Cost(flops, memory=64.0 * 8 * cell.particles * size, disk=1e6, files=24)
    if cell.kind == "width":
        return deep_cost(cell, seeds=cell.seeds * cell.embeddings)
    if cell.kind == "reference":
        return deep_cost(cell, seeds=int(1.5 * cell.seeds))
    return deep_cost(cell, disk=8.0 * cell.seeds * len(recorded(cell.steps)) * 2 * size)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return embeddings and outputs along training (network, limit, reference), or spreads."""
    from widthlab.experiments.mean_ode import measuring

    measure = {
        "network": measuring.networks,
        "width": measuring.spreads,
        "limit": measuring.limit,
        "reference": measuring.reference,
    }[cell.kind]
    return measure(cell, inputs)


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return errors by depth, hidden width, step and embedding width, with fits and claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.mean_ode.claims import claims
    from widthlab.experiments.mean_ode.errors import Errors
    from widthlab.experiments.mean_ode.tables import dataset as as_dataset

    errors = Errors.of(section, measured)
    dataset = as_dataset(errors)
    dataset.attrs["claims"] = to_json(claims(errors))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return errors by depth, their collapse, along training, the fit, and single networks."""
    from widthlab.experiments.mean_ode import drawings

    return drawings.figures(dataset)
