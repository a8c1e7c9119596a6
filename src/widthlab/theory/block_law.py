"""The block law: signal variance and correlation by layer at infinite width.

The carried signal h_l is the flattened input (l = 0) and the post-activations of each hidden
layer of a multilayer perceptron, or the stream of a residual one. Its variance is
q_l = |h_l|²/N, and the kernel of two inputs is q_l^{ab} = h_l^a·h_l^b/N; at infinite width both
follow exact recursions. Weights have variance C_W / fan-in and biases C_b.

Sources: Poole et al. (2016) and Schoenholz et al. (2017) for perceptrons, Yang & Schoenholz (2017)
for residual networks; layer normalisation at infinite width divides by the standard deviation
across neurons, which is √K, so that what leaves it has variance 1 (its ε is neglected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.gaussian import (
    activation as check_activation,
)
from widthlab.theory.gaussian import (
    derivative_moment,
    pair_moment,
    second_moment,
    second_moment_slope,
)

Array = NDArray[np.float64]


class NoClosure(ValueError):  # noqa: N818 - the name is the physics, not the failure
    """The asked-for network has no closed recursion in signal variances."""


@dataclass(frozen=True)
class PairKernel:
    """The kernels of two inputs a, b by layer, each of shape (depth + 1, …)."""

    first: Array
    """q^{aa}."""
    second: Array
    """q^{bb}."""
    cross: Array
    """q^{ab}."""

    @property
    def correlation(self) -> Array:
        """q^{ab} / √(q^{aa} q^{bb}), the cosine of the two signals; NaN where one vanishes."""
        scale = np.sqrt(self.first * self.second)
        return np.where(scale > 0, self.cross / np.where(scale > 0, scale, 1.0), np.nan)


@dataclass(frozen=True)
class Susceptibilities:
    """How perturbations grow in one layer.

    `parallel` χ_∥ for a change of the signal's variance, `perpendicular` χ_⊥ for a change of its
    direction (and for the mean squared gradient, backwards).
    """

    parallel: Array
    perpendicular: Array


# ── multilayer perceptron ───────────────────────────────────────────────────────────────────


def mlp_variance(
    q0: ArrayLike,
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    normalisation: str = "none",
) -> Array:
    """q_l of h_l = s(W h_{l-1} + b): q_l = g(C_b + C_W q_{l-1}), with q_0 = |x|²/d.

    With normalisation "layer" (of the pre-activations) q_l = g(1) for l ≥ 1. Returns shape
    (depth + 1, *q0.shape). Raises NoClosure for "batch".
    """
    _checked(normalisation, activation)

    def layer(q: Array) -> Array:
        k = c_b + c_w * q
        return second_moment(activation, _normalised_variance(k, normalisation))

    return _iterate(layer, q0, depth)


def mlp_pair(
    q0: tuple[ArrayLike, ArrayLike, ArrayLike],
    depth: int,
    activation: str,
    c_w: float,
    c_b: float,
    normalisation: str = "none",
) -> PairKernel:
    """The kernels of two inputs by layer, from q0 = (q^{aa}, q^{bb}, q^{ab}) of the inputs."""
    _checked(normalisation, activation)

    def layer(q: Array) -> Array:
        k = c_b + c_w * q
        return _pair_branch(activation, _normalised_pair(k, normalisation))

    return _iterate_pair(layer, q0, depth)


def mlp_susceptibilities(k: ArrayLike, activation: str, c_w: float) -> Susceptibilities:
    """χ_∥ = C_W g'(K) and χ_⊥ = C_W ⟨s'²⟩_K at pre-activation variance K (no normalisation)."""
    return Susceptibilities(
        c_w * second_moment_slope(activation, k), c_w * derivative_moment(activation, k)
    )


# ── residual perceptron ─────────────────────────────────────────────────────────────────────


def residual_variance(
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
    """q_l of the residual stream, h_l = h_{l-1} + α F(h_{l-1}), from q_0 of the embedding.

    one_layer, F = W s(h) + b:               q' = q + α² (C_W g(q) + C_b)
    two_layer, F = V s(U h + b_u) + b_v:     q' = q + α² (C_W g(σ_u² q + C_b) + C_b)

    with C_W that of W or V, σ_u² = `inner_variance`, and C_b the variance of every bias. With
    normalisation "layer" at the branch's entrance, q is 1 inside g. `alpha` is the factor on the
    branch at this depth. Returns shape (depth + 1, *q0.shape).

    Raises NoClosure for batch normalisation, and for position "post" unless the activation is
    linear.
    """
    _checked(normalisation, activation, position, branch)

    def block(q: Array) -> Array:
        k = _entrance(branch, inner_variance, c_b, _normalised_variance(q, normalisation))
        return q + alpha**2 * (c_w * second_moment(activation, k) + c_b)

    return _iterate(block, q0, depth)


def residual_pair(
    q0: tuple[ArrayLike, ArrayLike, ArrayLike],
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
) -> PairKernel:
    """The kernels of two inputs along the residual stream; arguments as `residual_variance`."""
    _checked(normalisation, activation, position, branch)

    def block(q: Array) -> Array:
        k = _entrance(branch, inner_variance, c_b, _normalised_pair(q, normalisation))
        return q + alpha**2 * (c_w * _pair_branch(activation, k) + c_b)

    return _iterate_pair(block, q0, depth)


def residual_susceptibilities(
    q: ArrayLike,
    activation: str,
    c_w: float,
    c_b: float,
    *,
    alpha: float,
    branch: str = "two_layer",
    inner_variance: float = 1.0,
) -> Susceptibilities:
    """1 + α² C_W σ² g'(K) and 1 + α² C_W σ² ⟨s'²⟩_K at stream variance q (no normalisation).

    σ² is σ_u² and K = σ_u² q + C_b for two_layer branches; σ² = 1 and K = q for one_layer.
    """
    _checked("none", activation, "pre", branch)
    k = _entrance(branch, inner_variance, c_b, np.asarray(q, dtype=np.float64))
    gain = alpha**2 * c_w * (inner_variance if branch == "two_layer" else 1.0)
    return Susceptibilities(
        1.0 + gain * second_moment_slope(activation, k),
        1.0 + gain * derivative_moment(activation, k),
    )


# ── parts ───────────────────────────────────────────────────────────────────────────────────


def _checked(
    normalisation: str, activation: str, position: str = "pre", branch: str = "two_layer"
) -> None:
    check_activation(activation)
    if normalisation == "batch":
        raise NoClosure(
            "batch normalisation couples the inputs of a batch, so one input's signal variance"
            " follows no recursion of its own; compare with Monte Carlo"
        )
    if normalisation not in ("none", "layer"):
        raise ValueError(f"normalisation must be none, layer or batch, not {normalisation!r}")
    if branch not in ("one_layer", "two_layer"):
        raise ValueError(f"branch must be one_layer or two_layer, not {branch!r}")
    if position not in ("pre", "post"):
        raise ValueError(f"position must be pre or post, not {position!r}")
    if position == "post" and activation != "linear":
        raise NoClosure(
            "a nonlinearity after the addition leaves a stream that is not Gaussian and has a"
            " non-zero mean, so its variance follows no closed recursion; compare with Monte Carlo"
        )


def _entrance(branch: str, inner_variance: float, c_b: float, q: Array) -> Array:
    """Kernel at the branch's nonlinearity from the kernel at its entrance."""
    return inner_variance * q + c_b if branch == "two_layer" else q


