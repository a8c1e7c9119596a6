"""The grid of experiments at initialisation: random draws of perceptrons, by width.

Networks are drawn by one of two engines. `weightfree` samples what is measured exactly in
distribution without making a weight (`widthlab.ensembles`); `dense` builds the real network and
differentiates it, and is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log10
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from widthlab.costs import Cost, input_shape, size
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import Grid, Inputs, Perceptrons, Request, slug_of
from widthlab.experiments.shared.families import misfit
from widthlab.specs import (
    MLP,
    WHOLE,
    Activation,
    Count,
    DataSet,
    Digits,
    Network,
    Perceptron,
    Spec,
    Unit,
)
from widthlab.theory.criticality import LEAKY_SLOPE

if TYPE_CHECKING:
    import torch
    import xarray as xr

    from widthlab.models import Model
    from widthlab.statistics.over_draws import Measure

Engine = Literal["weightfree", "dense"]

MOST_POWERS = 60
"""Powers of ten by which signals may grow: their fourth powers are still numbers."""
LARGE_SIGNALS: dict[Activation, float] = {
    "linear": 1.0,
    "relu": 0.5,
    "leaky_relu": 0.5 * (1 + LEAKY_SLOPE**2),
    "tanh": 0.0,
    "erf": 0.0,
    "gelu": 0.5,
    "silu": 0.5,
}
"""⟨s²⟩_K / K for large K."""


class DrawsSection(Spec):
    """Grid over widths of random networks."""

    models: Perceptrons
    """Architectures to draw, by the label that figures show."""
    width: Annotated[Grid, Unit("neurons")]
    """Widths N to sweep."""
    draws: Annotated[int, Field(ge=8), WHOLE, Unit("networks")] = 400
    """Random networks drawn at every width."""
    inputs: Annotated[Count, Unit("samples")] = 4
    """Training inputs that run through every network, scaled to |x|² = d."""
    engine: Engine = "weightfree"
    """How networks are drawn: `weightfree` samples their statistics exactly without making weights,
    `dense` builds them. Networks with batch normalisation are always built."""
    data: DataSet = Digits()
    """Where the inputs come from."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        most, _ = self.data.most()
        if self.inputs > most:
            raise ValueError(f"inputs: {self.inputs} are asked for, but data has {most:g} at most")
        for label, architecture in self.models.items():
            problem = misfit(architecture, self.data)
            if problem:
                raise ValueError(f"models.{label}: {problem}")
        return self


class LayersSection(DrawsSection):
    """The same, of one depth, for what is measured layer by layer."""

    depth: Annotated[Count, Unit("layers")]
    """Depth L; every layer up to it is measured."""


class DrawsCell(Spec):
    """One architecture at one size; the draws are a dimension of its statistics."""

    architecture: Perceptron
    width: Count
    depth: Count
    draws: Count
    inputs: Count
    engine: Engine

    @property
    def network(self) -> Network:
        """The network that is drawn."""
        return Network(architecture=self.architecture, width=self.width, depth=self.depth)


def draws_requests(
    section: DrawsSection, depths: Sequence[int], measure: Sequence[str] = ("signals",)
) -> list[Request]:
    """Return one cell for every architecture, width and depth, in which `measure` is measured."""
    grid = product(section.models.items(), section.width, depths)
    return [
        draws_request(section, label, architecture, width, depth, measure)
        for (label, architecture), width, depth in grid
    ]


def draws_request(
    section: DrawsSection,
    label: str,
    architecture: Perceptron,
    width: int,
    depth: int,
    measure: Sequence[str] = ("signals",),
) -> Request:
    """Return the cell of one network.

    Raises WidthlabError where its signals would grow beyond all bounds.
    """
    powers = depth * log10(_growth(architecture, depth))
    if powers > MOST_POWERS:
        raise WidthlabError(
            f"models.{label}: signals grow by about 10^{powers:.0f} in {depth} layers, more than "
            f"the 10^{MOST_POWERS} that can be measured; choose a smaller depth, weight_variance "
            "or residual_scale, a larger depth_exponent, or a normalisation"
        )
    cell = DrawsCell(
        architecture=architecture,
        width=width,
        depth=depth,
        draws=section.draws,
        inputs=section.inputs,
        engine=engine_of(architecture, section.engine),
    )
    cost = _cost(cell, section.data, measure)
    return Request(cell, label, slug_of(cell.network), section.data, cost=cost)


