"""Running statistics of batch normalisation, estimated again from data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CHUNK = 256
"""Samples in a forward pass."""


@torch.no_grad()
def recalibrate(model: nn.Module, x: Tensor) -> bool:
    """Set the running statistics of batch normalisation to averages over inputs x (n, …), in place.

    Needed where a network is compared with its initialisation, whose running statistics are still
    those that torch fills in (mean 0, variance 1) and would make another network of it. Returns
    whether there was anything to do; the network is left in evaluation mode.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over the passes
        layer.train()
    if layers:
        for start in range(0, len(x), CHUNK):
            model(x[start : start + CHUNK])
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        layer.eval()
    return bool(layers)
