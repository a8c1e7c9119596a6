"""Where signals of a deep multilayer perceptron settle, how fast, and where they never do.

The pre-activation variance follows K' = C_b + C_W g(K), and at its fixed point K* the correlation
of two inputs follows c' = (C_b + C_W ⟨s(u)s(v)⟩)/K*. Their slopes at the stable fixed points set
the depth scales. Sources: Poole et al. (2016); Schoenholz et al. (2017), "Deep information
propagation"; Roberts, Yaida & Hanin (2022), chapter 5. No normalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from widthlab.theory.block_law import Susceptibilities, mlp_susceptibilities
from widthlab.theory.finite_width import NEGATIVE_SLOPE, mean_square
from widthlab.theory.gaussian import activation as check_activation
from widthlab.theory.gaussian import pair_derivative_moment, pair_moment, second_moment
from widthlab.theory.higher_moments import second_moment_curvature

Array = NDArray[np.float64]

LARGEST, SMALLEST = 1e6, 1e-9
"""Variances between which a fixed point is looked for; below lies only K* = 0."""

TOUCHING = 1e-6
"""|K' − K|/K at which a map that comes near and does not cross counts as half-stable there."""

CRITICAL_SLOPE = 1e-5
"""1 − χ below which a depth scale counts as infinite."""

_STEP = 1.003


class NoFixedPoint(ValueError):  # noqa: N818 - the name is the physics, not the failure
    """The variance does not settle at one value."""


@dataclass(frozen=True)
class DepthScales:
    """How deep variance and correlation survive, in layers; infinite at criticality.

    A small deviation of q falls as exp(−l/ξ_q), one of c from c* as exp(−l/ξ_c).
    """

    kernel: float
    """K*, NaN where every K is a fixed point."""
    correlation: float
    """c*: 1 in the ordered phase, less in the chaotic one."""
    chi_parallel: float
    chi_perpendicular: float
    variance: float
    """ξ_q = −1/ln χ_∥."""
    correlation_scale: float
    """ξ_c = −1/ln of the correlation map's slope at c*, which is χ_⊥ where c* = 1."""


@dataclass(frozen=True)
class CriticalPoint:
    """(C_W, C_b) with χ_∥ = χ_⊥ = 1 at the fixed point `kernel` (NaN: at any K)."""

    c_w: float
    c_b: float
    kernel: float
    kind: Literal["scale_invariant", "zero", "half_stable"]


# ── the fixed point ─────────────────────────────────────────────────────────────────────────


def fixed_point(activation: str, c_w: float, c_b: float, *, start: float = 1.0) -> float:
    """K* = C_b + C_W g(K*) to which the variance goes from K = `start`; 0 where signals vanish.

    The map is increasing, so K moves one way until the next fixed point, which is found by
    bracketing and Brent's method; a map that touches the diagonal without crossing holds K up
    there (half-stable, within TOUCHING). Scale-invariant activations: C_b/(1 − κ C_W).

    Near the critical points of gelu and silu the map is so flat that digits of C_W and C_b decide:
    at gelu's, |K' − K| < 1e-5 K from 2.9 to 4, with the half-stable K* = 3.56 for those who come
    from above and a stable fixed point at 3.03; silu's is reached from below.

    Raises NoFixedPoint where K diverges (beyond LARGEST) or where every K is a fixed point, and
    ValueError for variances that are none.
    """
    check_activation(activation)
    if not (c_w > 0 and c_b >= 0 and start > 0 and np.isfinite([c_w, c_b, start]).all()):
        raise ValueError(
            f"C_W and start must be positive and C_b not negative, not {c_w}, {start} and {c_b}"
        )
    if activation in NEGATIVE_SLOPE:
        return _scale_invariant(activation, c_w, c_b)

    def gap(k: float) -> float:
        return c_b + c_w * float(second_moment(activation, k)) - k

    if gap(start) == 0:
        return start
    rises = gap(start) > 0
    far = np.log(LARGEST / start) if rises else np.log(start / SMALLEST)
    steps = np.arange(max(int(np.ceil(far / np.log(_STEP))), 1) + 1.0)
    grid = start * _STEP ** (steps if rises else -steps)
    relative = (c_b + c_w * second_moment(activation, grid) - grid) / grid
    crossed = np.flatnonzero((relative[1:] > 0) != rises) + 1
    before = slice(crossed[0] if len(crossed) else None)
    touching = _touching(gap, grid[before], np.abs(relative[before]))
    if touching is not None:
        return touching
    if len(crossed):
        bracket = sorted(grid[crossed[0] - 1 : crossed[0] + 1])
        return float(brentq(gap, *bracket, xtol=1e-15, rtol=1e-14))
    if rises:
        raise NoFixedPoint(
            f"the variance of {activation} at C_W = {c_w}, C_b = {c_b} has no fixed point above"
            f" K = {start} (looked up to {LARGEST:g}): it diverges; choose a smaller C_W"
        )
    return 0.0


def susceptibilities(activation: str, c_w: float, c_b: float) -> Susceptibilities:
    """χ_∥ and χ_⊥ at the fixed point from K = 1; raises as `fixed_point`."""
    return mlp_susceptibilities(fixed_point(activation, c_w, c_b), activation, c_w)


def _scale_invariant(activation: str, c_w: float, c_b: float) -> float:
    gain = c_w * mean_square(activation)
    if abs(gain - 1) <= 1e-12 and c_b == 0:
        raise NoFixedPoint(
            f"every variance is a fixed point of {activation} at C_W = {c_w}, C_b = 0:"
            " it stays what the input makes it"
        )
    if gain >= 1:
        raise NoFixedPoint(
            f"the variance of {activation} at C_W = {c_w}, C_b = {c_b} diverges; choose C_W below"
            f" {1 / mean_square(activation):.6g}"
        )
    return c_b / (1 - gain)