def _growth(architecture: Perceptron, depth: int) -> float:
    """Return the factor by which a layer multiplies a large signal variance at infinite width."""
    if architecture.normalisation != "none":
        return 1.0
    part = LARGE_SIGNALS[architecture.activation] * (architecture.weight_variance or 0.0)
    if isinstance(architecture, MLP):
        return max(part, 1.0)
    inner = architecture.inner_variance if architecture.branch == "two_layer" else 1.0
    return 1.0 + architecture.branch_scale(depth) ** 2 * part * inner


def engine_of(architecture: Perceptron, asked: Engine) -> Engine:
    """Return the engine that draws an architecture, which is `dense` under batch normalisation."""
    return "dense" if architecture.normalisation == "batch" else asked


def _cost(cell: DrawsCell, data: DataSet, measure: Sequence[str]) -> Cost:
    stored = 8.0 * cell.draws * (cell.depth + 1) * cell.inputs
    disk = 3 * stored
    backward = set(measure) != {"signals"}
    if cell.engine == "weightfree":
        dense = 2 if getattr(cell.architecture, "branch", "") == "two_layer" else 1
        numbers = float(cell.inputs * cell.width * cell.depth * dense)
        # Normals, bases and activations: 15 ns a number forward, as much again backward.
        flops = cell.draws * numbers * 300 * (1 + backward)
        # What one draw keeps for the pass backward, or as many as run together.
        kept = 20 * numbers
        memory = max(kept, min(kept * cell.draws, 2**29)) if backward else 2**24
        return Cost(flops, memory=memory + 4 * stored, disk=disk, files=24)
    of = size(cell.network, input_shape(data), 1)
    # A normal number costs about as much as twenty multiplications.
    flops = cell.draws * (20 * of.parameters + 6 * of.multiplications * cell.inputs)
    return Cost(flops, memory=16 * of.parameters + 4 * stored, disk=disk, files=24)


def measure_draws(cell: DrawsCell, inputs: Inputs, measure: Sequence[Measure]) -> xr.Dataset:
    """Draw a cell's networks, with one output, and measure them (see `statistics.over_draws`)."""
    from widthlab import ensembles
    from widthlab.statistics.over_draws import over_draws

    x = sphere(cell.inputs, inputs)
    if cell.engine == "weightfree":
        return ensembles.sample(cell.network, x, cell.draws, inputs.seeds, measure=measure)
    return over_draws(_built(cell, x), x, cell.draws, inputs.seeds, measure=measure)


def measure_kernels(cell: DrawsCell, inputs: Inputs) -> xr.Dataset:
    """Draw a cell's networks, with one output, and return their tangent kernels."""
    from widthlab import ensembles
    from widthlab.statistics.ntk import empirical_ntk
    from widthlab.statistics.over_draws import over_draws

    x = sphere(cell.inputs, inputs)
    if cell.engine == "weightfree":
        return ensembles.sample(cell.network, x, cell.draws, inputs.seeds, measure=["ntk"])
    model = _built(cell, x)
    return over_draws(model, x, cell.draws, inputs.seeds, measure=[], kernel=empirical_ntk)


def _built(cell: DrawsCell, x: torch.Tensor) -> Model:
    from widthlab import models

    return models.build(cell.network, (x.shape[1],), outputs=1, seed=0).to(x.device)


def sphere(count: int, inputs: Inputs) -> torch.Tensor:
    """Return the first training samples, (count, d), scaled to |x|² = d so that q_0 = 1.

    Raises WidthlabError where the data set has fewer.
    """
    x, _ = inputs.data.train(inputs.device)
    if len(x) < count:
        raise WidthlabError(
            f"inputs: {count} are asked for, but the data set has {len(x)} training samples"
        )
    flat = x[:count].reshape(count, -1)
    scaled: torch.Tensor = flat * (flat.shape[1] ** 0.5 / flat.norm(dim=1, keepdim=True))
    return scaled
