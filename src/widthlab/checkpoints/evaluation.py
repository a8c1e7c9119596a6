"""Losses, and their evaluation on a whole data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from widthlab.data.prepared import IGNORE as IGNORE
from widthlab.errors import WidthlabError

CHUNK_SAMPLES = 1024
CHUNK_VALUES = 2**22
"""Largest number of input values in one evaluated chunk, and of outputs, so that large images fit
too, and the logits of every position of a sequence."""

Loss = Literal["cross_entropy", "mse"]


def mask_of(labels: Tensor) -> Tensor | None:
    """Return which positions count (n, T) of sequences' labels (n, T); None for labels (n,)."""
    return None if labels.ndim == 1 else labels != IGNORE


def loss_of(outputs: Tensor, labels: Tensor, kind: Loss) -> Tensor:
    """Return the loss of every sample (n,) from outputs (n, c) and labels (n,).

    cross_entropy is -log softmax(f)_y; mse is ½|f - onehot(y)|², summed over outputs. A sequence,
    with outputs (n, T, c) and labels (n, T), has the mean of its positions that count; raises
    WidthlabError for its mse.
    """
    if labels.ndim == 2:
        if kind != "cross_entropy":
            raise WidthlabError(
                f"the loss {kind} is not that of sequences of tokens; choose cross_entropy"
            )
        each = F.cross_entropy(outputs.mT, labels, reduction="none", ignore_index=IGNORE)
        return each.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp_min(1)
    if kind == "cross_entropy":
        return F.cross_entropy(outputs, labels, reduction="none")
    target = F.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return 0.5 * (outputs - target).square().sum(dim=1)


def hits(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return for every sample (n,) whether its largest output is at its label.

    For a sequence, with outputs (n, T, c) and labels (n, T), it is the share of its positions that
    count at which this is so.
    """
    if labels.ndim == 2:
        counted = labels != IGNORE
        right = (outputs.argmax(dim=-1) == labels) & counted
        return right.sum(dim=1) / counted.sum(dim=1).clamp_min(1)
    return outputs.argmax(dim=1) == labels


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    x: Tensor,
    labels: Tensor,
    kind: Loss,
    normalise: Callable[[Tensor], Tensor],
    outputs_each: int = 1,
) -> tuple[float, float]:
    """Return mean loss and accuracy on raw inputs x, in evaluation mode, chunk by chunk.

    `outputs_each` is the number of outputs at every label. Sums are in float64. The model is left
    in evaluation mode.
    """
    model.eval()
    per_sample = max(1, math.prod(x.shape[1:]), math.prod(labels.shape[1:]) * outputs_each)
    chunk = max(1, min(CHUNK_SAMPLES, CHUNK_VALUES // per_sample))
    loss = torch.zeros((), dtype=torch.float64, device=x.device)
    right = torch.zeros((), dtype=torch.float64, device=x.device)
    for start in range(0, len(labels), chunk):
        part_labels = labels[start : start + chunk]
        outputs = model(normalise(x[start : start + chunk]))
        loss += loss_of(outputs, part_labels, kind).double().sum()
        right += hits(outputs, part_labels).double().sum()
    return loss.item() / len(labels), right.item() / len(labels)
