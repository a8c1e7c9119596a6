"""Per-sample parameter gradients of one layer, in factors, by the kind of layer.

The gradient of an output f_c with respect to a layer's parameters follows from the layer's input
a and the cotangent δ = ∂f_c/∂(layer's output). It is returned in factors whose Gram matrices
`contractions` computes, so that gradients of the size of the parameters need never be stored.

Axes: m samples, C outputs, P positions (pixels or tokens; 1 for a plain dense layer), F inputs
of a neuron (fan-in), O neurons (or channels).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from widthlab.models.layers import Dense


@dataclass(frozen=True)
class Outer:
    """The gradient of a weight matrix: scale · Σ_p δ_p ⊗ a_p, for every sample and output."""

    inputs: Tensor
    """a, shape (m, P, F)."""
    cotangents: Tensor
    """δ, shape (m, C, O, P)."""
    scale: float = 1.0


@dataclass(frozen=True)
class Direct:
    """The gradient itself, where it is small: biases, scales and shifts."""

    gradients: Tensor
    """Shape (m, C, number of parameters)."""


Factor = Outer | Direct
Gradients = Callable[[nn.Module, Tensor, Tensor], list[Factor]]


def trainable(parameter: Tensor | None) -> bool:
    """Return whether the parameter exists and is trained."""
    return parameter is not None and parameter.requires_grad


def _dense(module: nn.Module, a: Tensor, delta: Tensor) -> list[Factor]:
    """y = weight_scale·W a + bias_scale·b; a (m, …, F), δ (m, C, …, O)."""
    assert isinstance(module, nn.Linear | Dense)
    weight_scale, bias_scale = (
        (module.weight_scale, module.bias_scale) if isinstance(module, Dense) else (1.0, 1.0)
    )
    samples, outputs, neurons = delta.shape[0], delta.shape[1], delta.shape[-1]
    delta = delta.reshape(samples, outputs, -1, neurons)
    factors: list[Factor] = []
    if trainable(module.weight):
        inputs = a.reshape(samples, -1, a.shape[-1])
        factors.append(Outer(inputs, delta.transpose(2, 3), weight_scale))
    if trainable(module.bias):
        factors.append(Direct(bias_scale * delta.sum(2)))
    return factors


def _padding(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return the padding left, right, above and below, in pixels."""
    sides: list[int] = []
    for axis in (1, 0):
        if module.padding == "valid":
            total, before = 0, 0
        elif module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            before = total // 2
        else:
            before = int(module.padding[axis])
            total = 2 * before
        sides += [before, total - before]
    return sides[0], sides[1], sides[2], sides[3]


def _convolution(module: nn.Module, a: Tensor, delta: Tensor) -> list[Factor]:
    """A convolution is a dense layer on patches; a (m, in, H, W), δ (m, C, out, H', W')."""
    assert isinstance(module, nn.Conv2d)
    delta = delta.flatten(3)
    factors: list[Factor] = []
    if trainable(module.weight):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        kernel = (module.kernel_size[0], module.kernel_size[1])
        patches = F.unfold(
            F.pad(a, _padding(module), mode=mode),
            kernel,
            dilation=(module.dilation[0], module.dilation[1]),
            stride=(module.stride[0], module.stride[1]),
        ).transpose(1, 2)
        # Groups do not share weights, so that their Gram matrices add up.
        factors += [
            Outer(inputs, cotangents)
            for inputs, cotangents in zip(
                patches.chunk(module.groups, dim=2), delta.chunk(module.groups, dim=2), strict=True
            )
        ]
    if trainable(module.bias):
        factors.append(Direct(delta.sum(3)))
    return factors


def _affine(
    module: nn.Module, normalised: Tensor, delta: Tensor, summed: tuple[int, ...]
) -> list[Factor]:
    """y = γ·â + β, with `summed` the axes of δ that share γ and β."""
    bias = getattr(module, "bias", None)
    assert isinstance(module.weight, Tensor)
    factors: list[Factor] = []
    if trainable(module.weight):
        product = delta * normalised.unsqueeze(1)
        factors.append(Direct((product.sum(summed) if summed else product).flatten(2)))
    if trainable(bias):
        factors.append(Direct((delta.sum(summed) if summed else delta).flatten(2)))
    return factors


def _batch_norm(module: nn.Module, a: Tensor, delta: Tensor) -> list[Factor]:
    """Batch normalisation with its running statistics; a (m, channels, …)."""
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    assert module.running_mean is not None
    assert module.running_var is not None
    shape = (-1, *(1,) * (a.ndim - 2))
    mean, variance = module.running_mean.view(shape), module.running_var.view(shape)
    normalised = (a - mean) / torch.sqrt(variance + module.eps)
    return _affine(module, normalised, delta, tuple(range(3, delta.ndim)))


def _layer_norm(module: nn.Module, a: Tensor, delta: Tensor) -> list[Factor]:
    """Layer normalisation over the last axes."""
    assert isinstance(module, nn.LayerNorm)
    normalised = F.layer_norm(a, module.normalized_shape, eps=module.eps)
    return _affine(
        module, normalised, delta, tuple(range(2, delta.ndim - len(module.normalized_shape)))
    )


def _group_norm(module: nn.Module, a: Tensor, delta: Tensor) -> list[Factor]:
    """Group normalisation; a (m, channels, …)."""
    assert isinstance(module, nn.GroupNorm)
    normalised = F.group_norm(a, module.num_groups, eps=module.eps)
    return _affine(module, normalised, delta, tuple(range(3, delta.ndim)))


GRADIENTS: dict[type[nn.Module], Gradients] = {
    nn.Linear: _dense,
    Dense: _dense,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
"""The layers whose parameters the NTK can handle: these exact types, not their subclasses."""
