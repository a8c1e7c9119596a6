"""The neural tangent kernel at initialisation: its limit at infinite width, and its fluctuation.

Θ(x, x') = ∂f(x)·∂f(x') over all parameters, in the NTK parameterisation of the package's networks:
standard normal parameters behind factors, √(C_W/fan-in) on weights and √C_b on biases, except that
biases of variance 0 start at 0 with factor 1. The readout has weight variance 1 and no bias; the
embedding of a residual network likewise. Normalisations have a scale (1) and a shift (0) for each
neuron, trained without factors. One scalar output; several outputs are independent copies.

Written forwards: Θ_l is the kernel of a unit readout of h_l over the parameters below it, and a
layer maps Θ → C_W⟨s's'⟩(Θ + …), since gradients and signals may be taken for independent at
infinite width. Sources: Jacot, Gabriel & Hongler (2018); Yang (2020), "Tensor Programs II", for the
residual and normalised cases, which are tested here against real networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.block_law import NoClosure, mlp_variance, residual_variance
from widthlab.theory.finite_width import NEGATIVE_SLOPE
from widthlab.theory.gaussian import (
    activation as look_up,
)
from widthlab.theory.gaussian import (
    derivative_moment,
    expectation,
    pair_derivative_moment,
    pair_expectation,
    pair_moment,
    second_moment,
)
from widthlab.theory.gradients import mlp_gradient, summed_fluctuation

Array = NDArray[np.float64]


@dataclass(frozen=True)
class KernelMoments:
    """Θ(x, x) of one input: `mean` at infinite width, and `variance` = N Var Θ to leading order."""

    mean: Array
    variance: Array

    def relative_variance(self, width: float) -> Array:
        """Var Θ / (E Θ)² to leading order in 1/N."""
        return np.asarray(self.variance / self.mean**2 / width)


# ── infinite width ──────────────────────────────────────────────────────────────────────────


def mlp_ntk(
    gram: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    *,
    bias: bool | None = None,
    normalisation: str = "none",
) -> Array:
    """Θ of an MLP on n inputs from their Gram matrix X Xᵀ/d, both (n, n).

    With Q the kernel of h_{l-1}, K = C_W Q + C_b and β² the square of the biases' factor (0 without
    biases): Θ' = ⟨s's'⟩_K (C_W (Θ + Q) + β²), Q' = ⟨ss⟩_K, from Θ = 0; at the end Θ + Q. With
    normalisation "layer", K is normalised, ⟨s's'⟩ multiplies (C_W (Θ + Q) + β²)/√(K_aa K_bb) + 1,
    the 1 for the shifts, and the scales add ⟨s'(u)s'(v)uv⟩.

    `bias` left out is C_b > 0. Raises NoClosure for "batch", ValueError for a Gram matrix that is
    none or C_b > 0 without biases, QuadratureError where a pair expectation does not converge.
    """
    q = _gram(gram)
    theta = np.zeros_like(q)
    mlp_variance(np.diagonal(q), 0, activation, c_w, c_b, normalisation)  # refuses bad arguments
    beta = _bias_factor(c_b, bias)
    for _ in range(depth):
        k = c_w * q + c_b
        below = c_w * (theta + q) + beta
        if normalisation == "layer":
            k, scale = _normalised(k)
            theta = _derivative(activation, k) * (below / scale + 1) + _scaled(activation, k)
        else:
            theta = _derivative(activation, k) * below
        q = _signal(activation, k)
    return theta + q


def residual_ntk(
    gram: ArrayLike,
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
    bias: bool | None = None,
) -> Array:
    """Θ of a residual perceptron from X Xᵀ/d, both (n, n); arguments as `residual_variance`.

    From Q = Θ = X Xᵀ/d (the embedding trains too), at every block, and at the end Θ + Q:

    one_layer:  Θ' = Θ + α² [C_W ⟨ss⟩_Q + β² + C_W ⟨s's'⟩_Q Θ]
    two_layer:  Θ' = Θ + α² [C_W ⟨ss⟩_K + β² + C_W ⟨s's'⟩_K (σ_u² (Θ + Q) + β²)], K = σ_u² Q + C_b.

    The hidden width of a branch does not matter as long as it grows with the network's. With
    normalisation "layer", Q inside the bracket is normalised, Θ there is divided by √(Q_aa Q_bb),
    and scales and shifts of the entrance add to it: as in `mlp_ntk` for one_layer, and Q + 1 for
    two_layer. Raises as `mlp_ntk`, and NoClosure for position "post".
    """
    q = theta = _gram(gram)
    residual_variance(  # refuses bad arguments
        np.diagonal(q),
        0,
        activation,
        c_w,
        c_b,
        alpha=alpha,
        branch=branch,
        position=position,
        normalisation=normalisation,
    )
    beta = _bias_factor(c_b, bias)
    layer, two = normalisation == "layer", branch == "two_layer"
    for _ in range(depth):
        entrance, below = q, theta
        if layer:
            entrance, scale = _normalised(q)
            below = theta / scale + 1 + (entrance if two else 0.0)
        if two:
            k = inner_variance * entrance + c_b
            below = inner_variance * (below + entrance) + beta
        else:
            k = entrance
        scales = _scaled(activation, k) if layer and not two else 0.0
        signal = c_w * _signal(activation, k)
        trained = c_w * (_derivative(activation, k) * below + scales)
        theta = theta + alpha**2 * (signal + beta + trained)
        q = q + alpha**2 * (signal + c_b)
    return theta + q


# ── finite width ────────────────────────────────────────────────────────────────────────────


def mlp_ntk_moments(
    q0: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    *,
    bias: bool | None = None,
) -> KernelMoments:
    """Mean at infinite width and leading variance of Θ(x, x) of an MLP of equal hidden widths.

    Θ = q_L + Σ_l (C_W q_{l-1} + β²)|δ_l|², with δ_l the gradient by the pre-activations of layer l.
    Its terms move with the kernels K_l and with the factors by which layers multiply gradients
    (see `gradients.mlp_gradient_correlation`), so the leading N Var Θ is that of a weighted sum of
    both: factor m counts for all layers l ≤ m. For critical relu without biases it is
    (L + 1) L (11 L + 7)/3, as Hanin & Nica (2020) have it; derived here for any activation, and
    tested by brute force. No normalisation. Shapes those of q0.
    """
    law = mlp_variance(q0, depth, activation, c_w, c_b)
    beta = _bias_factor(c_b, bias)
    k = c_b + c_w * law[:-1]
    below = k - c_b + beta
    # |δ_l|²: the gradient by h_l times ⟨s'²⟩
    size = mlp_gradient(q0, depth, activation, c_w, c_b)[1:] * derivative_moment(activation, k)
    parts = below * size
    variance = summed_fluctuation(
        law, activation, c_w, c_b, np.cumsum(parts, axis=0), kernels=size, last=1.0
    )
    return KernelMoments(law[-1] + parts.sum(axis=0), variance)


def ntk_mean(depth: int) -> float:
    """E Θ(x, x) = L + 1 of a critical ReLU perceptron with L hidden layers, at every width.

    NTK parameterisation, weights only, readout variance 1/N, |x|²/d = 1, scalar output. Source:
    Jacot et al. (2018).
    """
    return depth + 1.0


def ntk_relative_variance(depth: int, width: int) -> float:
    """Var Θ / (E Θ)² to leading order in 1/N: L(11L + 7) / (3(L + 1) N), conventions of `ntk_mean`.

    Exact at L = 1 (3/N); higher orders grow with L/N (at L = 8, N = 64 the true value is about a
    quarter larger). Source: Hanin & Nica (2020), constants as in the project's theory notes.
    """
    return depth * (11.0 * depth + 7.0) / (3.0 * (depth + 1.0) * width)


# ── parts ───────────────────────────────────────────────────────────────────────────────────


def _gram(gram: ArrayLike) -> Array:
    q = np.asarray(gram, dtype=np.float64)
    if q.ndim != 2 or q.shape[0] != q.shape[1]:
        raise ValueError(f"a Gram matrix must be square, but its shape is {q.shape}")
    if not np.all(np.isfinite(q)) or not np.allclose(q, q.T, rtol=1e-9, atol=0):
        raise ValueError("a Gram matrix must be finite and symmetric")
    return q


def _bias_factor(c_b: float, bias: bool | None) -> float:
    """β², the square of the factor on biases; 0 without them."""
    if bias is False and c_b > 0:
        raise ValueError(f"biases of variance {c_b} need bias to be true")
    return (c_b if c_b > 0 else 1.0) if (c_b > 0 if bias is None else bias) else 0.0


def _normalised(k: Array) -> tuple[Array, Array]:
    """Correlations and √(K_aa K_bb)."""
    root = np.sqrt(np.diagonal(k))
    if not np.all(root > 0):
        raise NoClosure("layer normalisation of a vanishing signal has no tangent kernel")
    scale = root[:, None] * root
    return np.clip(k / scale, -1.0, 1.0), scale


def _matrix(
    k: Array, diagonal: Callable[[Array], Array], pair: Callable[[Array, Array, Array], Array]
) -> Array:
    """A symmetric function of kernel entries, each pair of inputs once."""
    own = np.diagonal(k)
    result = np.diag(diagonal(own))
    i, j = np.triu_indices(len(own), 1)
    result[i, j] = result[j, i] = pair(own[i], own[j], k[i, j])
    return result


def _signal(name: str, k: Array) -> Array:
    return _matrix(k, lambda a: second_moment(name, a), lambda a, b, c: pair_moment(name, a, b, c))


def _derivative(name: str, k: Array) -> Array:
    return _matrix(
        k,
        lambda a: derivative_moment(name, a),
        lambda a, b, c: pair_derivative_moment(name, a, b, c),
    )


def _scaled(name: str, k: Array) -> Array:
    """⟨s'(u) s'(v) u v⟩; of scale-invariant activations z s'(z) = s(z)."""
    if name in NEGATIVE_SLOPE:
        return _signal(name, k)
    slope = look_up(name).derivative
    return _matrix(
        k,
        lambda a: expectation(lambda z: (z * slope(z)) ** 2, a),
        lambda a, b, c: pair_expectation(lambda z: z * slope(z), a, b, c),
    )
