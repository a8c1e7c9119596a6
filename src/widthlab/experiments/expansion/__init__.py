"""Direct train–test expansion: does a block that is inserted into a trained network pay off?

Behind an insertion point of a trained network a block is placed that adds nothing at first, a bias
or two layers. Its bias is stepped along −μ_M, the mean gradient of M training samples (f_η), then
the block alone is trained a little on the same samples (f_new). With Δ_R, Δ_ERM and uniform
deviations ε_M, ε_K theory promises L_K(f_new) ≤ L_K(f_old) − Δ_R − Δ_ERM + 2(ε_M + ε_K); whether
that says anything, and whether f_new is better on fresh samples, is measured.
Source: the project's theory, section 4, second theorem.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from widthlab.costs import Cost, input_shape, size
from widthlab.experiments.shared.base import Inputs, Measured, Request
from widthlab.experiments.shared.measured_gradients import (
    POINTS,
    GradientsCell,
    GradientsSection,
    Samples,
    requests,
)
from widthlab.specs import WHOLE, Count, Positive, Spec, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

TITLE = "Direct train–test expansion"
QUESTION = (
    "Does a block that is inserted into a trained network, stepped along the mean training "
    "gradient and trained a little, help on samples that nothing was chosen by?"
)
METHOD = (
    "At insertion points of trained networks (normalisation in evaluation mode) a block that adds "
    "nothing is placed: a bias, or two layers, of which the second is zero, with a bias. The bias "
    "is stepped along −μ_M, by a step that is halved until it lowers the loss of the M samples by "
    "at least half of what the gradient predicts; then the block alone is trained on them. Losses "
    "are clipped at a stated cap. The generic uniform bound is of the clipped loss, the paired one "
    "of its difference from that of the network before; for the loss's Lipschitz constants they "
    "have the largest slopes that were seen, which are lower bounds, so that a bound that is "
    "vacuous would be so with the true ones. Fresh samples are disjoint from all that chose "
    "anything; their intervals are of paired differences. Points and draws of one network depend "
    "on one another: shares are counted over networks."
)
OVERHEAD = 1e9
"""Operations in whose time one expansion's small steps are made (measured: 0.05 s)."""
LEAST_FRESH = 32
"""Fresh samples that there must be."""

BlockKind = Literal["bias", "residual"]


def _distinct(blocks: list[BlockKind]) -> list[BlockKind]:
    if len(set(blocks)) != len(blocks):
        raise ValueError("has a block twice; write each once")
    return sorted(blocks)


class BlockTraining(Spec):
    """How an inserted block is trained behind its step; the rest of the network is frozen."""

    optimiser: Literal["sgd", "adam"] = "adam"
    """Update rule."""
    learning_rate: Annotated[Positive, Unit("1")] = 1e-3
    """Learning rate."""
    steps: Annotated[int, Field(ge=0), WHOLE, Unit("steps")] = 20
    """Optimiser steps."""
    full_batch: bool = True
    """Whether a step takes all M samples, and not 32 of them."""


