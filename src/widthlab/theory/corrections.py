"""Signal variance at large but finite width: the block law's corrections of order 1/N.

The signal variance q_l = |h_l|²/N_l of the carried signal (see `block_law`: post-activations of a
perceptron, the stream of a residual one) fluctuates from one random network to the next:

    E q_l = block law + mean/N + O(1/N²),      N Var q_l = variance + O(1/N).

Both follow from one argument. Given q, the next one has mean q + … = T(q) and variance noise(q)/N,
with T and noise known exactly; expanding T about the block law,

    variance' = T'² variance + noise,          mean' = T' mean + ½ T'' variance.

Sources: Roberts, Yaida & Hanin (2022), chapters 4 and 5, for perceptrons; Kawase & Ota (2026) for
small residual branches; the rest is derived here and tested against brute force. The expansion is
in L/N: it fails where depth over width is no longer small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.block_law import (
    mlp_susceptibilities,
    mlp_variance,
    residual_susceptibilities,
    residual_variance,
)
from widthlab.theory.higher_moments import (
    fourth_component,
    normalised_square_variance,
    second_moment_curvature,
    square_variance,
)
from widthlab.theory.one_layer import one_layer_terms

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Corrections:
    """Coefficients of the expansion in 1/N, by layer: arrays of shape (depth + 1, …).

    `covariance` is N Cov(q_l, q_0), which is not zero where q_0 is that of a random embedding. The
    methods take the width N and have the stated accuracy relative to the leading term.
    """

    block_law: Array
    mean: Array
    variance: Array
    covariance: Array

    def expected(self, width: float) -> Array:
        """E q_l to order 1/N."""
        return np.asarray(self.block_law + self.mean / width)

    def spread(self, width: float) -> Array:
        """Var q_l to order 1/N."""
        return np.asarray(self.variance / width)

    def expected_ratio(self, width: float) -> Array:
        """E q_l/q_0 to order 1/N."""
        start = self.block_law[0]
        bias = self.variance[0] / start**2 - self.covariance / (self.block_law * start)
        shift = (self.mean / self.block_law + bias) / width
        return np.asarray(self.block_law / start * (1 + shift))

    def spread_ratio(self, width: float) -> Array:
        """Var q_l/q_0 to order 1/N."""
        return np.asarray((self.block_law / self.block_law[0]) ** 2 * self.log_variance(width))

    def log_mean(self, width: float) -> Array:
        """E log(q_l/q_0) to order 1/N; of relu, given that the signal lives."""
        relative = self.variance / self.block_law**2
        shift = self.mean / self.block_law - 0.5 * (relative - relative[0])
        return np.asarray(np.log(self.block_law / self.block_law[0]) + shift / width)

    def log_variance(self, width: float) -> Array:
        """Var log(q_l/q_0) to order 1/N."""
        start = self.block_law[0]
        relative = self.variance / self.block_law**2 + self.variance[0] / start**2
        shared = 2 * self.covariance / (self.block_law * start)
        return np.asarray((relative - shared) / width)


@dataclass(frozen=True)
class Vertex:
    """Pre-activation kernel of layers 1 … depth and its corrections: arrays (depth, …).

    `kernel` is K_l, `vertex` the four-point vertex V_l = N Var of the kernel given the layer below
    (the part that neurons share), `correction` G_l = N (E kernel − K_l). The empirical kernel
    |z_l|²/N has N Var = V + 2K²; papers that fold 2K² in call that sum V₄.
    """

    kernel: Array
    vertex: Array
    correction: Array


# ── multilayer perceptron ───────────────────────────────────────────────────────────────────


def mlp_corrections(
    q0: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    normalisation: str = "none",
) -> Corrections:
    """Corrections of q_l = (1/N)Σ s(z_i)² in an MLP of equal hidden widths, from a fixed q_0.

    T(q) = g(C_b + C_W q) and noise = ⟨s⁴⟩ − ⟨s²⟩². With normalisation "layer" every layer forgets
    the one below: q_l has mean g(1) − ⟨s² He₄⟩/(4N), since normalised neurons are a point on a
    sphere, and the variance of `normalised_square_variance`. Arrays have shape
    (depth + 1, *q0.shape). Raises NoClosure for "batch", as `mlp_variance`.
    """
    law = mlp_variance(q0, depth, activation, c_w, c_b, normalisation)
    zeros = np.zeros_like(law)
    k = c_b + c_w * law[:-1]
    if normalisation == "layer":
        mean, variance = zeros.copy(), zeros.copy()
        mean[1:] = np.where(k > 0, -0.25 * fourth_component(activation), 0.0)
        variance[1:] = np.where(k > 0, normalised_square_variance(activation), 0.0)
        return Corrections(law, mean, variance, zeros)
    slope = mlp_susceptibilities(k, activation, c_w).parallel
    curvature = c_w**2 * second_moment_curvature(activation, k)
    mean, variance = _propagate(slope, curvature, square_variance(activation, k), zeros[0])
    return Corrections(law, mean, variance, zeros)


def mlp_vertex(q0: ArrayLike, depth: int, activation: str, c_w: float, c_b: float) -> Vertex:
    """Four-point vertex and mean correction of the pre-activation kernel, no normalisation.

    V' = χ_∥² V + C_W² (⟨s⁴⟩ − ⟨s²⟩²) and G' = χ_∥ G + ½ C_W g'' V, zero at layer 1 (Roberts, Yaida
    & Hanin 2022, chapters 4 and 5; read off `mlp_corrections`, since K_{l+1} = C_b + C_W q_l).
    """
    below = mlp_corrections(q0, depth, activation, c_w, c_b)
    return Vertex(
        c_b + c_w * below.block_law[:-1], c_w**2 * below.variance[:-1], c_w * below.mean[:-1]
    )


# ── residual perceptron ─────────────────────────────────────────────────────────────────────


def residual_corrections(
    q0: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    *,
    alpha: float,
    branch: str = "two_layer",
    hidden_ratio: float = 1.0,
    inner_variance: float = 1.0,
    position: str = "pre",
    normalisation: str = "none",
) -> Corrections:
    """Corrections along a residual stream of width N; arguments as `residual_variance`.

    q_0 is |x|²/d; the embedding is random, so that |h_0|²/N has N Var = 2 q_0². Branches of two
    layers, hidden width M = hidden_ratio·N: given h, the branch is Gaussian, hence
    T(q) = q + t(q), t = α² (C_W g(σ_u² q + C_b) + C_b), and

        noise = 4 q t + 2 t² + α⁴ C_W² (⟨s⁴⟩ − ⟨s²⟩²) N/M;

    with normalisation "layer", t is constant. Branches of one layer: see `one_layer`, which is
    complete at order 1/N too; `small_branch_corrections` is the published leading order.

    Raises NoClosure for batch normalisation, and for position "post" unless the activation is
    linear.
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
    if branch == "one_layer":
        return Corrections(
            law, *one_layer_terms(law, activation, c_w, alpha=alpha, normalisation=normalisation)
        )
    if hidden_ratio <= 0:
        raise ValueError(f"hidden_ratio must be positive, not {hidden_ratio}")
    q, t = law[:-1], np.diff(law, axis=0)
    if normalisation == "layer":
        k = np.where(q > 0, inner_variance, 0.0) + c_b
        slope, curvature = np.ones_like(q), np.zeros_like(q)
    else:
        k = inner_variance * q + c_b
        slope = residual_susceptibilities(
            q, activation, c_w, c_b, alpha=alpha, inner_variance=inner_variance
        ).parallel
        curvature = alpha**2 * c_w * inner_variance**2 * second_moment_curvature(activation, k)
    inner_noise = alpha**4 * c_w**2 * square_variance(activation, k) / hidden_ratio
    start = 2 * law[0] ** 2
    mean, variance = _propagate(slope, curvature, 4 * q * t + 2 * t**2 + inner_noise, start)
    return Corrections(law, mean, variance, _carried(slope, start))


