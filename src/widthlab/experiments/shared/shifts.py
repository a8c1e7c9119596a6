"""Where a small bias can be seen under the noise of the mean that shows it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLOORS = 5.0
"""How many times its noise a bias must be, if it follows its law, to enter a fit."""


def stands_out(halves: Mapping[int, Array], exponent: float, floor: float = 0.0) -> list[int]:
    """Return the sizes at which a bias that falls by the law stands out of its noise.

    `halves` are, by size, means of halves of blocks (blocks, 2, k) as `kernel_moments.halves` makes
    them; the law is extrapolated from the smallest size, so that the data at a size do not choose
    it. `floor` is a noise that all have in common, of what the bias is a distance from.
    """
    from widthlab.statistics.kernel_moments import distance

    known = {size: own for size, own in sorted(halves.items()) if len(own)}
    if not known or not np.isfinite(floor):
        return []
    smallest = min(known)
    bias = float(distance(known[smallest][None])[0])
    return [
        size
        for size, own in known.items()
        if bias * (size / smallest) ** exponent > FLOORS * np.hypot(noise(own), floor)
    ]


def noise(halves: Array) -> float:
    """Return the noise of the mean of halves (blocks, 2, k), in norm."""
    parts = halves.reshape(-1, halves.shape[-1])
    return float(np.sqrt(parts.var(axis=0, ddof=1).sum() / len(parts)))
