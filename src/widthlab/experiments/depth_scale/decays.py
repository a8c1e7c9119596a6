"""How signals and correlations decay with depth: phases, fits of a depth scale, crossings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.laws import branch_arguments, layer_arguments
from widthlab.specs import MLP, Perceptron
from widthlab.theory.block_law import NoClosure, PairKernel, mlp_pair, residual_pair
from widthlab.theory.fixed_points import NoFixedPoint, depth_scales

Array = NDArray[np.float64]

ENDLESS = 1000.0
"""Depth scale, in layers, from which on a network counts as critical: the digits to which critical
variances are known make scales of some thousand layers."""
TRANSIENT = 0.2
"""A decay counts as exponential from the layer on where the recursion's own rate is within this
share of the limit's; what is left of the transient is allowed for, as the recursion has it."""
FLOORS = 5.0
"""A decay is followed down to this many noise floors."""


@dataclass(frozen=True)
class Phase:
    """Where a perceptron without skips goes in depth, in terms of its carried signals."""

    name: Literal["ordered", "critical", "chaotic"]
    variance: float
    """q*, to which q_l goes; NaN where it stays as it is."""
    correlation: float
    """c*, to which the correlation of post-activations goes."""
    variance_scale: float
    """ξ_q in layers."""
    correlation_scale: float
    """ξ_c in layers."""
    perpendicular: float
    """χ_⊥ = χ at c = 1."""


def phase_of(architecture: Perceptron) -> Phase | None:
    """Return the phase of a network, or None where theory knows no fixed point of it.

    It knows those of perceptrons without skips and normalisation, whose variance does not diverge.
    Correlations c* of pre-activations are turned into those of the carried post-activations,
    (K* c* − C_b)/(K* − C_b).
    """
    if not isinstance(architecture, MLP) or architecture.normalisation != "none":
        return None
    name, c_w, c_b = layer_arguments(architecture)
    try:
        scales = depth_scales(name, c_w, c_b)
    except NoFixedPoint:
        return None
    kernel, correlation = scales.kernel, scales.correlation
    if kernel > c_b:
        correlation = (kernel * correlation - c_b) / (kernel - c_b)
    critical = min(scales.variance, scales.correlation_scale) >= ENDLESS
    ordered = scales.chi_perpendicular < 1
    return Phase(
        "critical" if critical else "ordered" if ordered else "chaotic",
        (kernel - c_b) / c_w,
        correlation,
        scales.variance,
        scales.correlation_scale,
        scales.chi_perpendicular,
    )


def pair_law(architecture: Perceptron, correlation: Array, depth: int) -> PairKernel | None:
    """Return the recursion of pairs of inputs with |x|² = d, from their correlations (pairs,).

    None where there is no closed recursion (batch normalisation, nonlinearity after the addition).
    """
    start = (np.ones_like(correlation), np.ones_like(correlation), correlation)
    layer = layer_arguments(architecture)
    try:
        if isinstance(architecture, MLP):
            return mlp_pair(start, depth, *layer, architecture.normalisation)
        return residual_pair(start, depth, *layer, **branch_arguments(architecture, depth))
    except NoClosure:
        return None


# ── exponential decay ───────────────────────────────────────────────────────────────────────


def window(curve: Array, limit_rate: float, floor: float | Array) -> slice | None:
    """Return the layers in which a recursion's distance from its limit, (L + 1,), is exponential.

    From where its local rate comes to stay within TRANSIENT of the limit's, 1/ξ, to where it has
    fallen to FLOORS times the noise floor (by layer, or one). None for fewer than three layers. The
    choice uses theory and the size of the noise, never the data's own decay.
    """
    size = np.abs(curve)
    resolved = size > np.maximum(1e-9, 1e-9 * size[0])
    resolved &= np.sign(curve) == np.sign(curve[0])
    last = len(size) if resolved.all() else int(np.argmin(resolved))
    above = size >= FLOORS * floor
    end = len(size) if above.all() else int(np.argmin(above))
    if last < 3 or min(end, last) < 3:
        return None
    rates = -np.diff(np.log(size[:last]))
    near = np.abs(rates - limit_rate) <= TRANSIENT * limit_rate
    begin = len(near) - int(np.argmin(near[::-1])) if not near.all() else 0
    end = min(end, last)
    return slice(begin, end) if end - begin >= 3 else None


def rate(distance: Array, layers: slice) -> Array:
    """Return the rate 1/ξ of exponential decay of distances (…, L + 1) from a limit, shape (…)."""
    size = np.abs(distance[..., layers])
    place = np.arange(size.shape[-1]) - (size.shape[-1] - 1) / 2
    log = np.log(np.where(size > 0, size, np.nan))
    return np.asarray(-(log * place).sum(axis=-1) / (place**2).sum())


def allowance(curve: Array, limit_rate: float, layers: slice, shift: float) -> float:
    """Return how far a window's rate may be off: the rest of the transient, and a shift of q or c.

    `shift` is that of order 1/N by which finite width moves the whole curve, in either direction.
    """
    own = float(rate(curve, layers))
    moved = [abs(float(rate(curve + sign * shift, layers)) - own) for sign in (-1, 1)]
    return abs(own - limit_rate) + max(moved)


# ── power laws ──────────────────────────────────────────────────────────────────────────────


def quarters(distance: Array) -> Array:
    """Return how decay goes on, from distances (…, L + 1) that are falling, shape (…, 2).

    First the exponent of depth between L/4 and L; then the logarithm lost from L/2 to L over that
    from L/4 to L/2: 1 for a power law, 2 for an exponential, whatever their constants.
    """
    depth = distance.shape[-1] - 1
    at = np.log(np.stack([_between(distance, depth / part) for part in (4, 2, 1)], axis=-1))
    steps = np.diff(at, axis=-1)
    exponent = (at[..., 2] - at[..., 0]) / np.log(4)
    return np.stack([exponent, steps[..., 1] / steps[..., 0]], axis=-1)


def _between(values: Array, layer: float) -> Array:
    """Interpolate positive values (…, L + 1) at a layer that need not be whole, in logarithms."""
    low = min(int(layer), values.shape[-1] - 2)
    share = layer - low
    ends = np.where(values[..., low : low + 2] > 0, values[..., low : low + 2], np.nan)
    return np.asarray(np.exp((1 - share) * np.log(ends[..., 0]) + share * np.log(ends[..., 1])))


# ── crossings ───────────────────────────────────────────────────────────────────────────────


def crossing(size: Array, threshold: float) -> Array:
    """Return the layer at which sizes (…, L + 1) first reach a threshold, linear in between.

    NaN where they never do, or where layer 0 already has.
    """
    reached = size >= threshold
    first = reached.argmax(axis=-1)
    there = reached.any(axis=-1) & (first > 0)
    above = np.take_along_axis(size, first[..., None], axis=-1)[..., 0]
    below = np.take_along_axis(size, np.maximum(first - 1, 0)[..., None], axis=-1)[..., 0]
    step = np.where(above > below, above - below, 1.0)
    return np.where(there, first - 1 + (threshold - below) / step, np.nan)
