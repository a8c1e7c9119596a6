"""Validity windows: where a prediction of order 1/N leaves the truth by 5 %.

A departure is predicted/true − 1 by layer. The window ends where its size first passes LIMIT,
interpolated between layers. Truth is an exact law, which has no error, or the mean over draws,
whose error comes from resampling draws; where two standard errors of the departure exceed LIMIT
before it is passed, the draws cannot tell, and the window's end is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from widthlab.statistics.reduced import SignalDraws
    from widthlab.theory.corrections import Corrections

Array = NDArray[np.float64]

LIMIT = 0.05
"""Relative departure at which a prediction is said to fail."""
QUANTITIES = {
    "mean": "mean of q",
    "variance": "variance of q",
    "typical": "typical value exp E log(q/q₀)",
}
"""What is predicted, in words."""
RESAMPLES = 400


@dataclass(frozen=True)
class Departure:
    """predicted/true − 1 by layer, shape (layers,), and resampled, (resamples, layers).

    The departure from an exact law has one resample, itself.
    """

    value: Array
    resampled: Array

    @property
    def error(self) -> Array:
        """Standard error by layer."""
        return np.asarray(self.resampled.std(axis=0))


@dataclass(frozen=True)
class Window:
    """The end of a window in layers, infinite where the limit is not passed.

    `value` is NaN, with the reason in `note`, where noise hides it.
    """

    value: float
    low: float
    high: float
    resampled: Array
    note: str = ""

    @property
    def known(self) -> bool:
        """Whether the limit was passed, in the estimate and in all but few resamples."""
        return bool(np.isfinite([self.value, self.low, self.high]).all())


def predictions(corrections: Corrections, width: int) -> dict[str, Array]:
    """Return what a theory of order 1/N predicts: mean and variance of q, E log(q/q₀)."""
    return {
        "mean": corrections.expected(width),
        "variance": corrections.spread(width),
        "typical": corrections.log_mean(width),
    }


def from_draws(
    draws: SignalDraws, limit: Array, predicted: Mapping[str, Array], seed: int = 0
) -> dict[str, Departure]:
    """Return the departures of predictions from the means over draws about the block law `limit`.

    Draws are resampled by their weights, the same for all layers and quantities.
    """
    n = len(draws.shift)
    rng = np.random.default_rng(seed)
    weights = np.vstack([np.ones(n), rng.multinomial(n, np.full(n, 1 / n), RESAMPLES)]) / n
    shift, square = weights @ draws.shift, weights @ draws.square
    alive = np.isfinite(draws.log)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = (weights @ np.where(alive, draws.log, 0.0)) / (weights @ alive.astype(float))
        # the square of a mean over draws is too large by the mean's variance
        truth = {
            "mean": limit * (1 + shift),
            "variance": limit**2 * (square - shift**2 + shift[1:].var(axis=0)),
            "typical": log,
        }
        found = {name: _ratio(name, predicted[name], truth[name]) for name in truth}
    return {name: Departure(values[0], values[1:]) for name, values in found.items()}


def from_law(predicted: Mapping[str, Array], exact: Mapping[str, Array]) -> dict[str, Departure]:
    """Return the departures from exact laws, by the names of the laws that are known."""
    made = {}
    for name, truth in exact.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            value = _ratio(name, predicted[name], truth)
        made[name] = Departure(value, value[None])
    return made


def window(departure: Departure) -> Window:
    """Return where a departure first passes the limit, with a 95 % interval over resamples."""
    value = float(crossing(departure.value[None])[0])
    resampled = crossing(departure.resampled)
    low, high = np.quantile(resampled, [0.025, 0.975], method="closest_observation")
    hidden = np.flatnonzero(2 * departure.error > LIMIT)
    if len(hidden) and hidden[0] <= np.ceil(value):  # the layer at which it is passed counts
        note = f"two standard errors exceed {LIMIT:.0%} from layer {hidden[0]} on"
        return Window(np.nan, np.nan, np.nan, resampled, note)
    note = "" if np.isfinite(value) else f"within {LIMIT:.0%} at every layer"
    return Window(value, float(low), float(high), resampled, note)


def crossing(departures: Array) -> Array:
    """Return the layer at which |departure| first passes the limit: (batch, layers) → (batch,).

    Departures that are not finite (0/0 where nothing fluctuates yet) count as none.
    """
    size = np.abs(np.nan_to_num(departures, nan=0.0, posinf=np.inf))
    beyond = size > LIMIT
    first = np.argmax(beyond, axis=1)
    rows = np.arange(len(size))
    above, below = size[rows, first], size[rows, np.maximum(first - 1, 0)]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(first > 0, (LIMIT - below) / (above - below), 0.0)
    place = np.maximum(first - 1, 0) + share
    return np.where(beyond.any(axis=1), place, np.inf)


def _ratio(name: str, predicted: Array, truth: Array) -> Array:
    if name == "typical":  # both are logarithms; beyond e^±50 the size of a departure is nothing
        return np.asarray(np.expm1(np.clip(predicted - truth, -50, 50)))
    # where nothing fluctuates, as the input of a perceptron, there is nothing to depart from
    return np.asarray(np.where(predicted == 0, np.nan, predicted / truth - 1))
