"""Activations, normalisations and the dense layer of every perceptron."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from widthlab.specs import Activation, Parameterisation
from widthlab.theory.criticality import LEAKY_SLOPE


def _linear(x: Tensor) -> Tensor:
    return x


def _leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(x, LEAKY_SLOPE)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "linear": _linear,
    "relu": torch.relu,
    "leaky_relu": _leaky_relu,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "gelu": F.gelu,
    "silu": F.silu,
}
"""Activation functions s by name; gelu is the exact one, x·Φ(x)."""


class Activate(nn.Module):
    """The activation function `name`, element by element, as a module that hooks can watch."""

    def __init__(self, name: Activation) -> None:
        super().__init__()
        self.name = name
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        """Return s(x), of the shape of x."""
        return self.function(x)

    def extra_repr(self) -> str:
        """Return the name of the activation."""
        return self.name


class Dense(nn.Module):
    """A dense layer z = weight_scale·W x + bias_scale·b on the last dimension of x.

    At initialisation the effective weights have variance `weight_variance` / fan-in and the
    effective biases `bias_variance`, in every parameterisation but one case (below):

    - standard: W and b carry the variance, and both scales are 1;
    - ntk: W and b are standard normal, weight_scale = √(weight_variance / fan-in) and
      bias_scale = √bias_variance (Jacot et al. 2018), except that biases of variance 0 start
      at 0 with scale 1, since a scale of 0 would switch them off for good;
    - mup: as standard, with learning rates of each parameter scaled with width, and with the
      variance of a readout (fan-in grows with width, fan-out does not) smaller by
      base_inputs / inputs (Yang et al. 2022, Tensor Programs V, table 3).

    `base_inputs` and `base_outputs` are the fan-in and fan-out of the same layer in the network
    of base width; left out, that dimension does not grow with width. Only mup uses them.

    A new layer holds uninitialised memory until `redraw`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        weight_variance: float = 1.0,
        bias_variance: float = 0.0,
        bias: bool = False,
        parameterisation: Parameterisation = "standard",
        base_inputs: int | None = None,
        base_outputs: int | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.parameterisation = parameterisation
        self.input_ratio = 1.0 if base_inputs is None else inputs / base_inputs
        self.output_ratio = 1.0 if base_outputs is None else outputs / base_outputs
        weight_std, bias_std = math.sqrt(weight_variance / inputs), math.sqrt(bias_variance)
        self.weight_scale, self.bias_scale = 1.0, 1.0
        self.weight_std, self.bias_std = weight_std, bias_std
        if parameterisation == "ntk":
            self.weight_scale, self.weight_std = weight_std, 1.0
            if bias_variance > 0:
                self.bias_scale, self.bias_std = bias_std, 1.0
        elif parameterisation == "mup" and base_inputs is not None and base_outputs is None:
            self.weight_std = weight_std / math.sqrt(self.input_ratio)
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x (…, inputs) to (…, outputs)."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if self.weight_scale != 1.0:
            weight = self.weight_scale * weight
        if bias is not None and self.bias_scale != 1.0:
            bias = self.bias_scale * bias
        return F.linear(x, weight, bias)

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        """Draw new weights and biases in place."""
        fill_normal(self.weight, self.weight_std, generator)
        if self.bias is not None:
            fill_normal(self.bias, self.bias_std, generator)

    def learning_rate_factors(self, optimiser: str) -> dict[str, float]:
        """Return the factor on the base learning rate of `weight` and `bias`.

        All 1, except in mup. There, with r_in and r_out the growth of fan-in and fan-out over
        the base width, table 3 of Tensor Programs V (Yang et al. 2022) reads, for input, hidden
        and output weights alike: r_out / r_in for sgd and 1 / r_in for adam, and for biases
        r_out for sgd and 1 for adam.
        """
        weight, bias = 1.0, 1.0
        if self.parameterisation == "mup":
            if optimiser == "adam":
                weight = 1 / self.input_ratio
            else:
                weight, bias = self.output_ratio / self.input_ratio, self.output_ratio
        return {"weight": weight} if self.bias is None else {"weight": weight, "bias": bias}

    def extra_repr(self) -> str:
        """Return the sizes and the parameterisation."""
        return f"{self.inputs}, {self.outputs}, {self.parameterisation}"


def fill_normal(tensor: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill `tensor` in place with N(0, std²); a CPU generator gives the same on any device."""
    if tensor.device == generator.device:
        tensor.normal_(0.0, std, generator=generator)
    else:
        draw = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.device)
        tensor.copy_(draw.normal_(0.0, std, generator=generator))


def normaliser(kind: str, width: int) -> nn.Module:
    """Return the normalisation `kind` (none, layer or batch) of features of size `width`."""
    match kind:
        case "layer":
            return nn.LayerNorm(width)
        case "batch":
            return nn.BatchNorm1d(width)
        case _:
            return nn.Identity()
