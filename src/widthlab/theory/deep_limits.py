"""Deep residual networks and the neural mean ODE: rates of convergence, and the lazy limit.

Networks h_l = h_{l−1} + (α/(LM)) Σ_j φ(h_{l−1}, Z_{j,l}) of depth L, hidden width M and embedding
width D, trained for a fixed number of steps by gradient descent at the limit's learning rates
(`meanode.ResidualNetwork`). Errors are root mean squares over coordinates of the embedding, against
the mean ODE. Source: Chizat, The Hidden Width of Deep ResNets: Tight Error Bounds and Phase
Diagrams (2025): the theorems on the error bound, on the lazy regime, and on two-layer perceptron
blocks; the optimum over α follows from the lazy bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.gaussian import pair_derivative_moment, pair_moment

Array = NDArray[np.float64]


class Slopes(NamedTuple):
    """Exponents of an error in depth, hidden width and embedding width."""

    depth: float
    hidden: float
    width: float


REFERENCE_FACTOR = 8
"""How many times more units L·M a reference has than the networks that it is compared with.

Its own sampling error is then smaller by √8, and by the root of its seeds once more.
"""
EULER = Slopes(depth=-1.0, hidden=0.0, width=0.0)
"""The bias of the mean over seeds, of the Euler scheme that a network of finite depth is."""
SAMPLING = Slopes(depth=-0.5, hidden=-0.5, width=0.5)
"""The spread over seeds, of the L·M units that sample the law of the weights; also at M = 1."""
SAMPLING_OUTPUT = Slopes(depth=-0.5, hidden=-0.5, width=0.0)
"""The same of the output f = W_Uᵀ h_L/D, W_U of deviation √(outputs).

Derived here, not published: at initialisation h_L − h_0 = (1/(LM)) Σ_lj v_jl s(u_jl·h/D), whose
coordinates are uncorrelated, since those of v are, each of variance D σ_v² ⟨s²⟩/(ML) to leading
order. So Var f = (1/D²)·D·outputs·D σ_v² ⟨s²⟩/(ML) = outputs·σ_v² ⟨s²⟩/(ML), without D. Training
for a number of steps that does not grow with D multiplies it by what the linearised mean ODE does,
which has a limit in D. A companion paper fits D/(ML) to errors of the output: exponents of −1, −1
and 1, as of a bias of second order.
"""


LAZY_BOUND = 1.0
"""p of the bound α^−p on the distance of the mean ODE from the lazy ODE."""
LAZY_SYMMETRIC = 2.0
"""p where the law of the weights is symmetric under a change of sign of the block's output.

