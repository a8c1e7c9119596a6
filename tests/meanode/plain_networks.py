"""The networks of `meanode` as one would write them down, one seed at a time, for autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from widthlab.meanode import EmbeddingLoss, Problem, ReadoutLoss, ResidualNetwork, embed, readout

S: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "linear": lambda z: z,
}


def stream(network: ResidualNetwork, u: Tensor, v: Tensor | None, h: Tensor) -> list[Tensor]:
    """Return h_0 … h_L (inputs, D) for weights (L, units, D), unit by unit of the formula."""
    kept, s = [h], S[network.activation]
    for layer in range(network.depth):
        total = torch.zeros_like(h)
        for j in range(network.hidden):
            if network.block == "one_layer":
                z = u[layer].view(network.hidden, network.width, network.width)[j]
                total = total + s(h @ z.T)
            else:
                kappa = 1 / network.width if network.block == "two_layer" else 1.0
                total = total + torch.outer(s(kappa * (h @ u[layer, j])), v[layer, j])
        h = h + network.alpha / (network.depth * network.hidden) * total
        kept.append(h)
    return kept


def lazy_stream(
    network: ResidualNetwork, initial: list[Tensor], moves: list[Tensor], h: Tensor
) -> Tensor:
    """Return h_L of blocks linearised in their weights (L, units, D) about initial ones."""
    slopes: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": lambda z: 1 - torch.tanh(z) ** 2,
        "relu": lambda z: (z > 0).to(z.dtype),
        "linear": torch.ones_like,
    }
    s, slope = S[network.activation], slopes[network.activation]
    kappa = 1 / network.width if network.block == "two_layer" else 1.0
    for layer in range(network.depth):
        u, du = initial[0][layer], moves[0][layer]
        z, p = kappa * h @ u.T, kappa * h @ du.T
        if network.block == "one_layer":
            units = (s(z) + slope(z) * p).view(len(h), network.hidden, network.width)
            total = units.sum(1)
        else:
            v, dv = initial[1][layer], moves[1][layer]
            total = s(z) @ (v + dv) + (slope(z) * p) @ v
        h = h + network.alpha / (network.depth * network.hidden) * total
    return h


def problem(width: int, inputs: int = 5, kind: str = "squared", seed: int = 0) -> Problem:
    """Return a random task in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(inputs, 6, generator=generator)
    h = embed(x, width, seed=1)
    if kind == "embedding":
        target = torch.randn(inputs, width, generator=generator, dtype=torch.float64)
        return Problem(h, EmbeddingLoss(target))
    outputs = readout(width, 3, seed=2)
    if kind == "cross_entropy":
        return Problem(h, ReadoutLoss(outputs, torch.arange(inputs) % 3))
    y = torch.randn(inputs, 3, generator=generator, dtype=torch.float64)
    return Problem(h, ReadoutLoss(outputs, y))
