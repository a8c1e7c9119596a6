"""How far networks are from the limit: the Euler and the sampling part of their error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.errors import WidthlabError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Deviation:
    """Errors of one quantity of several seeds against the limit, per coordinate (rms)."""

    total: float
    """Root of the mean square over seeds and coordinates of the distance to the limit."""
    sampling: float
    """Spread over seeds: root of the mean variance."""
    bias_square: float
    """Square of the bias of the seeds' mean, unbiased: spread²/S and the limit's own error are
    subtracted, so that it is negative where nothing is seen."""
    noise_square: float
    """What was subtracted."""
    alive: int
    """Seeds that count; those that are not finite do not."""
    diverged: int

    @property
    def euler(self) -> float:
        """The bias of the seeds' mean; NaN where it is not above the noise."""
        return float(np.sqrt(self.bias_square)) if self.bias_square > 0 else float("nan")


def deviation(values: ArrayLike, limit: ArrayLike, limit_error: ArrayLike = 0.0) -> Deviation:
    """Split the error of `values` (seeds, …) against `limit` (…) with standard errors.

    Raises WidthlabError where fewer than two seeds are finite.
    """
    seeds = np.asarray(values, dtype=np.float64)
    seeds = seeds.reshape(len(seeds), -1)
    finite = np.isfinite(seeds).all(1)
    living = seeds[finite]
    if len(living) < 2:
        raise WidthlabError(f"{len(living)} of {len(seeds)} seeds are finite, and two are needed")
    truth = np.asarray(limit, dtype=np.float64).reshape(-1)
    error = np.broadcast_to(np.asarray(limit_error, dtype=np.float64), np.shape(limit))
    variance = float(living.var(0, ddof=1).mean())
    noise = variance / len(living) + float(np.mean(error**2))
    return Deviation(
        total=float(np.sqrt(np.mean((living - truth) ** 2))),
        sampling=float(np.sqrt(variance)),
        bias_square=float(np.mean((living.mean(0) - truth) ** 2)) - noise,
        noise_square=noise,
        alive=len(living),
        diverged=int((~finite).sum()),
    )
