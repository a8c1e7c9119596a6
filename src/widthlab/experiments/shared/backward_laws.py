"""What theory says of the gradients and the tangent kernel of one architecture, where it does."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.laws import branch_arguments, layer_arguments, scale_free
from widthlab.specs import MLP, Perceptron
from widthlab.theory import backward, gradients, signed_gradients, tangent_kernel
from widthlab.theory.block_law import NoClosure
from widthlab.theory.finite_width import LogLaw
from widthlab.theory.gaussian import QuadratureError

Array = NDArray[np.float64]


def exact_backwards(architecture: Perceptron) -> bool:
    """Say whether the backward pass has exact laws: linear and ReLU perceptrons without biases."""
    return isinstance(architecture, MLP) and scale_free(architecture)


def gradient_norm(architecture: Perceptron, depth: int) -> Array | None:
    """Return E|g_l|² at infinite width by layer, (depth + 1,), from q_0 = 1; None without a law.

    Readouts of muP are smaller than those of which the law is, so that it has none here.
    """
    if architecture.parameterisation == "mup":
        return None
    name, c_w, c_b = layer_arguments(architecture)
    try:
        if isinstance(architecture, MLP):
            return gradients.mlp_gradient(1.0, depth, name, c_w, c_b, architecture.normalisation)
        known = branch_arguments(architecture, depth)
        return gradients.residual_gradient(1.0, depth, name, c_w, c_b, **known)
    except (NoClosure, QuadratureError):
        return None


def gradient_logarithms(architecture: Perceptron, width: int, depth: int) -> LogLaw | None:
    """Return the exact law of log(|g_l|²/|g_L|²) at l = 1 … depth, or None."""
    if not exact_backwards(architecture):
        return None
    c_w = architecture.weight_variance
    return backward.gradient_log_law(architecture.activation, [width] * depth, c_w)


def gradient_leading(architecture: Perceptron, width: int, depth: int) -> Array | None:
    """Return E[g_i² g_j²]/(E g_i²)² − 1 to leading order by layer, (depth + 1,), or None."""
    if not isinstance(architecture, MLP) or architecture.normalisation != "none":
        return None
    found = _correlation(depth, *layer_arguments(architecture))
    return None if found is None else np.asarray(found / width)


def signed_correlation(architecture: Perceptron, width: int, depth: int) -> Array | None:
    """Return E[g_i g_j]/E g_i² by layer, (depth + 1,); None without a law.

    Exactly zero where the sign of a neuron can be flipped (`sign_symmetric`); otherwise to leading
    order in 1/N, for perceptrons without normalisation.
    """
    if sign_symmetric(architecture):
        return np.zeros(depth + 1)
    if not isinstance(architecture, MLP) or architecture.normalisation != "none":
        return None
    found = _signed(depth, *layer_arguments(architecture))
    return None if found is None else np.asarray(found / width)


def sign_symmetric(architecture: Perceptron) -> bool:
    """Say whether the signs of a carried signal's neurons are independent coin tosses.

    They are where the activation is odd, in the stream of a two-layer branch in position pre,
    where no function acts on single neurons of the stream, and so are those of gradients in ReLU
    perceptrons without biases. Normalisation over neurons takes the freedom away.
    """
    if architecture.normalisation != "none":
        return False
    if architecture.activation in ("linear", "tanh", "erf") or exact_backwards(architecture):
        return True
    return (
        not isinstance(architecture, MLP)
        and architecture.branch == "two_layer"
        and architecture.position == "pre"
    )


def kernel(architecture: Perceptron, depth: int, gram: Array) -> Array | None:
    """Return the tangent kernel at infinite width, (n, n), from X Xᵀ/d.

    None where there is no law, or where a Gaussian expectation in it does not converge.
    """
    layer = layer_arguments(architecture)
    try:
        if isinstance(architecture, MLP):
            normalisation = architecture.normalisation
            return tangent_kernel.mlp_ntk(
                gram, depth, *layer, bias=architecture.bias, normalisation=normalisation
            )
        known = branch_arguments(architecture, depth)
        return tangent_kernel.residual_ntk(gram, depth, *layer, bias=architecture.bias, **known)
    except (NoClosure, QuadratureError):
        return None


def kernel_variance(architecture: Perceptron, width: int, depth: int) -> dict[str, float]:
    """Return Var Θ/(E Θ)² of one input with q_0 = 1: `exact` and to `leading` order in 1/N."""
    laws: dict[str, float] = {}
    if not isinstance(architecture, MLP) or architecture.normalisation != "none":
        return laws
    name, c_w, c_b = layer_arguments(architecture)
    try:
        moments = tangent_kernel.mlp_ntk_moments(1.0, depth, name, c_w, c_b, bias=architecture.bias)
    except QuadratureError:
        return laws
    laws["leading"] = float(moments.relative_variance(width))
    if exact_backwards(architecture):
        laws["exact"] = backward.ntk_exact_relative_variance(name, [width] * depth)
    return laws


# These take long in deep networks, and are asked for at every width. None: no quadrature converges.


@cache
def _correlation(depth: int, name: str, c_w: float, c_b: float) -> Array | None:
    try:
        return gradients.mlp_gradient_correlation(1.0, depth, name, c_w, c_b)
    except QuadratureError:
        return None


@cache
def _signed(depth: int, name: str, c_w: float, c_b: float) -> Array | None:
    try:
        return signed_gradients.mlp_signed_correlation(1.0, depth, name, c_w, c_b)
    except QuadratureError:
        return None