class Section(GradientsSection):
    """Families of networks to expand, and how."""

    test_samples: Samples = 256
    """Test samples: those of the steps' tests, and the fresh ones, which are all the others."""
    step_samples: Annotated[int, Field(ge=4), WHOLE, Unit("samples")] = 64
    """M, samples of which a step is the mean and on which the block is trained."""
    held_out_samples: Annotated[Count, Unit("samples")] = 32
    """K, test samples of a step."""
    draws: Annotated[Count, Unit("draws")] = 2
    """Disjoint draws of M and K samples for every network and point."""
    samples_from: Literal["training", "unseen"] = "training"
    """Where the M samples come from: the network's own training samples, as when a network is
    grown, or test samples, which it has never seen, as the uniform bound presumes."""
    blocks: Annotated[list[BlockKind], Field(min_length=1), AfterValidator(_distinct)] = Field(
        default=["bias", "residual"]
    )
    """Blocks to insert."""
    hidden_ratio: Annotated[Positive, Unit("1")] = 1.0
    """Hidden width of the residual block over the channels at its point."""
    scale: Annotated[Positive, Unit("1")] = 0.05
    """Size of the step at most, of what is added over the activation. The step is halved until the
    loss of the M samples falls by at least half of what its gradient predicts."""
    block_training: BlockTraining = BlockTraining()
    """How a block is trained after its step."""
    snapshot: Annotated[int, Field(ge=0), WHOLE, Unit("snapshots")] = 199
    """Snapshot of the training, from 0, at which networks are grown; beyond the last, the last."""
    cap: Annotated[Positive | None, Unit("loss")] = None
    """Where losses are clipped; left out, at twice the loss of a network that knows nothing: 2 log
    of the number of classes (of tokens) for cross-entropy, 1 for the squared error."""

    @model_validator(mode="after")
    def _fresh(self) -> Self:
        """Refuse draws that leave too few fresh samples."""
        unseen = self.samples_from == "unseen"
        needed = self.draws * self.step_samples
        if not unseen and needed > self.train_samples:
            raise ValueError(
                f"train_samples: {self.draws} draws of {self.step_samples} need {needed}, but it "
                f"is {self.train_samples}"
            )
        used = self.draws * (self.held_out_samples + unseen * self.step_samples)
        if self.test_samples - used < LEAST_FRESH:
            raise ValueError(
                f"test_samples: {self.test_samples} leave {self.test_samples - used} fresh samples "
                f"beside the draws' {used}; at least {LEAST_FRESH} are needed"
            )
        return self


class Cell(GradientsCell):
    """One trained network and how it is expanded."""

    step_samples: Count
    held_out_samples: Count
    draws: Count
    samples_from: Literal["training", "unseen"]
    blocks: list[BlockKind]
    hidden_ratio: Positive
    scale: Positive
    block_training: BlockTraining
    snapshot: Annotated[int, Field(ge=0), WHOLE]
    cap: Positive | None


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell, and one checkpoint, for every network of the families."""
    own = {
        name: getattr(section, name)
        for name in Cell.model_fields
        if name not in GradientsCell.model_fields
    }
    made = requests(section, seed, lambda **fields: Cell(**fields, **own))
    return [replace(request, cost=_cost(section, request)) for request in made]


def _cost(section: Section, request: Request) -> Cost:
    """Add to what gradients and certificates cost the passes of the expansions."""
    network, points = request.checkpoints[0].network, section.families[request.label].points
    m, k = section.step_samples, section.held_out_samples
    fresh = section.test_samples - section.draws * k
    # Forward and backward in training, for the step and for slopes, and forward for losses.
    passes = 3 * (m * (section.block_training.steps + 1) + 3 * (m + k)) + 3 * (m + k + fresh)
    times = (len(points) if points else POINTS) * section.draws * len(section.blocks)
    each = 2 * passes * size(network, input_shape(request.data)).multiplications
    return replace(request.cost, flops=request.cost.flops + times * (each + OVERHEAD))


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the expansions at every block, point and draw, and the certificates of the points.

    A network whose training diverged has no variables.
    """
    import xarray as xr

    from widthlab.checkpoints.files import load_history
    from widthlab.experiments.expansion.measuring import expanded
    from widthlab.experiments.shared.families import measurable
    from widthlab.experiments.shared.measured_gradients import chosen_samples

    (trained,) = inputs.checkpoints
    attrs = {"status": trained.status, "pooling": cell.pooling, "loss": cell.loss}
    if trained.status == "diverged":
        return xr.Dataset(attrs=attrs)
    steps = load_history(trained.folder)["step"]
    step = steps[min(cell.snapshot, len(steps) - 1)]
    model = measurable(trained, step, inputs)
    found = expanded(cell, model, chosen_samples(cell, inputs), inputs)
    return found.assign_coords(step=step).assign_attrs(attrs)


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return all networks in one dataset, with claims; what a network does not have is NaN."""
    from widthlab.claims import to_json
    from widthlab.experiments.expansion.claims import claims
    from widthlab.experiments.shared.networks import side_by_side

    dataset = side_by_side(measured)
    own = ("step_samples", "held_out_samples", "samples_from", "scale", "pooling")
    dataset.attrs |= {"experiment": "expansion", **{name: getattr(section, name) for name in own}}
    dataset.attrs["claims"] = to_json(claims(dataset))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return what expansion does by width and by point, bounds against gains, and alignment."""
    from widthlab.experiments.expansion import drawings

    return drawings.figures(dataset)
