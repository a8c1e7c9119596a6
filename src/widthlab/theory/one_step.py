"""Mean and variance of a layer's signal variance given that of the layer below: exact at any width.

Where the signal variance q is a Markov chain, these two functions of q say all that is needed to
remove noise of known mean from averages over draws (see `statistics.reduced`). Unlike `corrections`
they expand nothing in 1/N. Tested against brute force.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from widthlab.theory.gaussian import second_moment
from widthlab.theory.higher_moments import square_variance

Array = NDArray[np.float64]


def mlp_step(q: Array, activation: str, c_w: float, c_b: float, width: int) -> tuple[Array, Array]:
    """E and Var of q' = (1/N) Σ s(z_i)² given q, with z_i independent N(0, C_b + C_W q).

    A perceptron without normalisation; arrays have the shape of q.
    """
    k = c_b + c_w * q
    return second_moment(activation, k), square_variance(activation, k) / width


def residual_step(
    q: Array,
    activation: str,
    c_w: float,
    c_b: float,
    width: int,
    hidden: int,
    *,
    alpha: float,
    inner_variance: float = 1.0,
) -> tuple[Array, Array]:
    """E and Var of q' = |h + α √S g|²/N given q, g ~ N(0, 1)^N, for two_layer branches.

    S = (C_W/M) Σ s(z_j)² + C_b with z_j independent N(0, σ_u² q + C_b), M = `hidden`:

        E q' = q + t,   Var q' = (4 q t + 2 t²)/N + (1 + 2/N) v,   t = α² E S,   v = α⁴ Var S.
    """
    k = inner_variance * q + c_b
    t = alpha**2 * (c_w * second_moment(activation, k) + c_b)
    v = alpha**4 * c_w**2 * square_variance(activation, k) / hidden
    return q + t, (4 * q * t + 2 * t**2) / width + (1 + 2 / width) * v
