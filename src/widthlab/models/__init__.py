"""Networks by name, with width and depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from widthlab import specs
from widthlab.errors import WidthlabError
from widthlab.models.language import Llama
from widthlab.models.mlp import MLP
from widthlab.models.model import Model, initialise
from widthlab.models.residual_mlp import ResidualMLP
from widthlab.models.resnet import ResNet20

__all__ = ["BUILDERS", "Model", "build", "initialise", "skeleton"]


def _mlp(network: specs.Network, input_shape: tuple[int, ...], outputs: int) -> Model:
    spec = network.architecture
    assert isinstance(spec, specs.MLP)
    return MLP(spec, network.width, network.depth, math.prod(input_shape), outputs)


def _residual_mlp(network: specs.Network, input_shape: tuple[int, ...], outputs: int) -> Model:
    spec = network.architecture
    assert isinstance(spec, specs.ResidualMLP)
    return ResidualMLP(spec, network.width, network.depth, math.prod(input_shape), outputs)


def _resnet20(network: specs.Network, input_shape: tuple[int, ...], outputs: int) -> Model:
    least = specs.SMALLEST_IMAGE
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise WidthlabError(
            f"resnet20 takes images of at least {least}×{least} pixels, but this "
            f"data set has inputs of shape {input_shape}; choose an image data set, a larger "
            "`size`, or the network mlp or residual_mlp"
        )
    return ResNet20(network.width, input_shape[0], outputs)


def _llama(network: specs.Network, input_shape: tuple[int, ...], outputs: int) -> Model:
    spec = network.architecture
    assert isinstance(spec, specs.Llama)
    if len(input_shape) != 1:
        raise WidthlabError(
            f"llama takes sequences of tokens, but inputs of this data set have shape "
            f"{input_shape}; choose the data set textfile, or the network mlp or residual_mlp"
        )
    return Llama(spec, network.width, network.depth, input_shape[0], outputs)


def _pythia(network: specs.Network, input_shape: tuple[int, ...], outputs: int) -> Model:
    raise WidthlabError("pythia is loaded from its checkpoints, and never drawn at random")


BUILDERS: dict[str, Callable[[specs.Network, tuple[int, ...], int], Model]] = {
    "mlp": _mlp,
    "residual_mlp": _residual_mlp,
    "resnet20": _resnet20,
    "llama": _llama,
    "pythia": _pythia,
}
"""How each architecture of `specs` is built, by its name."""


def build(network: specs.Network, input_shape: tuple[int, ...], outputs: int, seed: int) -> Model:
    """Return the network on the CPU, in float32 and training mode, drawn from `seed`.

    `input_shape` is the shape of one sample, and `outputs` the number of outputs. The global
    random state is neither read nor changed. Raises WidthlabError where the architecture cannot
    take inputs of this shape.
    """
    model = BUILDERS[network.architecture.name](network, input_shape, outputs)
    model.redraw(torch.Generator().manual_seed(seed))
    return model


def skeleton(network: specs.Network, input_shape: tuple[int, ...], outputs: int) -> Model:
    """Return the modules of a network without memory for their parameters (on torch's meta device).

    Raises WidthlabError as `build` does.
    """
    with torch.device("meta"):
        return BUILDERS[network.architecture.name](network, input_shape, outputs)
