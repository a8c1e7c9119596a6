"""Experiments on the activation gradients of trained networks: which samples, points and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from widthlab.costs import Cost, Size, input_shape, outputs_of, size
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import Inputs, Request, slug_of
from widthlab.experiments.shared.families import Families, Member, members
from widthlab.specs import WHOLE, Count, Network, Seed, Spec, Unit

if TYPE_CHECKING:
    from torch import Tensor, nn

    from widthlab.models import Model
    from widthlab.statistics.alignment.gradients import ActivationGradients
    from widthlab.statistics.alignment.losses import Losses
    from widthlab.statistics.alignment.pooling import Pooling

Samples = Annotated[int, Field(ge=8), WHOLE, Unit("samples")]
Batch = tuple["Tensor", "Tensor"]

POINTS = 10
"""Insertion points that are counted where a family names none (resnet20 has ten signals)."""

CONTROLS = 4000
"""Products for each pair of samples and insertion point in a certificate with its noise controls
(twice 199 sign flips, several of each; measured)."""

BATCH = 32
"""Most samples in a pass; what is measured does not depend on it."""
BATCH_ACTIVATIONS = 2**30
"""Most activations in a pass, so that large networks have smaller batches."""


class GradientsSection(Spec):
    """Families of networks, and the samples whose activation gradients are measured."""

    families: Families
    """Families of trained networks, by the label that figures show."""
    train_samples: Samples = 256
    """Training samples whose gradients are measured, drawn at random for every network."""
    test_samples: Samples = 256
    """Test samples whose gradients are measured, drawn at random for every network."""
    pooling: Literal["sum", "mean", "whole"] = "sum"
    """How the gradient at a point is pooled over positions (pixels, tokens); see docs."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        """Refuse what could only fail in its jobs."""
        for label, family in self.families.items():
            for name, asked, most in zip(
                ("train_samples", "test_samples"),
                (self.train_samples, self.test_samples),
                family.data.most(),
                strict=True,
            ):
                if asked > most:
                    raise ValueError(
                        f"{name}: {asked} is too many, families.{label}.data has {most:g}"
                    )
        return self


class GradientsCell(Spec):
    """One trained network, and what is measured of it."""

    network: Network
    seed: Seed
    loss: Literal["cross_entropy", "mse"]
    points: list[str] | None
    pooling: Literal["sum", "mean", "whole"]
    train_samples: Count
    test_samples: Count


C = TypeVar("C", bound=GradientsCell)


def requests(
    section: GradientsSection,
    seed: int,
    make: Callable[..., C],
    *,
    passes: float = 1.0,
    tests: float = 0.0,
) -> list[Request]:
    """Return one cell, and one checkpoint, for every network of the families.

    `make` is given the fields of `GradientsCell`; `passes` says how often the samples run through
    the network, forward and backward, and `tests` how often the test samples do for each insertion
    point, forward.
    """
    found = []
    for member in members(section.families):
        family = member.family
        cell = make(
            network=member.network,
            seed=member.seed,
            loss=family.training.loss,
            points=family.points,
            pooling=section.pooling,
            train_samples=section.train_samples,
            test_samples=section.test_samples,
        )
        slug = slug_of(member.network, f"s{member.seed}")
        cost = _cost(section, member, passes, tests)
        checkpoint = member.checkpoint(seed)
        found.append(Request(cell, member.label, slug, family.data, (checkpoint,), cost))
    return found


def _cost(section: GradientsSection, member: Member, passes: float, tests: float) -> Cost:
    data = member.family.data
    of = size(member.network, input_shape(data), outputs_of(data))
    samples = section.train_samples + section.test_samples
    points = POINTS if member.family.points is None else len(member.family.points)
    grams = float(samples) ** 2 * (member.network.width + CONTROLS) * points
    memory = 8 * of.parameters + 8.0 * of.activations * batch_of(of) + 40.0 * samples**2
    rows = 4.0 * samples * member.network.width * points
    runs = 3 * passes * samples + tests * points * section.test_samples
    return Cost(2 * (of.multiplications * runs + passes * grams), memory, rows, files=40)


def batch_of(of: Size) -> int:
    """Return how many samples a network of this size is given in a pass."""
    return max(1, min(BATCH, int(BATCH_ACTIVATIONS / of.activations)))


@dataclass(frozen=True)
class Chosen:
    """The samples of a cell, in batches (inputs, labels) that may be gone through again."""

    train: list[Batch]
    test: list[Batch]


def chosen_samples(cell: GradientsCell, inputs: Inputs) -> Chosen:
    """Draw a cell's training and test samples at random, without replacement, from its data set.

    Raises WidthlabError where the data set holds too few.
    """
    import numpy as np
    import torch

    batch = batch_of(size(cell.network, inputs.data.input_shape, inputs.data.outputs))
    streams = inputs.seeds.spawn(3)
    parts = []
    for name, stream, (x, y) in zip(
        ("train_samples", "test_samples"),
        streams,
        (inputs.data.train(inputs.device), inputs.data.test(inputs.device)),
        strict=False,
    ):
        asked = getattr(cell, name)
        if len(y) < asked:
            raise WidthlabError(f"{name}: {asked} are asked for, but the data set has {len(y)}")
        order = np.random.default_rng(stream).permutation(len(y))[:asked]
        rows = torch.from_numpy(order).to(y.device)
        length = min(batch, -(-asked // 2))  # a single batch is refused by those who measure
        slices = (rows[start : start + length] for start in range(0, asked, length))
        parts.append([(x[part], y[part]) for part in slices])
    return Chosen(*parts)


def losses_of(kind: Literal["cross_entropy", "mse"]) -> Losses:
    """Return the loss of every sample of a batch, as the network was trained with."""
    from widthlab.checkpoints.evaluation import loss_of

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return loss_of(model(x), y, kind)

    return losses


def batch_mask(batches: list[Batch]) -> Callable[[Any], Tensor] | None:
    """Return what tells the positions of a batch that count; None where samples have none."""
    from widthlab.checkpoints.evaluation import mask_of

    if mask_of(batches[0][1]) is None:
        return None

    def mask(batch: Any) -> Tensor:
        found = mask_of(batch[1])
        assert found is not None
        return found

    return mask


def pooled_points(cell: GradientsCell, model: Model) -> dict[str, Pooling]:
    """Return the insertion points of a cell: those of its family, or the carried signals.

    Raises WidthlabError for a name that is not a module of the network.
    """
    from widthlab.statistics.alignment.points import insertion_points
    from widthlab.statistics.alignment.pooling import Pooling

    names = model.signals if cell.points is None else cell.points
    pooling = Pooling(cell.pooling)
    return insertion_points(model, dict.fromkeys(names, pooling))


@contextmanager
def measured_gradients(
    cell: GradientsCell, model: Model, samples: Chosen
) -> Iterator[tuple[ActivationGradients, ActivationGradients]]:
    """Measure the gradients of a cell's training and test samples at all its points."""
    from widthlab.statistics.alignment.gradients import activation_gradients

    points, losses = pooled_points(cell, model), losses_of(cell.loss)
    mask = batch_mask(samples.train)
    with (
        activation_gradients(model, points, losses, samples.train, mask=mask) as train,
        activation_gradients(model, points, losses, samples.test, mask=mask) as test,
    ):
        yield train, test
