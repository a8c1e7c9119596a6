"""Critical initialisation: where signals neither grow nor decay with depth."""

from __future__ import annotations

LEAKY_SLOPE = 0.01
"""Slope of leaky_relu for negative inputs (the default of torch)."""

CRITICAL: dict[str, tuple[float, float]] = {
    "linear": (1.0, 0.0),
    "relu": (2.0, 0.0),
    "leaky_relu": (2.0 / (1.0 + LEAKY_SLOPE**2), 0.0),
    "tanh": (1.0, 0.0),
    "erf": (0.7853981633974483, 0.0),
    "gelu": (1.983058, 0.172922),
    "silu": (1.988005, 0.555143),
}
"""(C_W, C_b) with χ_⊥ = χ_∥ = 1 at the fixed point, by activation.

Roberts, Yaida & Hanin (2022), chapter 5, in the convention Var W = C_W / fan-in. GELU and SiLU
are half-stable, at K* = 3.5616 and K* = 14.3202; the others are critical at K* = 0 or, for
scale-invariant activations, at any K.
"""
