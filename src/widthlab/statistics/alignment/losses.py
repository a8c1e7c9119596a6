"""Losses of single samples, which is what activation gradients are taken of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from widthlab.errors import WidthlabError

Losses = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch to the loss of each of its samples, shape (samples,)."""


def supervised(criterion: Callable[[Tensor, Tensor], Tensor]) -> Losses:
    """Return the losses of batches (input, target) by a criterion that does not average.

    `criterion` maps outputs and targets to the losses of single samples, for instance
    `torch.nn.CrossEntropyLoss(reduction="none")`.
    """

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return criterion(model(batch[0]), batch[1])

    return losses


def sample_losses(losses: Losses, model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of each sample; raises WidthlabError where it is not of shape (n,)."""
    value = losses(model, batch)
    if not isinstance(value, Tensor):
        raise WidthlabError(
            f"the loss must be a tensor with one number for each sample, not a "
            f"{type(value).__name__}"
        )
    if value.ndim != 1:
        shape = "a single number" if value.ndim == 0 else f"of shape {tuple(value.shape)}"
        raise WidthlabError(
            f"the loss must have one number for each sample, but it is {shape}; it seems to be "
            'averaged or unreduced: use reduction="none", and sum over positions within a sample'
        )
    return value
