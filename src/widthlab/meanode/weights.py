"""Initial weights of finite networks, one independent stream for each seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from widthlab.meanode.network import ResidualNetwork
from widthlab.statistics.draws import Seed, nth_seed


def draw(
    network: ResidualNetwork,
    numbers: Sequence[int],
    seed: Seed,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """Return u (L, seeds, M, D) and v of the same shape; Z (L, seeds, M·D, D) and None.

    Seed number r is the same network in whatever batch, precision and on whatever device: drawn
    on the CPU in float32.
    """
    layers, units, width = network.depth, network.units, network.width
    shape = (layers, len(numbers), units, width)
    outer = network.block != "one_layer"
    u = torch.empty(shape, dtype=dtype, device=device)
    v = torch.empty(shape, dtype=dtype, device=device) if outer else None
    for column, number in enumerate(numbers):
        generator = torch.Generator().manual_seed(nth_seed(seed, number))
        for tensor, deviation in zip((u, v), network.deviations, strict=True):
            if tensor is not None:
                normal = torch.randn((layers, units, width), generator=generator)
                tensor[:, column] = normal.to(device, dtype).mul_(deviation)
    return u, v
