"""Blocks that are inserted behind a module and add nothing at first, and their short training.

`bias` adds spread(b); `residual` adds V·relu(U·z + a) + spread(b), position by position along the
channels, with U random and V = b = 0, so that the function of the network is preserved as in
Net2Net (Chen, Goodfellow & Shlens 2016). Either is stepped along −μ_M by its b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gradients import Mask
from widthlab.statistics.alignment.losses import Losses, sample_losses
from widthlab.statistics.alignment.points import (
    batch_beside,
    evaluating,
    first_tensor,
    with_first,
)
from widthlab.statistics.alignment.pooling import Pooling
from widthlab.statistics.draws import tapped

Kind = Literal["bias", "residual"]


@dataclass(frozen=True)
class Fit:
    """How an inserted block is trained; everything else of the network is frozen."""

    optimiser: Literal["sgd", "adam"] = "adam"
    learning_rate: float = 1e-3
    steps: int = 20
    full_batch: bool = True
    """Whether a step takes all batches, and not one after another in random order."""

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "adam"):
            raise WidthlabError(f"the optimiser must be sgd or adam, not {self.optimiser!r}")
        if not (self.steps >= 0 and math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise WidthlabError(
                "a block's training needs a positive learning_rate and steps of at least 0, not "
                f"{self.learning_rate} and {self.steps}"
            )


class Block(nn.Module):
    """What is added to an activation z of shape (n, *shape); zero until b or V is not."""

    def __init__(
        self,
        kind: Kind,
        pooling: Pooling,
        like: Tensor,
        *,
        hidden_ratio: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """`like` is one activation (n, …); U has entries of variance 1/C from `generator`."""
        super().__init__()
        if kind not in get_args(Kind):
            raise WidthlabError(f"a block must be {' or '.join(get_args(Kind))}, not {kind!r}")
        self.kind, self.pooling = kind, pooling
        self.axis = pooling.channels(like.ndim)
        self.channels = like.shape[self.axis]
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        self.b = nn.Parameter(torch.zeros(pooling.features(like.shape), **options))
        if kind == "residual":
            hidden = max(1, round(hidden_ratio * self.channels))
            draw = torch.randn(hidden, self.channels, generator=generator, dtype=torch.float64)
            self.u = nn.Parameter((draw / math.sqrt(self.channels)).to(**options))
            self.a = nn.Parameter(torch.zeros(hidden, **options))
            self.v = nn.Parameter(torch.zeros(self.channels, hidden, **options))

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what is added to z (n, …); masked positions get nothing."""
        added = self.pooling.spread(self.b.expand(len(z), -1), z.shape, mask)
        if self.kind == "residual":
            inner = torch.relu(z.movedim(self.axis, -1) @ self.u.T + self.a)
            own = (inner @ self.v.T).movedim(-1, self.axis)
            added = added + (own if mask is None else own * mask.unsqueeze(self.axis).to(own))
        return added

    @property
    def bias_norm(self) -> float:
        """|b|."""
        return float(self.b.detach().double().norm())

    @property
    def residual_norms(self) -> float:
        """|V| |(U, a)|, the product of Frobenius norms; 0 of a bias."""
        if self.kind == "bias":
            return 0.0
        inner = math.hypot(*(float(p.detach().double().norm()) for p in (self.u, self.a)))
        return inner * float(self.v.detach().double().norm())


@dataclass(frozen=True)
class Insertion:
    """A model, the point behind which a block stands, and how losses are measured."""

    model: nn.Module
    point: str
    losses: Losses
    mask: Mask | None = None

    @contextmanager
    def running(self, block: Block | None) -> Iterator[_Tap]:
        """Put the block behind the point, in evaluation mode with all else frozen."""
        tap = _Tap(self.point, block)
        with evaluating(self.model), tapped(self.model, [self.point], tap):
            yield tap

    def batch(self, tap: _Tap, batch: Any) -> Tensor:
        """Return the losses (n,) of one batch."""
        batch = batch_beside(self.model, batch)
        tap.mask = None if self.mask is None else self.mask(batch)
        return sample_losses(self.losses, self.model, batch)

    def values(self, block: Block | None, batches: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the losses of all samples with the block in place, (n,) in float64."""
        with self.running(block) as tap, torch.no_grad():
            found = [self.batch(tap, batch).to("cpu", torch.float64).numpy() for batch in batches]
        return np.concatenate(found)

    def activation(self, batch: Any) -> Tensor:
        """Return the activation (n, …) of one batch."""
        with self.running(None) as tap, torch.no_grad():
            self.batch(tap, batch)
        return tap.seen

    def train(self, block: Block, batches: Sequence[Any], fit: Fit, seed: int) -> None:
        """Train the block in place on the mean loss of the samples of all batches.

        A loss that is not finite ends the training, with the parameters that led to it.
        """
        kind = torch.optim.SGD if fit.optimiser == "sgd" else torch.optim.Adam
        optimiser = kind(block.parameters(), lr=fit.learning_rate)
        generator = np.random.default_rng(seed)
        order: list[int] = []
        with self.running(block) as tap, torch.enable_grad():
            for _ in range(fit.steps):
                if not order:
                    order = list(generator.permutation(len(batches)))
                taken = list(range(len(batches))) if fit.full_batch else [order.pop()]
                optimiser.zero_grad()
                count, total = 0, 0.0
                for number in taken:
                    loss = self.batch(tap, batches[number])
                    loss.sum().backward()  # type: ignore[no-untyped-call]
                    count, total = count + len(loss), total + float(loss.detach().sum())
                if not math.isfinite(total):
                    return
                for parameter in block.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= count
                optimiser.step()

    def steepest(self, block: Block, batches: Sequence[Any], cap: float) -> tuple[float, float]:
        """Return the largest change of a sample's loss per unit of b, and of the activation.

        Over the samples whose loss is below `cap`, where a clipped loss still moves: lower bounds
        of the loss's Lipschitz constants, since they are seen at these samples and this block only.
        """
        by_bias, by_activation = 0.0, 0.0
        with self.running(block) as tap, torch.enable_grad():
            for batch in batches:
                loss = self.batch(tap, batch)
                (gradient,) = torch.autograd.grad(loss.sum(), [tap.out])
                alive = loss < cap
                rows = block.pooling.pool(gradient, tap.mask)
                by_bias = max(by_bias, _longest(rows, alive))
                by_activation = max(by_activation, _longest(gradient, alive))
        return by_bias, by_activation


def _longest(rows: Tensor, which: Tensor) -> float:
    """Return the largest Euclidean norm of the chosen rows (n, …), 0 of none."""
    return float(torch.where(which, rows.double().flatten(1).norm(dim=1), 0.0).max())


class _Tap:
    """Adds the block to the point's output, and keeps the activation on either side."""

    def __init__(self, point: str, block: Block | None) -> None:
        self.point, self.block = point, block
        self.mask: Tensor | None = None
        self.seen = torch.empty(0)
        self.out = torch.empty(0)

    def __call__(self, index: int, output: Any) -> Any:
        """Replace the point's output."""
        h = first_tensor(self.point, output)
        # A copy, since the network may overwrite its own activation behind the point.
        self.seen = h.detach().clone()
        if self.block is None:
            return output
        self.out = h + self.block(h, self.mask)
        # Another copy: an activation that is overwritten would drop out of the graph.
        return with_first(output, self.out.clone())
