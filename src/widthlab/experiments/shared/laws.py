"""What theory says of one architecture: the laws that hold for it, and only those."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from widthlab.specs import MLP, Perceptron
from widthlab.theory import block_law, finite_width

Array = NDArray[np.float64]


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
    `exact_log_variance` are of q_l / q_0 at this width. Laws that do not hold are left out.
    """
    laws: dict[str, Array] = {}
    name, c_w = architecture.activation, architecture.weight_variance or 1.0
    c_b, normalisation = architecture.bias_variance or 0.0, architecture.normalisation
    if normalisation == "batch":
        return laws
    if isinstance(architecture, MLP):
        laws["block_law"] = block_law.mlp_variance(1.0, depth, name, c_w, c_b, normalisation)
        if scale_free(architecture):
            laws["exact_square"] = finite_width.mlp_moments(name, [width] * depth, c_w).square
            log_law = finite_width.mlp_log_law(name, [width] * depth, c_w)
            laws["exact_log_mean"] = log_law.mean
            laws["exact_log_variance"] = log_law.variance
        return laws
    if architecture.position == "post":
        return laws
    alpha, branch = architecture.branch_scale(depth), architecture.branch
    laws["block_law"] = block_law.residual_variance(
        1.0,
        depth,
        name,
        c_w,
        c_b,
        alpha=alpha,
        branch=branch,
        inner_variance=architecture.inner_variance,
        normalisation=normalisation,
    )
    if scale_free(architecture) and (branch == "two_layer" or name == "linear"):
        laws["exact_square"] = finite_width.residual_moments(
            name,
            depth,
            width,
            architecture.hidden_width(width),
            alpha=alpha,
            c_w=c_w,
            inner_variance=architecture.inner_variance,
            branch=branch,
        ).square
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
