"""The grid of experiments at initialisation: random draws of perceptrons, by width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from widthlab.costs import Cost, input_shape, size
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import Grid, Inputs, Perceptrons, Request, slug_of
from widthlab.specs import WHOLE, Count, DataSet, Digits, Network, Perceptron, Spec, Unit

if TYPE_CHECKING:
    import torch

    from widthlab.models import Model


class DrawsSection(Spec):
    """Grid over widths of random networks."""

    models: Perceptrons
    """Architectures to draw, by the label that figures show."""
    width: Annotated[Grid, Unit("neurons")]
    """Widths N to sweep."""
    depth: Annotated[Count, Unit("layers")]
    """Depth L; every layer up to it is measured."""
    draws: Annotated[int, Field(ge=8), WHOLE, Unit("networks")] = 400
    """Random networks drawn at every width."""
    inputs: Annotated[Count, Unit("samples")] = 4
    """Training inputs that run through every network, scaled to |x|² = d."""
    data: DataSet = Digits()
    """Where the inputs come from."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        most, _ = self.data.most()
        if self.inputs > most:
            raise ValueError(f"inputs: {self.inputs} are asked for, but data has {most:g} at most")
        return self


class DrawsCell(Spec):
    """One architecture at one width; the draws are a dimension of its statistics."""

    architecture: Perceptron
    width: Count
    depth: Count
    draws: Count
    inputs: Count

    @property
    def network(self) -> Network:
        """The network that is drawn."""
        return Network(architecture=self.architecture, width=self.width, depth=self.depth)


def draws_requests(section: DrawsSection) -> list[Request]:
    """Return one cell for every architecture and width."""
    requests = []
    for label, architecture in section.models.items():
        for width in section.width:
            cell = DrawsCell(
                architecture=architecture,
                width=width,
                depth=section.depth,
                draws=section.draws,
                inputs=section.inputs,
            )
            slug = slug_of(cell.network)
            cost = _cost(cell, section.data)
            requests.append(Request(cell, label, slug, section.data, cost=cost))
    return requests


def _cost(cell: DrawsCell, data: DataSet) -> Cost:
    of = size(cell.network, input_shape(data), 1)
    # A normal number costs about as much as twenty multiplications.
    flops = cell.draws * (20 * of.parameters + 6 * of.multiplications * cell.inputs)
    stored = 8.0 * cell.draws * (cell.depth + 1) * cell.inputs
    return Cost(flops, memory=16 * of.parameters + 4 * stored, disk=3 * stored, files=24)


def draws_model(cell: DrawsCell, inputs: Inputs) -> tuple[Model, torch.Tensor]:
    """Return the network to redraw, with one output, and the inputs to run through it.

    Inputs are the first training samples, scaled to |x|² = d so that q_0 = 1. Raises WidthlabError
    where the data set has fewer.
    """
    from widthlab.models import build

    x, _ = inputs.data.train(inputs.device)
    if len(x) < cell.inputs:
        raise WidthlabError(
            f"inputs: {cell.inputs} are asked for, but the data set has {len(x)} training samples"
        )
    flat = x[: cell.inputs].reshape(cell.inputs, -1)
    flat = flat * (flat.shape[1] ** 0.5 / flat.norm(dim=1, keepdim=True))
    model = build(cell.network, tuple(flat.shape[1:]), outputs=1, seed=0).to(inputs.device)
    return model, flat
