"""Averages of the signal variance over draws, with noise of known mean removed.

Fluctuations of relative variance v are estimated from n draws with a relative error of about
√(2/n), however small v is. Where q is a Markov chain the error can be made smaller by √v: with
the mean T and the variance σ² of a step given the layer below,

    λ_l = a_l λ_{l-1} + q_l − T(q_{l-1}),      C_l = a_l² C_{l-1} + σ²(q_{l-1}),

E λ_l = 0 and E λ_l² = E C_l exactly, for any numbers a_l. With a_l the slope of T at the block law,
λ_l is what q_l fluctuates by to leading order, and subtracting λ or λ² − C (control variates: see
Owen, Monte Carlo theory, methods and examples, chapter 8) changes no mean. Networks that do not
follow the step are not made to: below the first layer whose steps, standardised, do not have mean
0 and variance 1 within their errors, nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

Array = NDArray[np.float64]
Step = Callable[[Array], tuple[Array, Array]]
"""From q to the mean and the variance of the next layer's q."""

NODES = 400
"""Values of q at which a step is computed; between them it is interpolated in log q."""
TRUSTED = 5.0
"""Standard errors within which standardised steps follow: a false alarm in 1000 at 500 layers."""


@dataclass(frozen=True)
class SignalDraws:
    """Numbers of every draw whose means are moments of q_l; arrays (draws, layers).

    With x_l = q_l / (block law) − 1, the means of `shift`, `square` and `log` are E x, E x² and
    E log(q_l/q_0); `log` is NaN where the signal is dead in all inputs.
    """

    shift: Array
    square: Array
    log: Array


def plain(q: Array, limit: Array) -> SignalDraws:
    """Return the moments of q (draws, layers, inputs) about the block law (layers,) as they are."""
    x = q / limit[:, None] - 1
    return _averaged(x, x**2, _log(q) - _log(q[:, :1]))


def reduced(q: Array, limit: Array, step: Step, start: float) -> SignalDraws:
    """Return numbers of the same means with less noise, for a Markov chain of the given step.

    `start` is the variance of q_0, zero for a perceptron. The numbers are the plain ones at layers
    where the draws do not follow the step, and where this noise would not be less (far down,
    where fluctuations are large and λ says little of them).
    """
    known = q[np.isfinite(q) & (q > 0)]
    if known.size == 0:
        return plain(q, limit)
    # wide enough for the block law too, where draws have left it
    ends = min(known.min(), limit.min()), max(known.max(), limit.max())
    nodes = np.geomspace(0.99 * ends[0], 1.01 * ends[1], NODES)
    mean, variance = (_table(nodes, values) for values in step(nodes))
    noise, expected, steps = _first_layer(q, limit, start)
    for layer in range(1, q.shape[1]):
        below, at = np.maximum(q[:, layer - 1], nodes[0]), limit[layer - 1]
        slope = float(mean(at * 1.001) - mean(at * 0.999)) / (0.002 * at)
        new, spread = q[:, layer] - mean(below), variance(below)
        noise[:, layer] = slope * noise[:, layer - 1] + new
        expected[:, layer] = slope**2 * expected[:, layer - 1] + spread
        steps[0, :, layer] = (new / np.sqrt(spread)).mean(axis=1)
        steps[1, :, layer] = (new**2 / spread - 1).mean(axis=1)
    return _without(q, limit, noise, expected, steps)


def without_embedding(q: Array, limit: Array, start: float) -> SignalDraws:
    """Return numbers of the same means without the noise of the first layer, of variance `start`.

    For networks that are no chain in q: the embedding's fluctuation is carried along with the block
    law, λ_l = (q_0 − 1) q∞_l/q∞_0, which is close where branches are small.
    """
    noise, expected, steps = _first_layer(q, limit, start)
    growth = limit / limit[0]
    noise[:] = noise[:, :1] * growth[:, None]
    expected[:] = expected[:, :1] * growth[:, None] ** 2
    return _without(q, limit, noise, expected, steps)


def _first_layer(q: Array, limit: Array, start: float) -> tuple[Array, Array, Array]:
    """Return λ and C (draws, layers, inputs), known at layer 0, and standardised steps."""
    noise, expected = np.zeros_like(q), np.zeros_like(q)
    steps = np.zeros((2, *q.shape[:2]))
    noise[:, 0], expected[:, 0] = q[:, 0] - limit[0], start
    if start > 0:
        steps[0, :, 0] = (noise[:, 0] / np.sqrt(start)).mean(axis=1)
        steps[1, :, 0] = (noise[:, 0] ** 2 / start - 1).mean(axis=1)
    return noise, expected, steps


def _without(q: Array, limit: Array, noise: Array, expected: Array, steps: Array) -> SignalDraws:
    """Subtract λ, and λ² − C, where standardised steps show that their means vanish."""
    first = (noise / limit[:, None]).mean(axis=2)
    second = ((noise**2 - expected) / limit[:, None] ** 2).mean(axis=2)
    log, trusted, own = second / 2 - first, _followed(steps), plain(q, limit)
    return SignalDraws(
        _quieter(own.shift - first, own.shift, trusted),
        _quieter(own.square - second, own.square, trusted),
        _quieter(own.log + log - log[:, :1], own.log, trusted),
    )


def _followed(steps: Array) -> NDArray[np.bool_]:
    """Say down to which layer standardised steps (2, draws, layers) have means of zero.

    One by one, and summed from the first, so that a small bias of every step is seen as well.
    """
    good = np.ones(steps.shape[2], dtype=bool)
    for sample in (*steps, *np.cumsum(steps, axis=2)):
        error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
        good &= np.abs(sample.mean(axis=0)) <= TRUSTED * error
    return np.logical_and.accumulate(good)


def _quieter(reduced: Array, plain: Array, trusted: NDArray[np.bool_]) -> Array:
    """Return, layer by layer, the reduced numbers where they are trusted and spread less."""
    spreads = [np.ma.masked_invalid(one).var(axis=0).filled(np.inf) for one in (reduced, plain)]
    return np.where(trusted & (spreads[0] < spreads[1]), reduced, plain)


def _table(nodes: Array, values: Array) -> Callable[[Array], Array]:
    spline = CubicSpline(np.log(nodes), values)
    return lambda at: np.asarray(spline(np.log(at)))


def _averaged(shift: Array, square: Array, log: Array) -> SignalDraws:
    within = np.ma.masked_invalid(log).mean(axis=2).filled(np.nan)
    return SignalDraws(shift.mean(axis=2), square.mean(axis=2), np.asarray(within))


def _log(q: Array) -> Array:
    alive = np.isfinite(q) & (q > 0)
    return np.where(alive, np.log(np.where(alive, q, 1.0)), np.nan)
