"""Gauss–Legendre collocation of an ODE in depth s ∈ [0, 1], and of its adjoint.

On each of a few equal panels the right-hand side is interpolated at Q Gauss nodes, which makes an
implicit Runge–Kutta method of order 2Q; its stages are solved by Picard iteration. Gauss methods
are symplectic, so that the adjoint equation solved by the same method is the exact gradient of the
discretised problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial import legendre
from numpy.typing import NDArray
from torch import Tensor

from widthlab.errors import WidthlabError

Field = Callable[[Tensor, slice], Tensor]
"""dy/ds at nodes: takes y (nodes, …) there and which nodes of all they are."""

TOLERANCE = 1e-12
"""Change of the last Picard iteration, relative to the largest entry."""
ITERATIONS = 200


@dataclass(frozen=True)
class Collocation:
    """A rule on [0, 1] with `panels` panels of `order` nodes each."""

    order: int
    panels: int

    def __post_init__(self) -> None:
        if self.order < 1 or self.panels < 1:
            raise WidthlabError(
                f"order and panels must be at least 1, not {self.order} and {self.panels}"
            )

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.order * self.panels

    @property
    def nodes(self) -> Tensor:
        """Positions s of all nodes, rising, float64."""
        starts = torch.arange(self.panels, dtype=torch.float64)[:, None]
        return ((starts + self._local_nodes) / self.panels).flatten()

    @property
    def weights(self) -> Tensor:
        """Quadrature weights of all nodes, which sum to 1."""
        return (self._integrals(1.0) / self.panels).repeat(self.panels)

    def forward(self, start: Tensor, field: Field, guess: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Solve dy/ds = f from y(0).

        Returns y at all nodes (nodes, …), f there, and y(1). `guess` (nodes, …) starts the
        iteration. Raises WidthlabError where it does not converge.
        """
        matrix = self._matrix
        y, slopes = guess.clone(), torch.empty_like(guess)
        for panel in range(self.panels):
            nodes = slice(panel * self.order, (panel + 1) * self.order)
            y[nodes], slopes[nodes] = self._stages(start, field, y[nodes], nodes, matrix)
            start = start + self._sum(self._integrals(1.0), slopes[nodes])
        return y, slopes, start

    def backward(self, end: Tensor, field: Field, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Solve −db/ds = f from b(1) downwards; return b at all nodes and b(0)."""
        whole = self._integrals(1.0)
        matrix = whole - self._matrix
        b = guess.clone()
        for panel in reversed(range(self.panels)):
            nodes = slice(panel * self.order, (panel + 1) * self.order)
            b[nodes], slopes = self._stages(end, field, b[nodes], nodes, matrix)
            end = end + self._sum(whole, slopes)
        return b, end

    def between(self, start: Tensor, slopes: Tensor, positions: list[float]) -> Tensor:
        """Return y (positions, …) anywhere in [0, 1], from y(0) and the slopes at all nodes."""
        found = []
        for position in positions:
            panel = min(int(position * self.panels), self.panels - 1)
            y = start
            for before in range(panel + 1):
                nodes = slice(before * self.order, (before + 1) * self.order)
                part = min(position * self.panels - before, 1.0)
                y = y + self._sum(self._integrals(part), slopes[nodes])
            found.append(y)
        return torch.stack(found)

    def _stages(
        self, start: Tensor, field: Field, y: Tensor, nodes: slice, matrix: Tensor
    ) -> tuple[Tensor, Tensor]:
        for _ in range(ITERATIONS):
            slopes = field(y, nodes)
            new = start + self._sum(matrix, slopes)
            change = (new - y).abs().max()
            y = new
            if change <= TOLERANCE * new.abs().max():
                return y, slopes
            if not bool(change.isfinite()):
                break
        raise WidthlabError(
            f"the mean ODE was not solved by {ITERATIONS} iterations on {self.panels} panels of "
            f"{self.order} nodes; use more panels, a smaller alpha or a smaller eta"
        )

    def _sum(self, weights: Tensor, slopes: Tensor) -> Tensor:
        """Return ∫ of the interpolated slopes (nodes, …) over part of a panel, by weights."""
        weights = weights.to(slopes.device)
        total: Tensor = torch.tensordot(weights, slopes, ([-1], [0]))
        return total / self.panels

    @property
    def _local_nodes(self) -> Tensor:
        return torch.from_numpy((legendre.leggauss(self.order)[0] + 1) / 2)

    @property
    def _matrix(self) -> Tensor:
        """Row i integrates from a panel's start to its node i."""
        return torch.stack([self._integrals(float(node)) for node in self._local_nodes])

    def _integrals(self, end: float) -> Tensor:
        """Return ∫_0^end of every Lagrange polynomial of one panel [0, 1]."""
        nodes, weights = legendre.leggauss(self.order)
        degrees = range(self.order)
        basis = np.stack([legendre.legval(nodes, _unit(k)) for k in degrees], axis=1)
        primitives = [legendre.legint(_unit(k), lbnd=-1) for k in degrees]
        integrals = np.array([legendre.legval(2 * end - 1, p) for p in primitives])
        # Lagrange polynomials in Legendre's basis: ℓ_i = w_i Σ_k (2k + 1)/2·P_k(x_i) P_k.
        scale = (2 * np.arange(self.order) + 1) / 2
        return torch.from_numpy(weights * (basis @ (scale * integrals)) / 2)


def _unit(degree: int) -> NDArray[np.float64]:
    vector: NDArray[np.float64] = np.eye(degree + 1)[degree]
    return vector
