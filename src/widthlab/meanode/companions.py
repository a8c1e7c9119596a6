"""Networks linearised in their weights about their initial ones, many seeds side by side.

Two ways to linearise, which agree as long as the stream hardly moves:

- `tangent`: the whole network, h_L = h_L(Z_0) + ∂h_L/∂Z·δZ, so that its kernel never changes;
- `lazy`: every block, φ(h, Z_0) + ∂φ/∂Z(h, Z_0)·δZ, at the stream h that results: linear in its
  weights but not in h. This is what networks tend to as α grows (Chizat 2025, the lazy ODE), since
  training moves the stream by O(1) there too.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from widthlab.meanode.engine import Stack, activate_, add_product_, chain_

Companion = Literal["tangent", "lazy"]


class Trained(Protocol):
    """Networks that gradient descent moves."""

    def forward(self) -> Tensor:
        """Return the last embeddings (seeds, inputs, D)."""

    def descend(self, gradient: Tensor, rate_u: float, rate_v: float) -> object:
        """Take one step at raw rates, from the gradient by the last embeddings."""


def companion(kind: Companion, stack: Stack) -> Trained:
    """Return the linearisation about the present weights of a stack, which become its own."""
    stack.forward()
    return TangentStack(stack) if kind == "tangent" else LazyStack(stack)


class TangentStack:
    """The linearisation of a stack's networks in their weights, about those weights.

    δh_L = Σ ∂h_L/∂Z·δZ with ∂h_L/∂Z frozen. Keeps the stack's weights, embeddings and activations
    of the last forward pass as they are now, so give it a stack of its own copies.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack, self.network = stack, stack.network
        self.du = torch.zeros_like(stack.u)
        self.dv = None if stack.v is None else torch.zeros_like(stack.v)
        self._dh = torch.zeros_like(stack.h[0])
        self._da = torch.empty_like(stack.a[0])

    def forward(self) -> Tensor:
        """Return the linearised h_L (seeds, inputs, D)."""
        stack, kappa = self.stack, self.network.inner_scale
        dh, da, s = self._dh.zero_(), self._da, self.network.activation
        for layer in range(self.network.depth):
            da.baddbmm_(dh, stack.u[layer].mT, beta=0, alpha=kappa)
            da.baddbmm_(stack.h[layer], self.du[layer].mT, alpha=kappa)
            chain_(da, stack.a[layer], s)
            if self.dv is not None:
                add_product_(dh, stack.a[layer], self.dv[layer], self.network.branch_scale)
            stack.add_branch(layer, dh, da, dh)
        return stack.h[-1] + dh

    def descend(self, gradient: Tensor, rate_u: float, rate_v: float) -> None:
        """Take one step of gradient descent at raw rates; `gradient` is overwritten."""
        stack, b, g = self.stack, gradient, self._da
        kappa, scale = self.network.inner_scale, self.network.branch_scale
        for layer in reversed(range(self.network.depth)):
            chain_(stack.pull_branch(layer, b, g), stack.a[layer], self.network.activation)
            if self.dv is not None:
                self.dv[layer].baddbmm_(stack.a[layer].mT, b, alpha=-rate_v * scale)
            self.du[layer].baddbmm_(g.mT, stack.h[layer], alpha=-rate_u * kappa)
            add_product_(b, g, stack.u[layer], kappa)


class LazyStack:
    """Networks whose blocks are linearised in their weights about those of a stack.

    Takes the stack's weights and buffers for its own. With ReLU the kink of s' is left out of the
    gradient by h, as autograd would leave it out.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack, self.network = stack, stack.network
        self.du = torch.zeros_like(stack.u)
        self.dv = None if stack.v is None else torch.zeros_like(stack.v)
        # p = κ δu·h of every layer; what is pulled back to z and to p.
        self._p = torch.empty_like(stack.a)
        self._pull_z, self._pull_p = torch.empty_like(stack.a[0]), torch.empty_like(stack.a[0])

    def forward(self) -> Tensor:
        """Return h_L (seeds, inputs, D)."""
        stack, net = self.stack, self.network
        moved = torch.empty_like(stack.a[0])
        for layer in range(net.depth):
            h, a, p, out = stack.h[layer], stack.a[layer], self._p[layer], stack.h[layer + 1]
            a.baddbmm_(h, stack.u[layer].mT, beta=0, alpha=net.inner_scale)
            activate_(a, net.activation)
            p.baddbmm_(h, self.du[layer].mT, beta=0, alpha=net.inner_scale)
            torch.add(a, chain_(moved.copy_(p), a, net.activation), out=moved)
            stack.add_branch(layer, h, moved, out)
            if self.dv is not None:
                add_product_(out, a, self.dv[layer], net.branch_scale)
        return stack.h[-1]

    def descend(self, gradient: Tensor, rate_u: float, rate_v: float) -> None:
        """Take one step of gradient descent at raw rates; `gradient` is overwritten."""
        stack, net, b, s = self.stack, self.network, gradient, self.network.activation
        by_z, by_p = self._pull_z, self._pull_p
        for layer in reversed(range(net.depth)):
            h, a, p = stack.h[layer], stack.a[layer], self._p[layer]
            stack.pull_branch(layer, b, by_p)
            by_z.copy_(by_p)
            if self.dv is not None:
                by_z.baddbmm_(b, self.dv[layer].mT, alpha=net.branch_scale)
            if s == "tanh":  # s''/s' = −2 a
                by_z.sub_(2 * by_p * a * p)
            chain_(by_z, a, s)
            chain_(by_p, a, s)
            if self.dv is not None:
                self.dv[layer].baddbmm_(a.mT, b, alpha=-rate_v * net.branch_scale)
            add_product_(b, by_z, stack.u[layer], net.inner_scale)
            add_product_(b, by_p, self.du[layer], net.inner_scale)
            self.du[layer].baddbmm_(by_p.mT, h, alpha=-rate_u * net.inner_scale)
