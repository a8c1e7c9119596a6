"""Gradients of a random network at large width: their size by layer, and how they fluctuate.

g_l is the gradient of one scalar output by the carried signal h_l (see `block_law`), and the
readout has variance 1/N, so that E|g_L|² = 1. At infinite width the backward pass may be taken for
independent of the forward one, and |g|² is multiplied by χ_⊥ at every layer (Schoenholz et al.
2017). To order 1/N of squares the same holds, but for what both passes share: the neurons'
pre-activations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.block_law import (
    mlp_susceptibilities,
    mlp_variance,
    residual_susceptibilities,
    residual_variance,
)
from widthlab.theory.gaussian import derivative_moment
from widthlab.theory.higher_moments import (
    derivative_moment_slope,
    gradient_noise,
    gradient_signal_covariance,
    square_variance,
)

Array = NDArray[np.float64]


def mlp_gradient(
    q0: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    normalisation: str = "none",
) -> Array:
    """E|g_l|² of an MLP by layer, ∏ χ_⊥(K_m) over the layers m > l; arguments as `mlp_variance`.

    With normalisation "layer", χ_⊥ = C_W ⟨s'²⟩_1 / K. Shape (depth + 1, *q0.shape). Raises
    NoClosure for "batch".
    """
    law = mlp_variance(q0, depth, activation, c_w, c_b, normalisation)
    k = c_b + c_w * law[:-1]
    if normalisation == "layer":
        return _backwards(c_w * derivative_moment(activation, 1.0) / k)
    return _backwards(mlp_susceptibilities(k, activation, c_w).perpendicular)


def residual_gradient(
    q0: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    *,
    alpha: float,
    branch: str = "two_layer",
    inner_variance: float = 1.0,
    position: str = "pre",
    normalisation: str = "none",
) -> Array:
    """E|g_l|² along a residual stream: factors 1 + α² C_W σ² ⟨s'²⟩_K, as `residual_variance`.

    With normalisation "layer" the branch's part is divided by the stream's variance q. Shape
    (depth + 1, *q0.shape). Raises NoClosure as `residual_variance`.
    """
    law = residual_variance(
        q0,
        depth,
        activation,
        c_w,
        c_b,
        alpha=alpha,
        branch=branch,
        inner_variance=inner_variance,
        position=position,
        normalisation=normalisation,
    )
    q = law[:-1]
    entrance = np.ones_like(q) if normalisation == "layer" else q
    chi = residual_susceptibilities(
        entrance, activation, c_w, c_b, alpha=alpha, branch=branch, inner_variance=inner_variance
    ).perpendicular
    if normalisation == "layer":
        chi = 1 + (chi - 1) / q
    return _backwards(chi)


def mlp_gradient_correlation(
    q0: ArrayLike, depth: int, activation: str, c_w: float, c_b: float
) -> Array:
    """N (E[g_i² g_j²]/(E g_i²)² − 1) of two neurons i ≠ j to leading order, by layer of an MLP.

    Layers m > l multiply |g|² by C_W (1/N)Σ s'(z_i)² ξ_i² with ξ ~ N(0, 1) apart from z. Relative
    to its mean this fluctuates by (e_m + ⟨s'²⟩' k_m)/⟨s'²⟩ /√N, with e_m the noise of the sum, and
    k_m that of K_m, k_{m+1} = χ_∥ k_m + C_W x_m, where x_m is the noise of (1/N)Σ s(z_i)². All of
    one layer's neurons share the factor, so the correlation is the variance of the sum over m > l.
    Noises of different layers are independent, Var e = 3⟨s'⁴⟩ − ⟨s'²⟩², Var x = ⟨s⁴⟩ − ⟨s²⟩²,
    Cov(e, x) = Cov(s'², s²). For relu 5 (L − l), for linear 2 (L − l): the first order of
    `finite_width.gradient_squared_correlation`. Derived here, tested by brute force.

    Equal hidden widths, no normalisation. Shape (depth + 1, *q0.shape), zero at the last layer.
    """
    law = mlp_variance(q0, depth, activation, c_w, c_b)
    k = c_b + c_w * law[:-1]
    chi = mlp_susceptibilities(k, activation, c_w)
    mean = chi.perpendicular / c_w
    through = derivative_moment_slope(activation, k) / mean
    e, x = gradient_noise(activation, k) / mean**2, square_variance(activation, k)
    both = gradient_signal_covariance(activation, k) / mean
    kernel = np.zeros_like(law)  # N Var K_{m+1}
    for m in range(depth):
        kernel[m + 1] = chi.parallel[m] ** 2 * kernel[m] + c_w**2 * x[m]
    # Backwards: how much a change of K_m moves the factors above, and the noise of these layers.
    correlation = np.zeros_like(law)
    moved, noise = np.zeros_like(law[0]), np.zeros_like(law[0])
    for m in range(depth - 1, -1, -1):
        noise = noise + e[m] + 2 * c_w * moved * both[m] + (c_w * moved) ** 2 * x[m]
        moved = through[m] + chi.parallel[m] * moved
        correlation[m] = moved**2 * kernel[m] + noise
    return correlation


def summed_fluctuation(
    law: Array,
    activation: str,
    c_w: float,
    c_b: float,
    factors: Array,
    kernels: Array | float = 0.0,
    last: float = 0.0,
) -> Array:
    """N Var of a sum over layers m = 1 … L of fluctuations that a perceptron's layers share.

    factors[m-1] weighs the relative fluctuation of the gradient's factor at layer m, kernels[m-1]
    that of the kernel K_m, and `last` that of q_L. `law` is the block law, shape (depth + 1, …),
    and weights have shape (depth, …).
    """
    k = c_b + c_w * law[:-1]
    chi = mlp_susceptibilities(k, activation, c_w)
    mean = chi.perpendicular / c_w
    through = factors * derivative_moment_slope(activation, k) / mean
    through = through + np.broadcast_to(kernels, through.shape)
    direct = factors / mean
    e, x = gradient_noise(activation, k), square_variance(activation, k)
    both = gradient_signal_covariance(activation, k)
    total, kernel, cross = (np.zeros_like(law[0]) for _ in range(3))
    for m in range(len(k)):
        # the kernel's part first, then the layer's own noise, which also moves the next kernel
        total = total + 2 * through[m] * cross + through[m] ** 2 * kernel
        cross = cross + through[m] * kernel
        ahead = last / c_w if m == len(k) - 1 else 0.0
        total = total + direct[m] ** 2 * e[m]
        cross = chi.parallel[m] * cross + c_w * direct[m] * both[m]
        kernel = chi.parallel[m] ** 2 * kernel + c_w**2 * x[m]
        total = total + 2 * ahead * cross + ahead**2 * kernel
    return np.asarray(total)


def _backwards(chi: Array) -> Array:
    """Products of factors from the top, with a last 1."""
    above = np.cumprod(chi[::-1], axis=0)[::-1]
    return np.concatenate([above, np.ones((1, *chi.shape[1:]))])
