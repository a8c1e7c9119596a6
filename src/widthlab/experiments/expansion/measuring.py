"""One network's expansions: at every block, insertion point and draw, and what is certified."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import xarray as xr

from widthlab.experiments.shared.base import Inputs
from widthlab.experiments.shared.measured_gradients import (
    BATCH,
    Batch,
    Chosen,
    batch_mask,
    losses_of,
    pooled_points,
)
from widthlab.models import Model
from widthlab.statistics.alignment.blocks import Fit
from widthlab.statistics.alignment.estimates import certificate
from widthlab.statistics.alignment.expansion import expansion
from widthlab.statistics.alignment.gradients import alignment_grams
from widthlab.statistics.alignment.tables import certificate_dataset

if TYPE_CHECKING:
    from widthlab.experiments.expansion import Cell

LEVEL = 0.95
"""Confidence of every interval, and of ε_M and ε_K together."""


def expanded(cell: Cell, model: Model, samples: Chosen, inputs: Inputs) -> xr.Dataset:
    """Return the expansions by block, point and draw, and the certificates by point.

    The M samples of the draws come first in their pool, the K in the test samples; what is left of
    those is fresh.
    """
    m, k, draws = cell.step_samples, cell.held_out_samples, cell.draws
    pool = [_joined(part) for part in (samples.train, samples.test)]
    if cell.samples_from == "unseen":
        pool = [_rows(pool[1], 0, m * draws), _rows(pool[1], m * draws, None)]
    fresh = _batches(_rows(pool[1], k * draws, None))
    cap = cell.cap or ignorance(cell.loss, inputs.data.outputs)
    found = _expansions(cell, model, pool, fresh, cap, inputs)
    certified = _certificates(cell, model, pool[0], fresh)
    made = xr.merge([found, certified], combine_attrs="override")
    count = sum(len(y) for _, y in fresh)
    made["cap"] = ((), cap, {"units": "loss", "description": "where losses are clipped"})
    made["fresh_samples"] = ((), count, {"units": "samples", "description": "fresh samples"})
    made.attrs = {"level": LEVEL, "lipschitz": "largest slopes seen, lower bounds"}
    return made


def ignorance(kind: Literal["cross_entropy", "mse"], outputs: int) -> float:
    """Return twice the loss of a network that knows nothing: uniform, or zero, outputs."""
    return 2 * math.log(outputs) if kind == "cross_entropy" else 1.0


def _expansions(
    cell: Cell, model: Model, pool: list[Batch], fresh: list[Batch], cap: float, inputs: Inputs
) -> xr.Dataset:
    """Return all expansions of one network, by block, point and draw."""
    m, k = cell.step_samples, cell.held_out_samples
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
                    scale=cell.scale,
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


CERTIFIED = ("b_exact", "b_exact_limit", "b_align", "b_align_limit", "has_bound")
"""What is kept of the certificates."""


def _certificates(cell: Cell, model: Model, train: Batch, fresh: list[Batch]) -> xr.Dataset:
    """Return, by point, what gradients certify for steps of M samples seen on K others."""
    points = pooled_points(cell, model)
    mask, losses = batch_mask(fresh), losses_of(cell.loss)
    first = _batches(train, least=2)
    grams = alignment_grams(model, points, losses, first, _halved(fresh), mask=mask)
    budget = [(cell.step_samples, cell.held_out_samples)]
    laws: Literal["equal", "different"] = "equal" if cell.samples_from == "unseen" else "different"
    found = [
        certificate_dataset(certificate(grams[name], budget, laws=laws, level=LEVEL))
        for name in points
    ]
    kept = [one[list(CERTIFIED)].isel(budget=0, drop=True) for one in found]
    return xr.concat(kept, "point", combine_attrs="override")


def _joined(batches: list[Batch]) -> Batch:
    first, second = zip(*batches, strict=True)
    return torch.cat(first), torch.cat(second)


def _rows(samples: Batch, start: int, stop: int | None) -> Batch:
    return samples[0][start:stop], samples[1][start:stop]


def _batches(samples: Batch, least: int = 1) -> list[Batch]:
    """Return batches of at most 32 samples, at least so many."""
    x, y = samples
    size = max(1, min(BATCH, len(y) // least))
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(y), size)]


def _halved(batches: list[Batch]) -> list[Batch]:
    """Return the same samples in at least two batches."""
    return batches if len(batches) > 1 else _batches(_joined(batches), least=2)
