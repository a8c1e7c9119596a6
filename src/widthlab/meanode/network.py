"""Which residual network: block, sizes, scales, and the learning rates of its limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from widthlab.errors import WidthlabError

Block = Literal["two_layer", "perceptron", "one_layer"]
Activation = Literal["tanh", "relu", "linear"]

ALPHAS = (1e-100, 1e100)
"""Smallest and largest α, of which the square is a number."""


@dataclass(frozen=True)
class ResidualNetwork:
    """h_l = h_{l−1} + (α/(LM)) Σ_j φ(h_{l−1}, Z_{j,l}), l = 1 … L, with h_0 given.

    Blocks φ, and the standard deviation of the entries of their Gaussian weights:

    - `two_layer`: v·s(u·h/D); σ_u √D and σ_v √D, so that pre-activations and features are O(1);
    - `perceptron`: v·s(u·h); σ_u and σ_v; a generic block at fixed D;
    - `one_layer`: s(Z h) with a D×D matrix Z; σ_u; generic too.

    Source: Chizat, The Hidden Width of Deep ResNets (2025), for the first the section on two-layer
    perceptron blocks, for the others the general set-up. Raises WidthlabError for sizes and scales
    that make no network.
    """

    depth: int
    """L, number of blocks."""
    hidden: int
    """M, units in each block."""
    width: int
    """D, coordinates of the embedding."""
    block: Block = "two_layer"
    activation: Activation = "tanh"
    alpha: float = 1.0
    """α, branch scale (dimensionless)."""
    sigma_u: float = 1.0
    """Scale of inner weights, in units of √D for two_layer blocks."""
    sigma_v: float = 1.0
    """Scale of outer weights, in units of √D for two_layer blocks; one_layer blocks have none."""

    def __post_init__(self) -> None:
        for name, size in (
            ("depth", self.depth),
            ("hidden", self.hidden),
            ("width", self.width),
        ):
            if int(size) != size or size < 1:
                raise WidthlabError(f"{name} must be a whole number of at least 1, not {size}")
        if not ALPHAS[0] <= self.alpha <= ALPHAS[1]:
            raise WidthlabError(
                f"alpha must be positive, from {ALPHAS[0]:g} to {ALPHAS[1]:g}, not {self.alpha}: "
                "learning rates go as 1/alpha², and without branches there is nothing to train"
            )
        for name, scale in (("sigma_u", self.sigma_u), ("sigma_v", self.sigma_v)):
            if not (math.isfinite(scale) and scale >= 0):
                raise WidthlabError(f"{name} must be finite and not negative, not {scale}")
        if self.block not in get_args(Block):
            raise WidthlabError(
                f"unknown block '{self.block}'; choose among {', '.join(get_args(Block))}"
            )
        if self.activation not in get_args(Activation):
            raise WidthlabError(
                f"unknown activation '{self.activation}'; choose among "
                f"{', '.join(get_args(Activation))}"
            )

    @property
    def units(self) -> int:
        """Activations in a block: M, or M·D in one_layer blocks."""
        return self.hidden * (self.width if self.block == "one_layer" else 1)

    @property
    def branch_scale(self) -> float:
        """α/(LM)."""
        return self.alpha / (self.depth * self.hidden)

    @property
    def inner_scale(self) -> float:
        """κ in the pre-activation κ·u·h."""
        return 1.0 / self.width if self.block == "two_layer" else 1.0

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviations of the entries of u and of v at initialisation."""
        unit = math.sqrt(self.width) if self.block == "two_layer" else 1.0
        return self.sigma_u * unit, self.sigma_v * unit

    @property
    def limit_rate(self) -> float:
        """D for two_layer blocks, 1 for others: the factor of η in the limit's learning rate."""
        return float(self.width) if self.block == "two_layer" else 1.0

    @property
    def raw_rate(self) -> float:
        """What η is multiplied by in a finite network: L·M·D/α², without D in generic blocks."""
        return self.depth * self.hidden * self.limit_rate / self.alpha**2


def learning_rates(eta: float | tuple[float, float]) -> tuple[float, float]:
    """Return η of inner and of outer weights; raises WidthlabError where one is no rate."""
    pair = eta if isinstance(eta, tuple) else (eta, eta)
    if not all(math.isfinite(rate) and rate >= 0 for rate in pair):
        raise WidthlabError(f"eta must be finite and not negative, not {eta}")
    return pair


def recorded_steps(steps: int, record: tuple[int, ...] | list[int] | None) -> list[int]:
    """Return the steps that are measured: `record`, or all of 0 … steps.

    Raises WidthlabError for steps outside, twice, or out of order.
    """
    if steps < 0:
        raise WidthlabError(f"steps must not be negative, not {steps}")
    found = list(range(steps + 1)) if record is None else [int(step) for step in record]
    if not found or found != sorted(set(found)) or found[0] < 0 or found[-1] > steps:
        raise WidthlabError(
            f"record must list rising steps between 0 and {steps}, not {list(found)}"
        )
    return found
