"""Exact laws at finite width of what is propagated backwards: gradients and the tangent kernel.

They are those of linear and ReLU perceptrons without biases at initialisation. For one input, let
δ_l be the gradient of a scalar output by the pre-activations of layer l. Since δ_l·z_l is the
output f in every layer, the gradient knows of the forward signal along that signal, and is
isotropic otherwise. With K_l alive neurons (Binomial(N_l, ½) for relu, N_l for linear) and
independent X_l ~ χ²_{K_l}, Y_l ~ χ²_{K_l − 1} and c_L ~ χ²_1, all that follows is a chain of
scalars,

    |h_l|² = (C_W / N_{l−1}) X_l |h_{l−1}|²,    |δ_l|² = (C_W / N_l) (Y_l + c_l) |δ_{l+1}|²,
    c_{l−1} = c_l X_l / (Y_l + c_l),

in which every c_l is χ²_1 and independent of the gradients above. Hence gradients alone have
independent factors, as signals have, while products of signals and gradients, of which the tangent
kernel is a sum, do not. Sources: Hanin (2018) and Hanin & Nica (2020) for gradients; the leading
order of the kernel's variance is that of Hanin & Nica (2020), "Finite depth and width corrections
to the neural tangent kernel".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from widthlab.theory.block_law import NoClosure
from widthlab.theory.finite_width import (
    LogLaw,
    dead_probability,
    fluctuation,
    mean_square,
    mlp_log_law,
)

Array = NDArray[np.float64]


def gradient_log_law(name: str, widths: Sequence[int], c_w: float | None = None) -> LogLaw:
    """Exact mean and variance of log(|g_l|² / |g_L|²) at l = 1 … L, each of shape (L,).

    g_l is the gradient of a scalar readout by the post-activations of layer l; `widths` are those
    of the hidden layers, N_1 … N_L. Layer j = l+1 … L multiplies |g|² by what it multiplies the
    signal's variance by (`finite_width.mlp_log_law`), but for |g_L|² and |g_l|², which count the
    dead neurons of their layer too. At equal widths that cancels, and the law is that of a signal
    through L − l layers. It is conditional on a living signal in all layers; `dead` is the
    probability that there is none, one number for all l. `c_w` left out is critical.
    Raises NoClosure for activations but linear and relu.
    """
    layers = mlp_log_law(name, widths[1:], c_w)
    half = np.asarray(widths, dtype=np.float64) / 2.0
    whole = digamma(half) - np.log(half)
    spread = polygamma(1, half)
    dead = float(dead_probability(widths)[-1]) if name == "relu" else 0.0
    return LogLaw(
        layers.mean[-1] - layers.mean + whole - whole[-1],
        layers.variance[-1] - layers.variance + spread - spread[-1],
        np.full(len(half), dead),
    )


def ntk_exact_relative_variance(name: str, widths: Sequence[int]) -> float:
    """Exact Var Θ / (E Θ)² of the tangent kernel Θ(x, x) of one input, at any C_W.

    For a scalar output, weights only, in the NTK parameterisation, with `widths` N_1 … N_L. Its
    leading order at equal widths N is L(11L + 7) / (3(L + 1) N) for relu and
    2L(2L + 1) / (3(L + 1) N) for linear.

    With Θ = Σ_l θ_l over the L + 1 matrices, E θ_l θ_m / (E θ)² for l ≤ m is the product of
    1 + fluctuation/N_j over the layers j < l and j ≥ m, times R_{lm} of the layers between, whose
    signal is in θ_m and whose gradient is in θ_l. From (a, b) = (1, 0), each of these takes
    (a, b) to (a (1 − 1/N_j), a/(κ N_j) + b (1 + fluctuation/N_j)), which is the mean of
    X_j (Y_j + c_j)(a + b c_{j−1}) given c_j; R_{lm} = a + b.
    Raises NoClosure for activations but linear and relu.
    """
    if name not in ("linear", "relu"):
        fluctuation(name)
        raise NoClosure(f"the tangent kernel of {name} has no exact variance")
    n = np.asarray(widths, dtype=np.float64)
    if n.ndim != 1 or np.any(n < 1):
        raise ValueError("widths must be a sequence of whole numbers of at least 1")
    gains = 1.0 + fluctuation(name) / n
    share = 1.0 / (mean_square(name) * n)
    below = np.concatenate([[1.0], np.cumprod(gains)])
    matrices = len(n) + 1
    total = matrices * below[-1]
    a = b = 0.0
    for layer in range(len(n)):
        a += below[layer]
        a, b = a * (1.0 - 1.0 / n[layer]), a * share[layer] + b * gains[layer]
        total += 2.0 * (a + b) * below[-1] / below[layer + 1]
    return float(total / matrices**2 - 1.0)
