"""How large a parameter at an insertion point must be to weigh as much as the activation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from widthlab.statistics.alignment.gradients import Mask
from widthlab.statistics.alignment.losses import Losses
from widthlab.statistics.alignment.points import (
    Points,
    batch_beside,
    evaluating,
    first_tensor,
    insertion_points,
)
from widthlab.statistics.alignment.pooling import Pooling
from widthlab.statistics.draws import tapped


def matching_norms(
    model: nn.Module,
    points: Points,
    batches: Iterable[Any],
    *,
    losses: Losses | None = None,
    mask: Mask | None = None,
) -> dict[str, float]:
    """Return |b| at each point for which adding b changes the activation by its own size.

    That is, spread(b) has the root-mean-square norm of the activations z of single samples, all
    channels and positions together; for one bias per channel (`sum`) it is the rms over samples
    and positions of the channels' norm. In units of the activation. The model runs as it does
    for `losses`; without, it takes a batch's first entry, as in batches (inputs, targets). Points
    as for `activation_gradients`.
    """
    poolings = insertion_points(model, points)
    names, total, own = list(poolings), {}, {}
    squares, spreads = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    chosen: Tensor | None = None

    def tap(index: int, output: Any) -> Any:
        name = names[index]
        h = first_tensor(name, output).double()
        pooling = poolings[name]
        # The squared norm of spread(e) is the same for every unit vector e, sample by sample.
        weights = pooling.spread(_unit(h, pooling), h.shape, chosen)
        total[name] = float((h if chosen is None else h * _there(weights)).square().sum())
        own[name] = float(weights.square().sum())
        return output

    with evaluating(model), torch.no_grad(), tapped(model, names, tap):
        for batch in batches:
            batch = batch_beside(model, batch)
            chosen = None if mask is None else mask(batch)
            model(batch[0]) if losses is None else losses(model, batch)
            for name in names:
                squares[name] += total[name]
                spreads[name] += own[name]
    return {name: (squares[name] / spreads[name]) ** 0.5 for name in names}


def _unit(h: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector of norm 1 for each sample, with equal entries."""
    features = pooling.features(h.shape)
    return torch.full((len(h), features), features**-0.5, dtype=h.dtype, device=h.device)


def _there(weights: Tensor) -> Tensor:
    return (weights != 0).to(weights.dtype)
