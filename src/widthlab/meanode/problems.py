"""What a network learns: fixed embeddings h_0 of the inputs, and a loss of its last ones.

Losses are hand-written, with any leading dimensions in front of (inputs, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from widthlab.errors import WidthlabError
from widthlab.statistics.draws import Seed, nth_seed


class Loss(Protocol):
    """A loss of the embeddings h_L of all inputs."""

    def evaluate(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss (…) and its gradient by h (…, inputs, width)."""

    def outputs(self, h: Tensor) -> Tensor | None:
        """Return the network's outputs (…, inputs, outputs); None without a readout."""

    def curvature(self) -> float:
        """Return the largest eigenvalue of the Hessian by h of one input, or a bound on it."""

    def to(self, device: torch.device, dtype: torch.dtype) -> Loss:
        """Return the same loss elsewhere, or in another precision."""

    def check(self, inputs: int, width: int) -> None:
        """Raise WidthlabError where the loss is not one of (inputs, width) embeddings."""


@dataclass(frozen=True)
class EmbeddingLoss:
    """½ of the mean square of h_L − target, over inputs and coordinates; no readout."""

    target: Tensor
    """(inputs, width)."""

    def evaluate(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss (…) and its gradient by h."""
        error = h - self.target
        return 0.5 * error.square().mean((-2, -1)), error / self.target.numel()

    def outputs(self, h: Tensor) -> Tensor | None:
        """Return None: the embedding is the output."""
        return None

    def curvature(self) -> float:
        """Return 1/(inputs·width)."""
        return 1 / self.target.numel()

    def to(self, device: torch.device, dtype: torch.dtype) -> EmbeddingLoss:
        """Return the same loss elsewhere."""
        return EmbeddingLoss(self.target.to(device, dtype))

    def check(self, inputs: int, width: int) -> None:
        """Raise WidthlabError where the target has another shape than the embeddings."""
        if self.target.shape != (inputs, width):
            raise WidthlabError(
                f"the target has shape {tuple(self.target.shape)} and the embeddings "
                f"({inputs}, {width}); give one target row for each input"
            )


@dataclass(frozen=True)
class ReadoutLoss:
    """A loss of f = W_Uᵀ h_L/D, mean over inputs: ½|f − y|², or the cross-entropy of labels."""

    readout: Tensor
    """W_U, (width, outputs); untrained."""
    target: Tensor
    """y, (inputs, outputs); or labels (inputs,), of an integer type, for cross-entropy."""

    def evaluate(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss (…) and its gradient by h."""
        width, inputs = self.readout.shape[0], len(self.target)
        f = self.outputs(h)
        if self.target.is_floating_point():
            error = f - self.target
            loss = 0.5 * error.square().sum(-1).mean(-1)
        else:
            logs = f.log_softmax(-1)
            labels = self.target.expand(f.shape[:-1])[..., None]
            loss = -logs.gather(-1, labels)[..., 0].mean(-1)
            error = logs.exp().scatter_add(-1, labels, -torch.ones_like(logs[..., :1]))
        return loss, error @ self.readout.mT / (width * inputs)

    def outputs(self, h: Tensor) -> Tensor:
        """Return f (…, inputs, outputs)."""
        return h @ self.readout / self.readout.shape[0]

    def curvature(self) -> float:
        """Return the largest eigenvalue of W_U W_Uᵀ/D² over inputs; half of it for labels."""
        largest = float(torch.linalg.matrix_norm(self.readout.double(), 2)) ** 2
        by_output = 1.0 if self.target.is_floating_point() else 0.5
        return by_output * largest / (self.readout.shape[0] ** 2 * len(self.target))

    def to(self, device: torch.device, dtype: torch.dtype) -> ReadoutLoss:
        """Return the same loss elsewhere."""
        floating = self.target.is_floating_point()
        target = self.target.to(device, dtype) if floating else self.target.to(device)
        return ReadoutLoss(self.readout.to(device, dtype), target)

    def check(self, inputs: int, width: int) -> None:
        """Raise WidthlabError where readout or target do not fit the embeddings."""
        outputs = self.readout.shape[-1]
        labels = not self.target.is_floating_point()
        expected = (inputs,) if labels else (inputs, outputs)
        if self.readout.shape != (width, outputs) or self.target.shape != expected:
            raise WidthlabError(
                f"readout {tuple(self.readout.shape)} and target {tuple(self.target.shape)} do "
                f"not fit {inputs} embeddings of width {width}; give ({width}, outputs) and "
                f"{expected}"
            )
        if labels and not bool(((self.target >= 0) & (self.target < outputs)).all()):
            raise WidthlabError(f"labels must lie between 0 and {outputs - 1}, outputs less one")


@dataclass(frozen=True)
class Problem:
    """Full-batch data: embeddings and a loss. Raises WidthlabError where they do not fit."""

    embedding: Tensor
    """h_0, (inputs, width); the same for all seeds."""
    loss: Loss

    def __post_init__(self) -> None:
        if self.embedding.ndim != 2 or 0 in self.embedding.shape:
            raise WidthlabError(
                f"embeddings must have shape (inputs, width), not {tuple(self.embedding.shape)}"
            )
        if not bool(torch.isfinite(self.embedding).all()):
            raise WidthlabError("embeddings must be finite; check the data for missing values")
        self.loss.check(*self.embedding.shape)

    def to(self, device: torch.device, dtype: torch.dtype) -> Problem:
        """Return the same problem elsewhere, or in another precision."""
        return replace(
            self,
            embedding=self.embedding.to(device, dtype),
            loss=self.loss.to(device, dtype),
        )


def embed(x: Tensor, width: int, seed: Seed) -> Tensor:
    """Return h_0 = W_E x (inputs, width) in float64 for x (inputs, d), W_E entries N(0, 1/d)."""
    matrix = _normal((x.shape[1], width), seed)
    return x.to(torch.float64) @ matrix / math.sqrt(x.shape[1])


def readout(width: int, outputs: int, seed: Seed) -> Tensor:
    """Return W_U (width, outputs) in float64, entries N(0, outputs)."""
    return _normal((width, outputs), seed) * math.sqrt(outputs)


def _normal(shape: tuple[int, ...], seed: Seed) -> Tensor:
    generator = torch.Generator().manual_seed(nth_seed(seed, 0))
    return torch.randn(shape, generator=generator, dtype=torch.float64)