def small_branch_corrections(
    q0: ArrayLike, depth: int, activation: str, c_w: float, c_b: float, *, alpha: float
) -> Corrections:
    """Published leading order in the branch, ε² = α², of one_layer streams, position pre.

    With V₄ = N Var q, which starts at 2 q_0² and holds it (no separate 2K²),

        V₄' = V₄ + ε² (2 C_W g' V₄ + 4 q (C_W g + C_b)),
        mean' = mean + ε² C_W (g' mean + ½ g'' V₄).

    Kawase & Ota (2026), arXiv:2604.15742: the moments of q close if q is taken for a Markov chain.
    V₄ is right to order ε² L and drifts away after that. The mean's source is wrong from the first
    block, where E q_1 is the block law exactly: the part 2q² of V₄ belongs to neurons apart and
    shifts nothing (and for relu, g'' = 0, it is blind to a true shift of order (ε² L)²). Hold it
    against `residual_corrections`, which is complete at order 1/N, to see its window of validity.
    """
    law = residual_variance(q0, depth, activation, c_w, c_b, alpha=alpha, branch="one_layer")
    q = law[:-1]
    gain = residual_susceptibilities(q, activation, c_w, c_b, alpha=alpha, branch="one_layer")
    growth, noise = gain.parallel - 1, 4 * q * np.diff(law, axis=0)
    source = 0.5 * alpha**2 * c_w * second_moment_curvature(activation, q)
    mean, variance = np.zeros_like(law), np.empty_like(law)
    variance[0] = 2 * law[0] ** 2
    for layer in range(depth):
        mean[layer + 1] = (1 + growth[layer]) * mean[layer] + source[layer] * variance[layer]
        variance[layer + 1] = (1 + 2 * growth[layer]) * variance[layer] + noise[layer]
    return Corrections(law, mean, variance, _carried(1 + growth, variance[0]))


# ── parts ───────────────────────────────────────────────────────────────────────────────────


def _propagate(
    slope: Array, curvature: Array, noise: Array, variance: Array
) -> tuple[Array, Array]:
    """mean' = T' mean + ½ T'' variance and variance' = T'² variance + noise, from mean 0."""
    means, variances = [np.zeros_like(variance)], [variance]
    for layer in range(len(slope)):
        means.append(slope[layer] * means[-1] + 0.5 * curvature[layer] * variances[-1])
        variances.append(slope[layer] ** 2 * variances[-1] + noise[layer])
    return np.stack(means), np.stack(variances)


def _carried(slope: Array, start: Array) -> Array:
    """N Cov(q_l, q_0): the product of slopes times N Var q_0."""
    return np.concatenate([start[None], start * np.cumprod(slope, axis=0)])
