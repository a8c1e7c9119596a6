"""What bounds make of an expansion's losses: both sides of the inequality, and a fresh interval.

See `expansion` for what the states, parts and bounds are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from widthlab.scaling import mean_interval
from widthlab.statistics.alignment.blocks import Block
from widthlab.theory.generalisation import (
    bias_complexity,
    both_complexities,
    empirical_bernstein,
    hoeffding,
    is_vacuous,
    peeled,
    residual_complexity,
    uniform_deviation,
)

Array = NDArray[np.float64]

STATES = ("old", "stepped", "new")
PARTS = ("train", "step_test", "fresh")
BOUNDS = ("generic", "paired")
METHODS = ("bernstein", "hoeffding", "student")
VERDICTS = ("improves", "not certified", "vacuous bound", "worsens")
"""What a verdict's number means. `worsens` is a fresh interval's only."""


@dataclass(frozen=True)
class Reached:
    """The smallest class of blocks that holds f_η and f_new, and its deviations."""

    block: Block
    lipschitz: tuple[float, float]
    norms: tuple[float, float]
    typical: float
    """Root mean square over samples of Σₜ |ẑₜ|, ẑ = (z, 1)."""
    largest: float
    """The largest of them."""

    def deviation(self, samples: int, cap: float, delta: float) -> dict[str, float]:
        """Return ε of each bound for this many samples, and what losses can change at most.

        All are infinite where the block's parameters have diverged.
        """
        try:
            bias, delta = peeled(self.norms[0], delta)
            residual = 0.0
            if self.block.kind == "residual":
                residual, delta = peeled(self.norms[1], delta)
        except ValueError:
            return {"generic": np.inf, "paired": np.inf, "change": np.inf}
        steep, steeper = self.lipschitz
        complexity = bias_complexity(steep, bias, len(self.block.b), samples)
        change = steep * bias
        if self.block.kind == "residual":
            channels, typical = self.block.channels, self.typical
            own = residual_complexity(steeper, residual, channels, typical, samples)
            complexity = both_complexities(complexity, own)
            change += steeper * residual * self.largest
        change = min(change, cap)
        return {
            "generic": uniform_deviation(complexity, cap, samples, delta),
            "paired": uniform_deviation(complexity, 2 * change, samples, delta),
            "change": change,
        }


def inequality(
    plain: list[list[Array]], reached: Reached, cap: float, level: float, *, proven: bool
) -> dict[str, Any]:
    """Return losses, both sides of the inequality and the verdicts by bound."""
    clipped = [[_clipped(values, cap) for values in parts] for parts in plain]
    loss = np.array([[values.mean() for values in parts] for parts in clipped])
    old, stepped, new = range(3)
    m, k = (len(values) for values in plain[0][:2])
    delta_r = loss[old, 1] - loss[stepped, 1]
    delta_erm = loss[stepped, 0] - loss[new, 0]
    gain, delta = delta_r + delta_erm, (1 - level) / 2
    first, second = (reached.deviation(n, cap, delta) for n in (m, k))
    epsilon = np.array([[part[bound] for part in (first, second)] for bound in BOUNDS])
    one = reached.deviation(1, cap, delta)
    slack = 2 * epsilon.sum(axis=1)
    rise = np.full(len(BOUNDS), cap - loss[old, 1])
    rise[1] = min(rise[1], first["change"])
    verdicts = []
    for number in range(len(BOUNDS)):
        # A loss would be no news either, but a larger Lipschitz constant could tell it apart.
        if is_vacuous(slack[number], max(gain, 0.0), rise[number]):
            verdicts.append(VERDICTS.index("vacuous bound"))
        else:
            certain = proven and gain > slack[number]
            verdicts.append(VERDICTS.index("improves" if certain else "not certified"))
    # ε falls as 1/√n, so that 4 ε(n) = gain where n = (4 ε(1)/gain)².
    needed = [(4 * one[bound] / gain) ** 2 if gain > 0 else np.inf for bound in BOUNDS]
    left, right = loss[new, 1], loss[old, 1] - gain + slack
    return {
        "loss": loss,
        "plain_loss": np.array([[values.mean() for values in parts] for parts in plain]),
        "clipped": np.array([[np.mean(~(values <= cap)) for values in parts] for parts in plain]),
        "delta_r": delta_r,
        "delta_erm": delta_erm,
        "left_side": left,
        "right_side": right,
        "needed": left - (loss[old, 1] - gain),
        "epsilon_train": epsilon[:, 0],
        "epsilon_test": epsilon[:, 1],
        "holds": left <= right,
        "largest_rise": rise,
        "verdict": np.array(verdicts, dtype=np.int8),
        "samples_needed": np.array(needed),
    }


def fresh_change(plain: list[list[Array]], cap: float, level: float) -> dict[str, Any]:
    """Return the change of the loss on fresh samples, with intervals of each method."""
    change = _clipped(plain[2][2], cap) - _clipped(plain[0][2], cap)
    mean, n, delta = float(change.mean()), len(change), 1 - level
    half = hoeffding(n, 2 * cap, delta)
    student = mean_interval(change, level=level)
    # One sample has no variance, and Hoeffding's interval alone.
    own = empirical_bernstein(change, 2 * cap, delta) if n > 1 else np.inf
    low = np.array([mean - own, mean - half, student.low])
    high = np.array([mean + own, mean + half, student.high])
    word = "improves" if high[0] < 0 else "worsens" if low[0] > 0 else "not certified"
    return {
        "change": mean,
        "change_low": low,
        "change_high": high,
        "fresh_verdict": np.int8(VERDICTS.index(word)),
    }


def _clipped(values: Array, cap: float) -> Array:
    return np.minimum(np.where(np.isnan(values), cap, values), cap)
