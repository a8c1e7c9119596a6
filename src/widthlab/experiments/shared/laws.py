"""What theory says of one architecture: the laws that hold for it, and only those."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from widthlab.specs import MLP, Perceptron, ResidualMLP
from widthlab.theory import block_law, finite_width
from widthlab.theory.gaussian import QuadratureError

if TYPE_CHECKING:
    from widthlab.statistics.reduced import Step
    from widthlab.theory.corrections import Corrections

Array = NDArray[np.float64]


def layer_arguments(architecture: Perceptron) -> tuple[str, float, float]:
    """Return the activation, C_W and C_b, which functions of `theory` take in this order."""
    return (
        architecture.activation,
        architecture.weight_variance or 0.0,
        architecture.bias_variance or 0.0,
    )


class Branch(TypedDict):
    """What functions of `theory` ask of a residual branch, by keyword."""

    alpha: float
    branch: str
    inner_variance: float
    position: str
    normalisation: str


def branch_arguments(architecture: ResidualMLP, depth: int) -> Branch:
    """Return what functions of `theory` ask of a branch in a network of `depth` blocks."""
    return Branch(
        alpha=architecture.branch_scale(depth),
        branch=architecture.branch,
        inner_variance=architecture.inner_variance,
        position=architecture.position,
        normalisation=architecture.normalisation,
    )


def scale_free(architecture: Perceptron) -> bool:
    """Say whether layers multiply the signal by independent factors: exact laws need that."""
    return (
        architecture.activation in ("linear", "relu")
        and architecture.normalisation == "none"
        and not architecture.bias
    )


def signal_laws(architecture: Perceptron, width: int, depth: int) -> dict[str, Array]:
    """Return the laws of the signal variance by layer, each of shape (depth + 1,).

    `block_law` is q from q_0 = 1 at infinite width; `exact_square`, `exact_log_mean` and
    `exact_log_variance` are of q_l / q_0 at this width, and `exact_variance` is Var q_l, with that
    of a random embedding. Laws that do not hold are left out.
    """
    laws: dict[str, Array] = {}
    name, c_w, c_b = layer_arguments(architecture)
    normalisation = architecture.normalisation
    if normalisation == "batch":
        return laws
    if isinstance(architecture, MLP):
        laws["block_law"] = block_law.mlp_variance(1.0, depth, name, c_w, c_b, normalisation)
        if scale_free(architecture):
            moments = finite_width.mlp_moments(name, [width] * depth, c_w)
            laws["exact_square"] = moments.square
            laws["exact_variance"] = moments.square - moments.mean**2
            log_law = finite_width.mlp_log_law(name, [width] * depth, c_w)
            laws["exact_log_mean"] = log_law.mean
            laws["exact_log_variance"] = log_law.variance
        return laws
    if architecture.position == "post":
        return laws
    known = branch_arguments(architecture, depth)
    alpha, branch = known["alpha"], known["branch"]
    laws["block_law"] = block_law.residual_variance(1.0, depth, name, c_w, c_b, **known)
    if scale_free(architecture) and (branch == "two_layer" or name == "linear"):
        moments = finite_width.residual_moments(
            name,
            depth,
            width,
            architecture.hidden_width(width),
            alpha=alpha,
            c_w=c_w,
            inner_variance=architecture.inner_variance,
            branch=branch,
        )
        laws["exact_square"] = moments.square
        laws["exact_variance"] = moments.square * (1 + 2 / width) - moments.mean**2
    return laws


def gradient_law(architecture: Perceptron, width: int, depth: int) -> Array | None:
    """Return the exact E[g_i² g_j²]/(E g_i²)² − 1 by layer, shape (depth + 1,), or None.

    It holds for perceptrons without skips at any C_W, since the gain of a layer cancels. The first
    entry, the gradient by the input, is not a layer of `width` neurons but has the same law.
    """
    if not (isinstance(architecture, MLP) and scale_free(architecture)):
        return None
    name = architecture.activation
    return np.array(
        [
            finite_width.gradient_squared_correlation(name, [width] * (depth - layer))
            for layer in range(depth + 1)
        ]
    )


# ── corrections of order 1/N, and what is exact about a chain ───────────────────────────────


@cache
def signal_corrections(architecture: Perceptron, depth: int) -> Corrections | None:
    """Return the corrections of order 1/N of the signal variance, or None where there are none.

    They are missing without a block law, and where a one_layer stream grows beyond the reach of
    their quadrature.
    """
    from widthlab.theory.corrections import mlp_corrections, residual_corrections

    layer = layer_arguments(architecture)
    try:
        if isinstance(architecture, MLP):
            return mlp_corrections(1.0, depth, *layer, architecture.normalisation)
        ratio, known = architecture.hidden_ratio, branch_arguments(architecture, depth)
        return residual_corrections(1.0, depth, *layer, hidden_ratio=ratio, **known)
    except (block_law.NoClosure, QuadratureError):
        return None


@cache
def small_branch_corrections(architecture: Perceptron, depth: int) -> Corrections | None:
    """Return the published leading order in a small branch (Kawase & Ota 2026), where it applies:

    residual networks with one-layer branches, pre-activation, without normalisation.
    """
    from widthlab.theory.corrections import small_branch_corrections as published

    if not (
        isinstance(architecture, ResidualMLP)
        and architecture.branch == "one_layer"
        and architecture.position == "pre"
        and architecture.normalisation == "none"
    ):
        return None
    try:
        alpha = architecture.branch_scale(depth)
        return published(1.0, depth, *layer_arguments(architecture), alpha=alpha)
    except QuadratureError:
        return None


def signal_step(architecture: Perceptron, width: int, depth: int) -> Step | None:
    """Return E and Var of a layer's q given the one below, where q is a Markov chain, or None."""
    from widthlab.theory.one_step import mlp_step, residual_step

    name, c_w, c_b = layer_arguments(architecture)
    if architecture.normalisation != "none":
        return None
    if isinstance(architecture, MLP):
        return lambda q: mlp_step(q, name, c_w, c_b, width)
    if architecture.branch != "two_layer" or architecture.position != "pre":
        return None
    hidden, inner = architecture.hidden_width(width), architecture.inner_variance
    alpha = architecture.branch_scale(depth)
    return lambda q: residual_step(
        q, name, c_w, c_b, width, hidden, alpha=alpha, inner_variance=inner
    )


def exact_signals(
    architecture: Perceptron, width: int, depth: int, draws: int, seed: int
) -> Array | None:
    """Return draws of q_l from the exact law, (draws, depth + 1), where there is one, or None.

    From an input with |x|²/d = 1: perceptrons that multiply the signal by independent factors, and
    two-layer residual networks of a scale-invariant activation.
    """
    from widthlab.theory.residual_chain import sample_residual_variance

    rng = np.random.default_rng([seed, width])
    name, c_w, c_b = layer_arguments(architecture)
    if isinstance(architecture, MLP):
        if not scale_free(architecture):
            return None
        return finite_width.sample_mlp_ratio(name, [width] * depth, draws, rng, c_w)
    if (
        name not in finite_width.NEGATIVE_SLOPE
        or architecture.normalisation != "none"
        or architecture.branch != "two_layer"
        or architecture.position != "pre"
    ):
        return None
    return sample_residual_variance(
        name,
        depth,
        width,
        architecture.hidden_width(width),
        draws,
        rng,
        alpha=architecture.branch_scale(depth),
        c_w=c_w,
        c_b=c_b,
        inner_variance=architecture.inner_variance,
    )
