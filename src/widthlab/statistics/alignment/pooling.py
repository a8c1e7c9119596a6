"""From the gradient of an activation to one row of features for each sample, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from widthlab.errors import WidthlabError

How = Literal["sum", "mean", "whole"]


@dataclass(frozen=True)
class Pooling:
    """How the gradient of an activation (n, …) becomes rows (n, F).

    Every axis but the samples' and the channels' is a position: pixels, tokens. `sum` over
    positions is the gradient of one bias per channel that is added everywhere, `mean` is that over
    the number of positions, and `whole` keeps every entry (F may not depend on the sample then).
    """

    how: How = "sum"
    axis: int | None = None
    """The channels' axis of the activation, samples being axis 0. Left out it is the last of two or
    three axes, (n, C) and (n, T, D), and axis 1 of more, (n, C, H, W): give 1 for (n, C, T), as
    Conv1d has it, and -1 for images with their channels last."""

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise WidthlabError(f"pooling must be {', '.join(get_args(How))}, not {self.how!r}")

    def channels(self, axes: int) -> int:
        """Return the channels' axis of an activation with so many axes."""
        if axes < 2:
            raise WidthlabError(
                "an activation must have an axis of samples and one of features, but one has "
                f"{axes} axes; choose another point"
            )
        if self.axis is None:
            return axes - 1 if axes <= 3 else 1
        axis = self.axis + axes if self.axis < 0 else self.axis
        if not 1 <= axis < axes:
            raise WidthlabError(
                f"the channels' axis {self.axis} is not one of the axes 1 to {axes - 1} of an "
                f"activation with {axes} axes"
            )
        return axis

    def pool(self, gradient: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return rows (n, F) of a gradient (n, …).

        `mask` (n, *positions) is true where a position counts; an activation without positions
        has no use for it. Half precision is summed in float32. Raises WidthlabError where mask and
        positions do not fit.
        """
        if gradient.dtype not in (torch.float32, torch.float64):
            gradient = gradient.float()
        axis = self.channels(gradient.ndim)
        positions = [other for other in range(1, gradient.ndim) if other != axis]
        if mask is not None:
            weights = self._weights(gradient.shape, mask, gradient)
            gradient = gradient if weights is None else gradient * weights
        if self.how == "whole":
            return gradient.flatten(1)
        if not positions:
            return gradient
        averaged = self.how == "mean" and mask is None
        return gradient.mean(dim=positions) if averaged else gradient.sum(dim=positions)

    def spread(self, rows: Tensor, shape: torch.Size, mask: Tensor | None = None) -> Tensor:
        """Return what rows (n, F) add to an activation of this shape: the adjoint of `pool`.

        So spread(b)·g = b·pool(g) for every gradient g, and adding spread(b) to the activation
        changes the loss by b·pool(g) to first order.
        """
        axis = self.channels(len(shape))
        weights = self._weights(shape, mask, rows)
        if self.how == "whole":
            out = rows.reshape(shape)
            return out if weights is None else out * weights
        wide = [shape[0] if other == 0 else 1 for other in range(len(shape))]
        wide[axis] = shape[axis]
        out = rows.reshape(wide)
        return out if weights is None else out * weights

    def features(self, shape: torch.Size) -> int:
        """Return F for an activation of this shape."""
        return math.prod(shape[1:]) if self.how == "whole" else shape[self.channels(len(shape))]

    def _weights(self, shape: torch.Size, mask: Tensor | None, like: Tensor) -> Tensor | None:
        """Return the weight of every position, (n or 1, …) with 1 channel; None where all are 1."""
        axis = self.channels(len(shape))
        positions = [size for other, size in enumerate(shape) if other not in (0, axis)]
        if not positions:
            return None
        if mask is None:
            if self.how == "whole":
                return None
            share = 1.0 / math.prod(positions) if self.how == "mean" else 1.0
            size = [1 if other in (0, axis) else n for other, n in enumerate(shape)]
            return torch.full(size, share, dtype=like.dtype, device=like.device)
        if tuple(mask.shape) != (shape[0], *positions):
            raise WidthlabError(
                f"a mask of shape {tuple(mask.shape)} does not fit an activation of shape "
                f"{tuple(shape)} with channels on axis {axis}; it must be "
                f"{(shape[0], *positions)}, true where a position counts"
            )
        counts = mask.to(like.device).bool().to(like.dtype)
        if self.how == "mean":
            total = counts.flatten(1).sum(1).clamp_min(1.0)
            counts = counts / total.reshape(-1, *[1] * len(positions))
        return counts.unsqueeze(axis)
