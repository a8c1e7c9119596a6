"""A dense layer of random weights that are never made: exact in distribution, linear in width.

A Gaussian matrix W shows a network only its products with the inputs H of the layer and, on the
way back, with the gradients Δ at its outputs. Write W in whitened form, standard normal, and let
the rows of Q be an orthonormal basis of the span of the n inputs, H = RᵀQ. Then

- forward, W Qᵀ =: Eᵀ is standard normal, and Z = H Wᵀ = Rᵀ E;
- backward, W is known along Q and as good as new elsewhere, since Δ depends on W through Z only:
  Δ W = F + (Δ Eᵀ − F Qᵀ) Q, where the rows of F = Δ W̃ with a fresh W̃ have the Gram matrix Δ Δᵀ
  and are made as the forward pass makes Z.

A bias is one more input that is constant. The bases come from a QR decomposition, which is
orthonormal to rounding whatever the rank: where inputs repeat, have died or are more than the
layer is wide, R is singular, Q holds some further directions, and what W is along them is drawn
like the rest. Nothing is inverted and nothing regularised. Cost and memory are O(n N) numbers and
O(n² N) operations for a layer of width N, where the matrix has N² entries.

Source: conditioning of Gaussian matrices on their products, as in the analysis of approximate
message passing (Bayati & Montanari 2011) and Tensor Programs (Yang 2019).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from widthlab.models.layers import Dense


class Unseen(nn.Module):
    """The weights of a `Dense` layer at initialisation, drawn only where they are looked at.

    Maps h (draws, n, inputs) to z (draws, n, outputs), with weights of its own for every draw,
    shared by the n rows. It has no parameters. A pass forward draws a new layer; one pass backward
    may follow it, and gives ∂/∂h with the same weights.
    """

    def __init__(self, dense: Dense, generator: torch.Generator) -> None:
        super().__init__()
        self.inputs, self.outputs = dense.inputs, dense.outputs
        self.weight_scale, self.bias_scale = dense.weight_scale, dense.bias_scale
        self.weight_std = dense.weight_scale * dense.weight_std
        self.has_bias = dense.bias is not None
        self.bias_std = dense.bias_scale * dense.bias_std if self.has_bias else 0.0
        self.generator = generator

    def forward(self, h: Tensor) -> Tensor:
        """Return z = W h + b for weights that are drawn now."""
        z: Tensor = _Product.apply(h, self)
        return z

    def whitened(self, h: Tensor) -> Tensor:
        """Return the inputs on which a standard normal matrix acts, (draws, n, inputs [+ 1])."""
        seen = self.weight_std * h
        if self.bias_std == 0:
            return seen
        return torch.cat([seen, seen.new_full((*seen.shape[:-1], 1), self.bias_std)], dim=-1)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.inputs}, {self.outputs}"


class _Product(torch.autograd.Function):
    """The product of inputs with an unseen matrix, and of gradients with its transpose."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, layer: Unseen) -> Tensor:
        r = torch.linalg.qr(layer.whitened(h).mT, mode="r").R
        e = normal((*r.shape[:-1], layer.outputs), h.device, layer.generator)
        ctx.save_for_backward(h, e)
        ctx.layer, ctx.spent = layer, False
        z: Tensor = r.mT @ e.to(h.dtype)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, None]:
        if ctx.spent:
            raise RuntimeError("the weights of this pass have been used; run forward again")
        ctx.spent = True
        h, e = ctx.saved_tensors
        layer: Unseen = ctx.layer
        whitened = layer.whitened(h)
        # The basis is made again, which is cheaper than keeping it.
        q = torch.linalg.qr(whitened.mT).Q
        r = torch.linalg.qr(delta.mT, mode="r").R
        new = normal((*r.shape[:-1], whitened.shape[-1]), h.device, layer.generator)
        fresh = r.mT @ new.to(h.dtype)
        product = fresh + (delta @ e.mT.to(h.dtype) - fresh @ q) @ q.mT
        return layer.weight_std * product[..., : layer.inputs], None


def normal(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers, drawn in single precision as those of real networks are."""
    return torch.empty(shape, dtype=torch.float32, device=device).normal_(generator=generator)
