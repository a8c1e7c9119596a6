"""Direct train–test expansion: does a block that is inserted into a trained network pay off?

Behind an insertion point of a trained network a block is placed that adds nothing at first, a bias
or two layers. Its bias is stepped along −μ_M, the mean gradient of M training samples (f_η), then
the block alone is trained a little on the same samples (f_new). With Δ_R, Δ_ERM and uniform
deviations ε_M, ε_K theory promises L_K(f_new) ≤ L_K(f_old) − Δ_R − Δ_ERM + 2(ε_M + ε_K); whether
that says anything, and whether f_new is better on fresh samples, is measured.
Source: the project's theory, section 4, second theorem.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from widthlab.experiments.shared.base import Inputs, Measured, Request
from widthlab.experiments.shared.families import measurable
from widthlab.experiments.shared.measured_gradients import (
    BATCH,
    Batch,
    GradientsCell,
    GradientsSection,
    Samples,
    batch_mask,
    chosen_samples,
    losses_of,
    pooled_points,
    requests,
)
from widthlab.specs import WHOLE, Count, Positive, Spec, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.models import Model
    from widthlab.report.figures import Figure

TITLE = "Direct train–test expansion"
QUESTION = (
    "Does a block that is inserted into a trained network, stepped along the mean training "
    "gradient and trained a little, help on samples that nothing was chosen by?"
)
METHOD = (
    "At insertion points of trained networks (normalisation in evaluation mode) a block that adds "
    "nothing is placed: a bias, or two layers, of which the second is zero, with a bias. The bias "
    "is stepped along −μ_M, then the block alone is trained on the same M samples. Losses are "
    "clipped at a stated cap. The generic uniform bound is of the clipped loss, the paired one of "
    "its difference from that of the network before; for the loss's Lipschitz constants they have "
    "the largest slopes that were seen, which are lower bounds, so that a bound that is vacuous "
    "would be so with the true ones. Fresh samples are disjoint from all that chose anything; "
    "their intervals are of paired differences. Points and draws of one network depend on one "
    "another: shares are counted over networks."
)
LEAST_FRESH = 32
"""Fresh samples that there must be."""
LEVEL = 0.95
"""Confidence of every interval, and of ε_M and ε_K together."""

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
    step_test_samples: Annotated[Count, Unit("samples")] = 32
    """K, test samples of a step."""
    draws: Annotated[Count, Unit("draws")] = 2
    """Disjoint draws of M and K samples for every network and point."""
    samples_from: Literal["training", "held_out"] = "training"
    """Where the M samples come from: the network's own training samples, as when a network is
    grown, or test samples, which it has never seen, as the uniform bound presumes."""
    blocks: Annotated[list[BlockKind], Field(min_length=1), AfterValidator(_distinct)] = Field(
        default=["bias", "residual"]
    )
    """Blocks to insert."""
    hidden_ratio: Annotated[Positive, Unit("1")] = 1.0
    """Hidden width of the residual block over the channels at its point."""
    step: Annotated[Positive, Unit("1")] = 0.05
    """Size of the step: root mean square of what is added over that of the activation."""
    block_training: BlockTraining = BlockTraining()
    """How a block is trained after its step."""
    cap: Annotated[Positive | None, Unit("loss")] = None
    """Where losses are clipped; left out, at twice the loss of a network that knows nothing: 2 log
    of the number of classes (of tokens) for cross-entropy, 1 for the squared error."""

    @model_validator(mode="after")
    def _fresh(self) -> Self:
        """Refuse draws that leave too few fresh samples."""
        held_out = self.samples_from == "held_out"
        needed = self.draws * self.step_samples
        if not held_out and needed > self.train_samples:
            raise ValueError(
                f"train_samples: {self.draws} draws of {self.step_samples} need {needed}, but it "
                f"is {self.train_samples}"
            )
        used = self.draws * (self.step_test_samples + held_out * self.step_samples)
        if self.test_samples - used < LEAST_FRESH:
            raise ValueError(
                f"test_samples: {self.test_samples} leave {self.test_samples - used} fresh samples "
                f"beside the draws' {used}; at least {LEAST_FRESH} are needed"
            )
        return self


class Cell(GradientsCell):
    """One trained network and how it is expanded."""

    step_samples: Count
    step_test_samples: Count
    draws: Count
    samples_from: Literal["training", "held_out"]
    blocks: list[BlockKind]
    hidden_ratio: Positive
    step: Positive
    block_training: BlockTraining
    cap: Positive | None


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell, and one checkpoint, for every network of the families."""
    own = {
        name: getattr(section, name)
        for name in Cell.model_fields
        if name not in GradientsCell.model_fields
    }
    most = [len(f.points) if f.points else 10 for f in section.families.values()]
    m, k = section.step_samples, section.step_test_samples
    fresh = section.test_samples - section.draws * k
    # Forward and backward: training and slopes; forward alone, a third of that: losses.
    each = m * (section.block_training.steps + 4) + 3 * (m + k) + (m + k + fresh)
    times = max(most) * section.draws * len(section.blocks)
    passes = 1 + times * each / (section.train_samples + section.test_samples)
    return requests(section, seed, lambda **fields: Cell(**fields, **own), passes)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the expansions at every block, point and draw, and the certificates of the points.

    A network whose training diverged has no variables.
    """
    import xarray as xr

    from widthlab.checkpoints.files import load_history

    (trained,) = inputs.checkpoints
    if trained.status == "diverged":
        return xr.Dataset(attrs={"status": trained.status})
    model = measurable(trained, load_history(trained.folder)["step"][-1], inputs)
    samples = chosen_samples(cell, inputs)
    pool = [_joined(part) for part in (samples.train, samples.test)]
    m, k, draws = cell.step_samples, cell.step_test_samples, cell.draws
    if cell.samples_from == "held_out":
        pool = [_rows(pool[1], 0, m * draws), _rows(pool[1], m * draws, None)]
    fresh = _batches(_rows(pool[1], k * draws, None))
    cap = cell.cap or ignorance(cell.loss, inputs.data.outputs)
    found = _expansions(cell, model, pool, fresh, cap, inputs)
    certified = _certificates(cell, model, pool[0], fresh, inputs)
    made = xr.merge([found, certified], combine_attrs="override")
    made.attrs = {
        "status": trained.status,
        "cap": cap,
        "level": LEVEL,
        "fresh_samples": sum(len(y) for _, y in fresh),
        "lipschitz": "largest slopes seen, lower bounds",
    }
    return made


def ignorance(kind: Literal["cross_entropy", "mse"], outputs: int) -> float:
    """Return twice the loss of a network that knows nothing: uniform, or zero, outputs."""
    return 2 * math.log(outputs) if kind == "cross_entropy" else 1.0


def _expansions(
    cell: Cell, model: Model, pool: list[Batch], fresh: list[Batch], cap: float, inputs: Inputs
) -> xr.Dataset:
    """Return all expansions of one network, by block, point and draw."""
    import xarray as xr

    from widthlab.statistics.alignment.blocks import Fit
    from widthlab.statistics.alignment.expansion import expansion

    m, k = cell.step_samples, cell.step_test_samples
    points, fit = pooled_points(cell, model), Fit(**cell.block_training.model_dump())
    streams = inputs.seeds.spawn(4)[3].spawn(cell.draws)
    by_block = []
    for block in cell.blocks:
        by_point = []
        for point, pooling in points.items():
            by_draw = []
            for draw, stream in enumerate(streams):
                one = expansion(
                    model,
                    point,
                    losses_of(cell.loss),
                    _batches(_rows(pool[0], draw * m, draw * m + m), least=2),
                    _batches(_rows(pool[1], draw * k, draw * k + k)),
                    fresh,
                    cap=cap,
                    block=block,
                    pooling=pooling,
                    step=cell.step,
                    fit=fit,
                    hidden_ratio=cell.hidden_ratio,
                    mask=batch_mask(fresh),
                    level=LEVEL,
                    seed=stream,
                )
                words = {"units": "features", "description": "F, features of the step"}
                one["features"] = ((), one.attrs["features"], words)
                by_draw.append(one)
            by_point.append(xr.concat(by_draw, "draw", combine_attrs="override"))
        by_block.append(xr.concat(by_point, "point", combine_attrs="override"))
    coords = {"block": cell.blocks, "point": list(points), "draw": np.arange(cell.draws)}
    return xr.concat(by_block, "block", combine_attrs="override").assign_coords(coords)


CERTIFIED = ("b_exact", "b_exact_limit", "b_align", "b_align_limit", "certified")
"""What is kept of the certificates."""


def _certificates(
    cell: Cell, model: Model, train: Batch, fresh: list[Batch], inputs: Inputs
) -> xr.Dataset:
    """Return, by point, what gradients certify for steps of M samples seen on K others."""
    import xarray as xr

    from widthlab.statistics.alignment.estimates import certificate
    from widthlab.statistics.alignment.gradients import alignment_grams
    from widthlab.statistics.alignment.tables import certificate_dataset

    points = pooled_points(cell, model)
    mask, losses = batch_mask(fresh), losses_of(cell.loss)
    first = _batches(train, least=2)
    grams = alignment_grams(model, points, losses, first, _halved(fresh), mask=mask)
    budget = [(cell.step_samples, cell.step_test_samples)]
    laws: Literal["equal", "different"] = (
        "equal" if cell.samples_from == "held_out" else "different"
    )
    found = [
        certificate_dataset(certificate(grams[name], budget, laws=laws, level=LEVEL))
        for name in points
    ]
    kept = [one[list(CERTIFIED)].isel(budget=0, drop=True).drop_vars("control") for one in found]
    joined = xr.concat(kept, "point", combine_attrs="override")
    return joined.drop_vars(["train_samples", "test_samples"], errors="ignore")


def _joined(batches: list[Batch]) -> Batch:
    import torch

    first, second = zip(*batches, strict=True)
    return torch.cat(first), torch.cat(second)


def _rows(samples: Batch, start: int, stop: int | None) -> Batch:
    return samples[0][start:stop], samples[1][start:stop]


def _batches(samples: Batch, least: int = 1) -> list[Batch]:
    """Return batches of at most 32 samples, at least so many."""
    size = max(1, min(BATCH, len(samples[1]) // least))
    return list(zip(samples[0].split(size), samples[1].split(size), strict=True))


def _halved(batches: list[Batch]) -> list[Batch]:
    """Return the same samples in at least two batches."""
    return batches if len(batches) > 1 else _batches(_joined(batches), least=2)


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return all expansions by family, width, seed, block, point and draw, with the claims.

    What a family does not have (a width, a point), and networks that diverged, are NaN.
    """
    from widthlab.claims import to_json
    from widthlab.experiments.expansion.claims import claims
    from widthlab.experiments.expansion.collecting import collected

    dataset = collected(section, measured)
    dataset.attrs["claims"] = to_json(claims(dataset))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return what expansion does by width and by point, bounds against gains, and alignment."""
    from widthlab.experiments.expansion import drawings

    return drawings.figures(dataset)
