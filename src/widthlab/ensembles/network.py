"""A perceptron whose dense layers are `Unseen`: the same modules, wired by the same code."""

from __future__ import annotations

import torch
from torch import nn

from widthlab import models, specs
from widthlab.ensembles.unseen import Unseen
from widthlab.errors import WidthlabError
from widthlab.models.layers import Dense


def weightfree(network: specs.Network, inputs: int, generator: torch.Generator) -> models.Model:
    """Return the network with one output, mapping x (draws, n, inputs) to f (draws, n, 1).

    Every pass draws all weights anew from `generator`, on its device and in float64; no memory of
    the size of a weight matrix is used. Raises WidthlabError for networks that cannot be drawn
    like this.
    """
    refused = why_not(network)
    if refused:
        raise WidthlabError(refused)
    model = models.skeleton(network, (inputs,), outputs=1)
    _replace(model, generator)
    return model.eval()


def why_not(network: specs.Network) -> str:
    """Say why a network cannot be drawn without its weights; empty where it can."""
    architecture = network.architecture
    if isinstance(architecture, specs.ResNet20):
        return (
            "resnet20 has convolutions, whose weights are used at every position and not once; "
            "it cannot be drawn without them, so choose engine: dense"
        )
    if isinstance(architecture, specs.Llama | specs.Pythia):
        return (
            f"{architecture.name} uses its weights at every token and not once; it cannot be drawn "
            "without them"
        )
    if architecture.normalisation == "batch":
        return (
            "batch normalisation couples the inputs of a batch; such a network is not drawn "
            "without its weights, so choose engine: dense"
        )
    return ""


def _replace(module: nn.Module, generator: torch.Generator) -> None:
    """Replace, in place, what holds or needs weights of the full size."""
    for name, child in module.named_children():
        if isinstance(child, Dense):
            setattr(module, name, Unseen(child, generator))
        elif isinstance(child, nn.LayerNorm):
            norm = nn.LayerNorm(child.normalized_shape, child.eps, dtype=torch.float64)
            setattr(module, name, norm.to(generator.device).requires_grad_(False))
        elif isinstance(child, nn.Flatten):
            setattr(module, name, nn.Identity())  # draws come first here, and inputs are flat
        else:
            _replace(child, generator)
