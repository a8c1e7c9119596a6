"""What the experiments on deep residual networks and their mean ODE share: task, sizes, costs.

Networks are `meanode.ResidualNetwork`s of two-layer-perceptron blocks. All cells of a study that
have the same data, width and number of inputs learn the same task: h_0 = W_E x and W_U come from
the study's seed, not from the cell's, so that a network and the limit can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from widthlab.costs import Cost
from widthlab.experiments.shared.base import Inputs
from widthlab.specs import (
    WHOLE,
    Count,
    DataSet,
    Digits,
    NonNegative,
    Positive,
    Seed,
    Spec,
    Unit,
)

if TYPE_CHECKING:
    from widthlab.meanode import Problem, ResidualNetwork

NEXT_ORDER = 0.25
"""Largest D/(ML), and largest 1/L, at which laws of leading order in them are judged."""
BranchScale = Annotated[Positive, Field(ge=1e-6, le=1e6)]
"""α: learning rates go as 1/α², and beyond these ends their products leave the range of numbers."""
WeightScale = Annotated[Positive, Field(le=1e6)]
"""Scale of weights at initialisation."""


class DeepSection(Spec):
    """The task, and how networks are initialised and trained."""

    activation: Literal["tanh", "relu"] = "tanh"
    """Activation s of the blocks v·s(u·h/D)."""
    sigma_u: Annotated[WeightScale, Unit("√D")] = 1.0
    """Standard deviation of the entries of inner weights u at initialisation."""
    sigma_v: Annotated[WeightScale, Unit("√D")] = 1.0
    """Standard deviation of the entries of outer weights v at initialisation."""
    learning_rate: Annotated[Positive, Unit("1")] = 0.1
    """η of the limit: raw rates are η·L·M·D/α²."""
    steps: Annotated[int, Field(ge=2), WHOLE, Unit("steps")] = 10
    """Steps of full-batch gradient descent."""
    inputs: Annotated[int, Field(ge=1, le=256), WHOLE, Unit("samples")] = 8
    """n, training samples; the loss is ½|f − onehot|², mean over them."""
    data: DataSet = Digits()
    """Where the inputs and their labels come from."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        most, _ = self.data.most()
        if self.inputs > most:
            raise ValueError(f"inputs: {self.inputs} are asked for, but data has {most:g} at most")
        return self

    def shared_fields(self, seed: int) -> dict[str, object]:
        """Return the fields that every cell takes from the section and the study's seed."""
        names = (
            "activation",
            "sigma_u",
            "sigma_v",
            "learning_rate",
            "steps",
            "inputs",
        )
        return {"task_seed": seed, **{name: getattr(self, name) for name in names}}


class DeepCell(Spec):
    """One size of network (or the limit, which has none), its task and its training."""

    activation: Literal["tanh", "relu"]
    sigma_u: Positive
    sigma_v: NonNegative
    learning_rate: Positive
    steps: Count
    inputs: Count
    task_seed: Seed
    width: Count
    alpha: Positive = 1.0
    depth: Count = 1
    hidden: Count = 1
    seeds: Count = 1

    @property
    def network(self) -> ResidualNetwork:
        """The network."""
        from widthlab.meanode import ResidualNetwork

        return ResidualNetwork(
            depth=self.depth,
            hidden=self.hidden,
            width=self.width,
            activation=self.activation,
            alpha=self.alpha,
            sigma_u=self.sigma_u,
            sigma_v=self.sigma_v,
        )


def deep_problem(cell: DeepCell, inputs: Inputs, draw: int = 0) -> Problem:
    """Return the task of a cell: training samples, scaled to |x|² = d, and one-hot targets.

    `draw` numbers the random W_E and W_U. Raises WidthlabError where the data has too few samples.
    """
    import numpy as np
    import torch

    from widthlab.experiments.shared.random_draws import sphere
    from widthlab.meanode import Problem, ReadoutLoss, embed, readout

    x = sphere(cell.inputs, inputs).cpu().double()
    labels = inputs.data.train("cpu")[1][: cell.inputs].long()
    target = torch.nn.functional.one_hot(labels, inputs.data.outputs).double()
    first, second = np.random.SeedSequence([cell.task_seed, cell.width, draw]).spawn(2)
    return Problem(
        embed(x, cell.width, first),
        ReadoutLoss(readout(cell.width, target.shape[1], second), target),
    )


def deep_cost(
    cell: DeepCell, *, seeds: int | None = None, companions: int = 0, disk: float = 1e5
) -> Cost:
    """Estimate training the networks of a cell.

    Measured on one core: 3 ns for each weight, input and step, and 60 µs for each layer and step.
    """
    seeds = cell.seeds if seeds is None else seeds
    passes = cell.steps * (1 + 2 * companions)
    units = float(cell.depth * cell.hidden)
    flops = passes * (60 * seeds * units * cell.width * cell.inputs + 1.2e6 * cell.depth)
    weights = 8.0 * units * cell.width * seeds * (1 + 3 * companions)
    kept = 4.0 * cell.depth * cell.inputs * (cell.width + cell.hidden) * seeds
    return Cost(flops, memory=min(weights + kept, 2.0**29) + 4 * disk, disk=disk, files=24)


def recorded(steps: int) -> list[int]:
    """Return the steps at which errors are measured: 0, 1, 2, 5, 10, 20 … and the last."""
    marks = {0, steps}
    power = 1
    while power <= steps:
        marks |= {mark * power for mark in (1, 2, 5) if mark * power <= steps}
        power *= 10
    return sorted(marks)