def _touching(gap: Callable[[float], float], grid: Array, relative: Array) -> float | None:
    """The first K where the gap, of one sign on `grid`, comes down to TOUCHING without crossing.

    Only above K = 1e-3: towards 0 the map of a sigmoid at criticality is as flat, and goes on.
    """
    relative = relative[grid > 1e-3]
    grid = grid[grid > 1e-3]
    inner = relative[1:-1]
    for i in np.flatnonzero((inner < relative[:-2]) & (inner <= relative[2:])) + 1:
        low, high = sorted((float(grid[i - 1]), float(grid[i + 1])))
        found = minimize_scalar(
            lambda k: abs(gap(k)) / k,
            bounds=(low, high),
            method="bounded",
            options={"xatol": 1e-10},
        )
        if found.fun <= TOUCHING:
            return float(found.x)
    return None


# ── depth scales ────────────────────────────────────────────────────────────────────────────


def depth_scales(activation: str, c_w: float, c_b: float, *, start: float = 1.0) -> DepthScales:
    """ξ_q and ξ_c of a perceptron, with the fixed points they belong to.

    ξ_c is at the stable fixed point of the correlations: c* = 1 where χ_⊥ ≤ 1 (ordered), and
    otherwise the c* < 1 that is found numerically, where the map has slope C_W⟨s'(u)s'(v)⟩. Where
    signals vanish (K* = 0) correlations stay as they are, and ξ_c is infinite. `start` as in
    `fixed_point`. Scale-invariant activations at criticality have infinite scales.

    Raises NoFixedPoint where the variance diverges.
    """
    if (
        activation in NEGATIVE_SLOPE
        and c_b == 0
        and abs(c_w * mean_square(activation) - 1) <= 1e-12
    ):
        return DepthScales(np.nan, 1.0, 1.0, 1.0, np.inf, np.inf)
    kernel = fixed_point(activation, c_w, c_b, start=start)
    chi = mlp_susceptibilities(kernel, activation, c_w)
    parallel, perpendicular = float(chi.parallel), float(chi.perpendicular)
    correlation, slope = 1.0, perpendicular
    if kernel == 0:
        slope = 1.0
    elif perpendicular > 1 + CRITICAL_SLOPE:
        correlation = _chaotic(activation, c_w, c_b, kernel)
        cross = correlation * kernel
        slope = c_w * float(pair_derivative_moment(activation, kernel, kernel, cross))
    return DepthScales(
        kernel, correlation, parallel, perpendicular, _scale(parallel), _scale(slope)
    )


def _scale(slope: float) -> float:
    if slope >= 1 - CRITICAL_SLOPE:
        return float(np.inf)
    return float(-1 / np.log(slope)) if slope > 0 else 0.0


def _chaotic(activation: str, c_w: float, c_b: float, kernel: float) -> float:
    """The fixed point c* < 1: the map is convex on [0, 1] and steeper than 1 at its end."""

    def gap(c: float) -> float:
        pair = float(pair_moment(activation, kernel, kernel, c * kernel))
        return (c_b + c_w * pair) / kernel - c

    if gap(0.0) <= 1e-12:
        return 0.0  # an odd activation without biases
    for exponent in range(1, 7):
        upper = 1 - 10.0**-exponent
        if gap(upper) < 0:
            return float(brentq(gap, 0.0, upper, xtol=1e-13))
    return 1.0


# ── criticality ─────────────────────────────────────────────────────────────────────────────


def critical_point(activation: str) -> CriticalPoint:
    """Find where χ_∥ = χ_⊥ = 1 at a fixed point that holds the variance, for any activation.

    χ_∥ = χ_⊥ asks for g'(K) = ⟨s'²⟩_K whatever C_W. Either at every K (scale-invariant); or at
    K = 0 with g'' < 0, so that variances fall there, slowly (tanh, erf); or at a K* > 0,
    half-stable (gelu, silu). Then C_W = 1/⟨s'²⟩ and C_b = K* − C_W g. Roberts, Yaida & Hanin
    (2022), chapter 5.

    Raises NoFixedPoint where there is none of the three.
    """
    check_activation(activation)
    grid = np.geomspace(1e-3, 1e3, 241)
    chi = mlp_susceptibilities(grid, activation, 1.0)
    ratio = chi.parallel / chi.perpendicular - 1
    if np.all(np.abs(ratio) <= 1e-9):
        return CriticalPoint(float(1 / chi.perpendicular[0]), 0.0, np.nan, "scale_invariant")
    at_zero = float(mlp_susceptibilities(0.0, activation, 1.0).perpendicular)
    bends_down = float(second_moment_curvature(activation, 0.0)) < 0
    if at_zero > 0 and float(second_moment(activation, 0.0)) == 0 and bends_down:
        return CriticalPoint(1 / at_zero, 0.0, 0.0, "zero")

    def gap(k: float) -> float:
        one = mlp_susceptibilities(k, activation, 1.0)
        return float(one.parallel - one.perpendicular)

    for i in np.flatnonzero(np.diff(np.sign(ratio))):
        k = float(brentq(gap, grid[i], grid[i + 1], xtol=1e-13, rtol=1e-14))
        c_w = float(1 / mlp_susceptibilities(k, activation, 1.0).perpendicular)
        c_b = k - c_w * float(second_moment(activation, k))
        if c_b >= 0:
            return CriticalPoint(c_w, c_b, k, "half_stable")
    raise NoFixedPoint(f"{activation} has no critical point with K up to {grid[-1]:g}")