def _normalised_variance(k: Array, normalisation: str) -> Array:
    # a vanishing signal stays so: there is nothing to normalise
    return np.where(k > 0, 1.0, 0.0) if normalisation == "layer" else k


def _normalised_pair(k: Array, normalisation: str) -> Array:
    """The (3, …) kernels aa, bb, ab after normalisation."""
    if normalisation == "none":
        return k
    scale = np.sqrt(k[0] * k[1])
    cross = np.where(scale > 0, k[2] / np.where(scale > 0, scale, 1.0), 0.0)
    ones = np.where(k[:2] > 0, 1.0, 0.0)
    return np.concatenate([ones, cross[None]])


def _pair_branch(activation: str, k: Array) -> Array:
    return np.stack(
        [
            second_moment(activation, k[0]),
            second_moment(activation, k[1]),
            pair_moment(activation, k[0], k[1], k[2]),
        ]
    )


def _iterate(step: Callable[[Array], Array], start: ArrayLike, depth: int) -> Array:
    q = np.asarray(start, dtype=np.float64)
    if depth < 0:
        raise ValueError(f"depth must not be negative, but is {depth}")
    if not np.all(np.isfinite(q)):
        raise ValueError("the input's signal variance must be finite")
    layers = [q]
    for _ in range(depth):
        layers.append(step(layers[-1]))
    return np.stack(layers)


def _iterate_pair(
    step: Callable[[Array], Array], q0: tuple[ArrayLike, ArrayLike, ArrayLike], depth: int
) -> PairKernel:
    start = np.stack(np.broadcast_arrays(*(np.asarray(q, dtype=np.float64) for q in q0)))
    layers = _iterate(step, start, depth)
    return PairKernel(layers[:, 0], layers[:, 1], layers[:, 2])
