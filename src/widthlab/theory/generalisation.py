"""How far a mean over samples lies from its expectation: for fixed models, and for all of a class.

Fixed models (Hoeffding 1963; Maurer & Pontil 2009): losses lie in an interval of length `span`, and
the samples chose nothing. A class (the block inserted at a point, any of its parameters): with
probability at least 1 − δ, for every f of the class,

    |L_n(f) − L(f)| ≤ 2 R_n + span √(log(2/δ)/(2n)),

with R_n the Rademacher complexity (Mohri, Rostamizadeh & Talwalkar 2018, theorem 3.3, both sides).
R_n is bounded by norms. Where the loss changes by at most Λ|δz| as the activation moves by δz,
Maurer's contraction (2016, corollary 4: E sup Σᵢ εᵢ ℓᵢ(f(xᵢ)) ≤ √2 Λ E sup Σᵢₖ εᵢₖ fₖ(xᵢ)) leaves
the block's own outputs. A bias has sup_b Σᵢₖ εᵢₖ bₖ = R|Σᵢ εᵢ|; the two layers V·relu(U·z) are
peeled: V by its norm, U by homogeneity and Talagrand's contraction (Ledoux & Talagrand 1991,
theorem 4.12, with the convex function x²; the idea is that of Neyshabur, Tomioka & Srebro 2015).

Generic bounds of this kind are vacuous in practice: even where only the change of the loss against
a fixed model is bounded, a bias of F features at n = M = K samples needs more than 128 F of
them before 2(ε_M + ε_K) is less than Λ R, the most that the loss can change at all.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

OCTAVES = 60
"""Radii are peeled at 2^k for |k| up to this."""


# ── fixed models ────────────────────────────────────────────────────────────────────────────


def hoeffding(samples: int, span: float, delta: float, *, sides: int = 2) -> float:
    """Return t with Pr(|mean − expectation| ≥ t) ≤ δ for `samples` values in a range of `span`.

    With `sides` 1 it is that of one side. In units of the values. Hoeffding (1963), theorem 2.
    Raises ValueError for no samples or δ outside (0, 1).
    """
    _check(samples, 1, delta)
    return span * math.sqrt(math.log(sides / delta) / (2 * samples))


def empirical_bernstein(values: ArrayLike, span: float, delta: float, *, sides: int = 2) -> float:
    """Return the same from the sample variance V of `values` (n,), which pays where it is small.

    √(2 V log(2s/δ)/n) + 7 span log(2s/δ)/(3(n − 1)) for s sides. Maurer & Pontil (2009), theorem 4,
    which is of one side; two are a union. Raises ValueError for fewer than two values, values that
    are further apart than `span`, and δ outside (0, 1).
    """
    x = np.asarray(values, dtype=np.float64)
    _check(len(x), 2, delta)
    if np.ptp(x) > span * (1 + 1e-9):
        raise ValueError(f"values are {np.ptp(x):.3g} apart, more than their span of {span:.3g}")
    n, log = len(x), math.log(2 * sides / delta)
    return math.sqrt(2 * float(x.var(ddof=1)) * log / n) + 7 * span * log / (3 * (n - 1))


# ── the class of an inserted block ──────────────────────────────────────────────────────────


def bias_complexity(lipschitz: float, radius: float, features: int, samples: int) -> float:
    """Return √2 Λ R √(F/n) ≥ R_n of the losses with biases b, |b| ≤ R, of F features.

    Λ = `lipschitz` is the most that a sample's loss changes per unit of |b|.
    """
    return math.sqrt(2) * lipschitz * radius * math.sqrt(features / samples)


def residual_complexity(
    lipschitz: float, norms: float, channels: int, size: float, samples: int
) -> float:
    """Return 2√2 Λ R_V R_U √C B/√n ≥ R_n of the losses with blocks V·relu(U·ẑ), ẑ = (z, 1).

    `norms` R_V R_U is the product of the Frobenius norms of V (C × H) and U (H × (C + 1), its
    biases in the last column); of these the complexity depends on no others, and not on H. Λ is
    the most that a sample's loss changes per unit of the whole activation's Euclidean norm, and
    `size` B the root of the mean over samples of Σₜ |ẑₜ|², summed over positions.
    """
    return 2 * math.sqrt(2) * lipschitz * norms * math.sqrt(channels / samples) * size


def both_complexities(bias: float, residual: float) -> float:
    """Return √2 (R_bias + R_residual) ≥ R_n of a residual block with an output bias.

    With u = Λ_b b and v = Λ r of the block's two parts the loss changes by at most
    |δu| + |δv| ≤ √2 |(δu, δv)|; sup of a sum ≤ sum of sups.
    """
    return math.sqrt(2) * (bias + residual)


def uniform_deviation(complexity: float, span: float, samples: int, delta: float) -> float:
    """Return ε with Pr(sup_f |L_n(f) − L(f)| ≥ ε) ≤ δ; see the module."""
    return 2 * complexity + hoeffding(samples, span, delta)


def peeled(radius: float, delta: float) -> tuple[float, float]:
    """Return the first power of 2 that is at least `radius`, and the share of δ that it has.

    A bound for a ball of fixed radius holds for the radius that the data chose if every octave has
    its own δ and all of them add up to at most δ: octave k has 6/(π² j²) of it, j = 1, 2, 3 … for
    k = 0, −1, 1, −2 … (Shalev-Shwartz & Ben-David 2014, section 7.2, weigh classes in this way.)
    Raises ValueError for a radius that is negative, not finite or above 2^60.
    """
    if not 0 <= radius <= 2.0**OCTAVES:
        raise ValueError(f"the radius must lie between 0 and 2^{OCTAVES}, not {radius:g}")
    octave = max(-OCTAVES, math.ceil(math.log2(radius))) if radius > 0 else -OCTAVES
    rank = 2 * octave + 1 if octave > 0 else 1 - 2 * octave - (octave < 0)
    return 2.0**octave, delta * 6 / (math.pi * rank) ** 2


def is_vacuous(slack: float, gain: float, largest_rise: float) -> bool:
    """Say whether a bound L_new ≤ L_old − gain + slack is no news.

    `largest_rise` is the most by which the loss can rise in any case: up to its cap, or by Λ times
    the size of the insertion.
    """
    return not slack - gain < largest_rise


def _check(samples: int, least: int, delta: float) -> None:
    if samples < least:
        raise ValueError(f"an interval needs at least {least} samples, not {samples}")
    if not 0 < delta < 1:
        raise ValueError(f"δ must lie between 0 and 1, not {delta:g}")
