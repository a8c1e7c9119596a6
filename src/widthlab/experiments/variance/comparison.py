"""One cell of the variance experiment beside what theory says of its network."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.laws import (
    exact_signals,
    signal_corrections,
    signal_laws,
    signal_step,
    small_branch_corrections,
)
from widthlab.experiments.variance import windows
from widthlab.specs import Perceptron
from widthlab.statistics.reduced import SignalDraws, plain, reduced, without_embedding
from widthlab.theory.corrections import Corrections

Array = NDArray[np.float64]

EXACT_DRAWS = 20_000
"""Draws from an exact law, so many that their own error does not matter."""
TRUTH_DRAWS = 10_000
"""Those of them that serve as truth for a validity window."""
PROBABILITIES = np.array([0.01, 0.02, 0.05, *np.arange(0.1, 0.95, 0.1), 0.95, 0.98, 0.99])
"""Where quantiles are compared."""
THEORIES = {
    "complete": "all of order 1/N",
    "small_branch": "the published leading order in a small branch",
}


@dataclass(frozen=True)
class Comparison:
    """What the draws of one cell say about the theories of its network."""

    moments: dict[str, Array] = field(default_factory=dict)
    """Variables by layer, each (depth + 1,): see `MOMENTS`."""
    departures: dict[tuple[str, str], windows.Departure] = field(default_factory=dict)
    """By theory and quantity."""
    last: Array = field(default_factory=lambda: np.empty(0))
    """q_L of the first input, (draws,)."""
    exact: Array = field(default_factory=lambda: np.empty(0))
    """Draws of the same from the exact law; empty without one."""
    corrected: tuple[float, float] | None = None
    """Mean and variance of q_L to order 1/N."""

    @property
    def windows(self) -> dict[tuple[str, str], windows.Window]:
        """The validity windows, by theory and quantity."""
        return {key: windows.window(one) for key, one in self.departures.items()}


MOMENTS = {
    "shift": "mean of q over the block law, minus 1",
    "shift_error": "standard error of shift",
    "relative_variance": "variance of q over draws, over the block law squared",
    "relative_variance_error": "standard error of relative_variance",
}
CORRECTED = {
    "corrected_shift": "shift to order 1/N",
    "corrected_relative_variance": "relative_variance to order 1/N",
    "corrected_log_mean": "mean of log(q_l / q_0) to order 1/N",
    "corrected_log_variance": "variance of log(q_l / q_0) to order 1/N",
    "small_branch_shift": "shift to order 1/N by the published theory of small branches",
    "small_branch_relative_variance": "relative_variance by the same",
}


def corrected(architecture: Perceptron, width: int, depth: int) -> dict[str, Array]:
    """Return the `CORRECTED` variables that the network has, each (depth + 1,)."""
    found: dict[str, Array] = {}
    corrections = signal_corrections(architecture, depth)
    if corrections is not None:
        found["corrected_log_mean"] = corrections.log_mean(width)
        found["corrected_log_variance"] = corrections.log_variance(width)
    published = small_branch_corrections(architecture, depth)
    for name, one in (("corrected", corrections), ("small_branch", published)):
        if one is not None:
            found[f"{name}_shift"] = one.mean / one.block_law / width
            found[f"{name}_relative_variance"] = one.spread(width) / one.block_law**2
    return found


def compare(architecture: Perceptron, width: int, q: Array) -> Comparison:
    """Compare signal variances q (draws, depth + 1, inputs) with what theory says of them."""
    depth, last = q.shape[1] - 1, q[:, -1, 0]
    laws = signal_laws(architecture, width, depth)
    if "block_law" not in laws:
        return Comparison(last=last)
    exact = exact_signals(architecture, width, depth, EXACT_DRAWS, seed=1)
    draws = partial(_draws, architecture, width, laws["block_law"])
    # dead draws have no logarithm, and where they occur the logarithm has an exact law
    own = draws(q)
    departures: dict[tuple[str, str], windows.Departure] = {}
    for theory, corrections in _theories(architecture, depth).items():
        predicted = windows.predictions(corrections, width)
        truth = own if exact is None else draws(exact[:TRUTH_DRAWS, :, None])
        found = windows.from_draws(truth, laws["block_law"], predicted)
        known = {"variance": "exact_variance", "typical": "exact_log_mean"}
        laws_at = {name: laws[law] for name, law in known.items() if law in laws}
        found |= windows.from_law(predicted, laws_at)
        if not shifts(corrections):
            del found["mean"]
        departures |= {(theory, name): one for name, one in found.items()}
    complete = signal_corrections(architecture, depth)
    return Comparison(
        moments=_moments(own),
        departures=departures,
        last=last,
        exact=np.empty(0) if exact is None else exact[:, -1],
        corrected=None
        if complete is None
        else (float(complete.expected(width)[-1]), float(complete.spread(width)[-1])),
    )


def shifts(corrections: Corrections) -> bool:
    """Say whether the mean is predicted to move at all (rounding apart)."""
    return bool(np.any(np.abs(corrections.mean) > 1e-6 * corrections.block_law))


def _theories(architecture: Perceptron, depth: int) -> dict[str, Corrections]:
    made = {
        "complete": signal_corrections(architecture, depth),
        "small_branch": small_branch_corrections(architecture, depth),
    }
    return {name: one for name, one in made.items() if one is not None}


def _draws(architecture: Perceptron, width: int, limit: Array, q: Array) -> SignalDraws:
    """Return the moments of every draw, with noise of known mean removed where possible."""
    step = signal_step(architecture, width, len(limit) - 1)
    start = 0.0 if architecture.name == "mlp" else 2 / width
    if not np.all(np.isfinite(q)):
        return plain(q, limit)
    if step is None:
        return without_embedding(q, limit, start) if start else plain(q, limit)
    return reduced(q, limit, step, start)


def _moments(draws: SignalDraws) -> dict[str, Array]:
    """Return the `MOMENTS` of a cell, with errors over draws."""
    root = np.sqrt(len(draws.shift))
    shift, error = draws.shift.mean(axis=0), draws.shift.std(axis=0, ddof=1) / root
    # the influence of a draw on E x² − (E x)²; the square of a mean is too large by its error²
    influence = draws.square - 2 * shift * draws.shift
    return {
        "shift": shift,
        "shift_error": error,
        "relative_variance": draws.square.mean(axis=0) - shift**2 + error**2,
        "relative_variance_error": influence.std(axis=0, ddof=1) / root,
    }