So are Gaussian v, or Gaussian Z with an odd activation. The first order in 1/α is an average of
∂²φ/∂Z²·δZ² and of ∂φ/∂Z·(∂²φ/∂Z²·δZ)ᵀ b over the initial law, each odd under that change of sign.
"""


def sampling_scale(
    depth: ArrayLike, hidden: ArrayLike, width: ArrayLike, alpha: float = 1.0
) -> Array:
    """α √(D/(ML)): of what the sampling error is a multiple, for two_layer blocks of MLU scale."""
    ratio = np.asarray(width, dtype=np.float64) / (np.asarray(depth) * np.asarray(hidden))
    return np.asarray(alpha * np.sqrt(ratio))


def error_bound(
    depth: ArrayLike,
    hidden: ArrayLike,
    width: ArrayLike,
    *,
    euler: float,
    sampling: float,
    alpha: float = 1.0,
) -> Array:
    """a/L + b·α√(D/(ML)), the form of the error of the embedding, with fitted a and b."""
    return euler / np.asarray(depth, dtype=np.float64) + sampling * sampling_scale(
        depth, hidden, width, alpha
    )


def depth_of_crossing(hidden: float, width: float, *, euler: float, sampling: float) -> float:
    """The depth L = (a/b)² M/D below which the Euler error is the larger of the two (α = 1)."""
    return float((euler / sampling) ** 2 * hidden / width)


def lazy_error(
    alpha: ArrayLike,
    depth: ArrayLike,
    hidden: ArrayLike,
    *,
    nonlinear: float,
    euler: float,
    sampling: float,
    power: float = LAZY_BOUND,
) -> Array:
    """c/α^p + a/L + b·α/√(ML), the form of the distance to the lazy ODE at fixed D."""
    alpha = np.asarray(alpha, dtype=np.float64)
    units = np.asarray(depth, dtype=np.float64) * np.asarray(hidden)
    return np.asarray(
        nonlinear / alpha**power + euler / np.asarray(depth) + sampling * alpha / np.sqrt(units)
    )


def best_alpha(
    depth: ArrayLike,
    hidden: ArrayLike,
    *,
    nonlinear: float = 1.0,
    sampling: float = 1.0,
    power: float = LAZY_BOUND,
) -> Array:
    """(p c/b · √(ML))^{1/(p+1)}, where `lazy_error` is smallest; 1 ≪ α ≪ √(ML).

    √(c/b)·(ML)^¼ for p = 1.
    """
    units = np.asarray(depth, dtype=np.float64) * np.asarray(hidden)
    return np.asarray((power * nonlinear / sampling * np.sqrt(units)) ** (1 / (power + 1)))


def best_alpha_slope(power: float = LAZY_BOUND) -> float:
    """Exponent in M·L of the best α: ¼ for p = 1, 1/6 for p = 2."""
    return 0.5 / (power + 1)


LOCAL_UPDATE_SCALE = 0.5
"""Exponent of D in the scale of σ_v at which local feature updates are maximal: σ_v = O(√D)."""


def perceptron_tangent_kernel(
    gram: ArrayLike,
    activation: str,
    *,
    inner_deviation: float,
    outer_deviation: float,
    inner_scale: float,
) -> tuple[Array, Array]:
    """The tangent kernel of blocks v·s(κ u·h) in the limit, as parts of inner and outer weights.

    k(i, j) = κ² σ_v² h_i·h_j ⟨s'(z_i) s'(z_j)⟩ and ⟨s(z_i) s(z_j)⟩, with (z_i, z_j) Gaussian of
    covariance κ² σ_u² times the Gram matrix h_i·h_j (inputs, inputs) of the embeddings, and σ_u and
    σ_v the deviations of single weights. The kernel of embeddings is k times the identity over
    coordinates, the same at every depth, since E φ = 0 leaves the stream and its gradient constant
    at initialisation.
    """
    g = np.asarray(gram, dtype=np.float64)
    covariance = (inner_scale * inner_deviation) ** 2 * g
    first, second = _diagonals(covariance)
    slopes = pair_derivative_moment(activation, first, second, covariance)
    values = pair_moment(activation, first, second, covariance)
    return (inner_scale * outer_deviation) ** 2 * g * slopes, values


def matrix_tangent_kernel(gram: ArrayLike, activation: str, *, deviation: float) -> Array:
    """The tangent kernel of blocks s(Z h): h_i·h_j ⟨s'(z_i) s'(z_j)⟩ with z ~ N(0, σ² h_i·h_j).

    Raises ValueError for an activation that is not odd: its blocks have a mean at initialisation,
    which moves the stream.
    """
    if activation not in {"linear", "tanh", "erf"}:
        raise ValueError(f"blocks s(Z h) with {activation} do not have mean zero; use an odd one")
    g = np.asarray(gram, dtype=np.float64)
    covariance = deviation**2 * g
    first, second = _diagonals(covariance)
    return g * pair_derivative_moment(activation, first, second, covariance)


def _diagonals(covariance: Array) -> tuple[Array, Array]:
    variances = np.diag(covariance)
    first = np.broadcast_to(variances[:, None], covariance.shape)
    return first, first.T
