"""Exact draws of the signal variance of two-layer residual networks, as a chain of one number.

Given the stream h_{l-1} of width N, the pre-activations of a branch V s(U h + b_u) + b_v with M
hidden neurons are independent N(0, k), k = σ_u² q_{l-1} + C_b, and given those its outputs are
independent N(0, S), S = (C_W/M) Σ s(z_j)² + C_b. A Gaussian vector has no direction of its own, so
the stream enters by its length alone, and q_l = |h_l|²/N is a Markov chain:

    q_l = (√q_{l-1} + α √(S/N) ξ)² + α² (S/N) χ²_{N-1},     ξ ~ N(0, 1).

For a scale-invariant activation S is made of two χ² variables, so that a step costs the same at any
width. Derived here; tested against real networks and against the exact moments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from widthlab.theory.finite_width import NEGATIVE_SLOPE, mean_square

Array = NDArray[np.float64]


def sample_residual_variance(
    name: str,
    depth: int,
    width: int,
    hidden: int,
    draws: int,
    generator: np.random.Generator,
    *,
    alpha: float,
    c_w: float,
    c_b: float = 0.0,
    inner_variance: float = 1.0,
) -> Array:
    """Exact draws of q_l, shape (draws, depth + 1), of a pre-activation two_layer network.

    The embedding is random: q_0 is χ²_N/N, from an input with |x|²/d = 1. `width` is N, `hidden`
    M, and the other arguments are those of `block_law.residual_variance`. Linear, relu and
    leaky_relu only: NoClosure for others, whose S needs every neuron.
    """
    mean_square(name)  # refuses other activations
    slope = NEGATIVE_SLOPE[name]
    q = np.empty((draws, depth + 1))
    q[:, 0] = generator.chisquare(width, draws) / width
    for layer in range(1, depth + 1):
        up = generator.binomial(hidden, 0.5, draws)
        total = 2 * generator.standard_gamma(up / 2)
        if slope:
            total += slope**2 * 2 * generator.standard_gamma((hidden - up) / 2)
        k = inner_variance * q[:, layer - 1] + c_b
        step = alpha**2 * (c_w * k * total / hidden + c_b) / width
        along = np.sqrt(q[:, layer - 1]) + np.sqrt(step) * generator.standard_normal(draws)
        across = 2 * generator.standard_gamma(np.full(draws, (width - 1) / 2))
        q[:, layer] = along**2 + step * across
    return q
