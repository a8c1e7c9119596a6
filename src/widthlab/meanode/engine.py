"""Forward and backward passes of many residual networks side by side, written by hand.

Every layer is a handful of batched matrix products over seeds, on slices and buffers that are made
once; gradient descent updates a layer's weights while its backward pass is in the cache. Memory is
linear in depth: weights, embeddings h_l and activations, and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from widthlab.meanode.network import ResidualNetwork


def activate_(z: Tensor, name: str) -> Tensor:
    """Put s(z) into the place of z."""
    if name == "tanh":
        return z.tanh_()
    return z.relu_() if name == "relu" else z


def chain_(gradient: Tensor, a: Tensor, name: str) -> Tensor:
    """Multiply a gradient by s'(z), in place, with a = s(z); s'(0) = 0 for ReLU."""
    if name == "tanh":
        torch.ops.aten.tanh_backward.grad_input(gradient, a, grad_input=gradient)
    elif name == "relu":
        torch.ops.aten.threshold_backward.grad_input(gradient, a, 0, grad_input=gradient)
    return gradient


def add_product_(target: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Add scale·left·right, matrix products over seeds, in place."""
    if left.shape[-1] == 1:  # an outer product, for which the matrix product is slow
        target.addcmul_(left, right, value=scale)
    else:
        target.baddbmm_(left, right, alpha=scale)


class Stack:
    """The same network with the weights of several seeds.

    `h` (L + 1, seeds, inputs, D) and `a` (L, seeds, inputs, units) hold the last forward pass.
    """

    def __init__(self, network: ResidualNetwork, u: Tensor, v: Tensor | None, h0: Tensor) -> None:
        self.network, self.u, self.v = network, u, v
        seeds, inputs = u.shape[1], len(h0)
        self.h = u.new_empty(network.depth + 1, seeds, inputs, network.width)
        self.h[0] = h0
        self.a = u.new_empty(network.depth, seeds, inputs, network.units)
        # Views cost as much as small products do: made once.
        self._h, self._a, self._u = self.h.unbind(), self.a.unbind(), u.unbind()
        self._at, self._ut = self.a.mT.unbind(), u.mT.unbind()
        self._v = None if v is None else v.unbind()
        self._vt = None if v is None else v.mT.unbind()
        self._pull = torch.empty_like(self.a[0])
        self._pull_t = self._pull.mT

    def forward(self) -> Tensor:
        """Return h_L (seeds, inputs, D) for the present weights."""
        kappa, s = self.network.inner_scale, self.network.activation
        for layer, (h, a, ut) in enumerate(zip(self._h, self._a, self._ut, strict=False)):
            activate_(a.baddbmm_(h, ut, beta=0, alpha=kappa), s)
            self.add_branch(layer, h, a, self._h[layer + 1])
        return self._h[-1]

    def descend(self, gradient: Tensor, rate_u: float, rate_v: float) -> Tensor:
        """Take one step of gradient descent, and return the gradient by h_0.

        `gradient` (seeds, inputs, D) is that by h_L after `forward`, and is overwritten; rates
        are raw, as in W ← W − rate·∂loss/∂W.
        """
        kappa, scale = self.network.inner_scale, self.network.branch_scale
        s, b, g, gt = self.network.activation, gradient, self._pull, self._pull_t
        for layer in reversed(range(self.network.depth)):
            a, u = self._a[layer], self._u[layer]
            chain_(self.pull_branch(layer, b, g), a, s)
            if self._v is not None:
                self._v[layer].baddbmm_(self._at[layer], b, alpha=-rate_v * scale)
            add_product_(b, g, u, kappa)
            u.baddbmm_(gt, self._h[layer], alpha=-rate_u * kappa)
        return b

    def add_branch(self, layer: int, h: Tensor, a: Tensor, out: Tensor) -> None:
        """Set out = h + (α/(LM)) Σ_j v_j a_j."""
        scale = self.network.branch_scale
        if self._v is None:
            per_unit = a.view(*h.shape[:-1], self.network.hidden, self.network.width)
            torch.add(h, per_unit.sum(-2), alpha=scale, out=out)
        elif a.shape[-1] == 1:
            torch.addcmul(h, a, self._v[layer], value=scale, out=out)
        else:
            torch.baddbmm(h, a, self._v[layer], alpha=scale, out=out)

    def pull_branch(self, layer: int, b: Tensor, out: Tensor) -> Tensor:
        """Set out_j = (α/(LM)) b·v_j, the gradient by the activations; return it."""
        scale = self.network.branch_scale
        if self._vt is None:
            per_unit = out.view(*b.shape[:-1], self.network.hidden, self.network.width)
            torch.mul(b[..., None, :].expand_as(per_unit), scale, out=per_unit)
            return out
        return out.baddbmm_(b, self._vt[layer], beta=0, alpha=scale)
