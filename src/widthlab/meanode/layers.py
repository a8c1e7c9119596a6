"""What training changed inside the layers, for the phase diagram."""

from __future__ import annotations

import torch
from torch import Tensor

from widthlab.meanode.engine import Stack, activate_

GROUPS = 16
"""Into how many groups of neighbouring layers profiles along depth are averaged, at most."""


class LayerChanges:
    """Compares a stack with itself at the moment that this is made (after a forward pass)."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._u0 = stack.u.clone()
        self._v0 = None if stack.v is None else stack.v.clone()
        self._z0 = self._preactivations(stack.u)

    def measure(self) -> dict[str, Tensor]:
        """Return statistics (seeds,), and profiles along depth (seeds, groups), of a forward pass.

        With z = κ u·h and 0 for initialisation, each the root of a mean of squares over layers,
        units and inputs: `preactivation` z_0; `local_update` κ(u − u_0)·h, which is O(1) where
        local feature updates are maximal and tends to 0 in the lazy phase; `preactivation_change`
        (z − z_0), relative to z_0, which counts the change of h too; `branch_update`, a layer's own
        change of dh/ds by its outer weights, α·mean_j (v_j − v_j0)·s(z_j), over coordinates;
        `inner_change` and `outer_change`, |u − u_0|/|u_0| and |v − v_0|/|v_0|.
        `local_update_profile` and `preactivation_change_profile` are by group of layers.
        """
        stack = self.stack
        z = self._preactivations(stack.u)
        local = _squares(self._preactivations(stack.u - self._u0))
        moved, initial = _squares(z - self._z0), _squares(self._z0)
        found = {
            "preactivation": _root(initial),
            "local_update": _root(local),
            "preactivation_change": (moved.mean(0) / initial.mean(0)).sqrt(),
            "inner_change": _relative(stack.u, self._u0),
            "local_update_profile": _groups(local).sqrt().T,
            "preactivation_change_profile": (_groups(moved) / _groups(initial)).sqrt().T,
        }
        if stack.v is not None and self._v0 is not None:
            activate_(z, stack.network.activation)
            own = _flat(z) @ _flat(stack.v - self._v0)
            scale = stack.network.alpha / stack.network.hidden
            found["branch_update"] = scale * _root(_squares(own.view_as(stack.h[1:])))
            found["outer_change"] = _relative(stack.v, self._v0)
        return found

    def _preactivations(self, u: Tensor) -> Tensor:
        """Return κ u·h (L, seeds, inputs, units)."""
        z = torch.bmm(_flat(self.stack.h[:-1]), _flat(u).mT).mul_(self.stack.network.inner_scale)
        return z.view_as(self.stack.a)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, 1)


def _squares(tensor: Tensor) -> Tensor:
    """Return mean squares (L, seeds) of (L, seeds, …)."""
    return tensor.square().mean((-2, -1), dtype=torch.float64)


def _root(squares: Tensor) -> Tensor:
    return squares.mean(0).sqrt()


def _relative(weights: Tensor, initial: Tensor) -> Tensor:
    return _root(_squares(weights - initial)) / _root(_squares(initial))


def _groups(squares: Tensor) -> Tensor:
    """Return means (groups, seeds) over groups of neighbouring layers."""
    parts = torch.tensor_split(squares, min(GROUPS, len(squares)))
    return torch.stack([part.mean(0) for part in parts])
