"""Laws at finite width and initialisation: exact ones first, then leading orders in 1/N.

They hold for Gaussian weights without biases. The exact ones need a scale-invariant activation
(linear, relu, leaky_relu), s(z) = z for z > 0 and λz below, because then every layer multiplies
the signal variance q_l = |h_l|²/N_l by an independent factor:

    q_l / q_{l-1} = (C_W / N_l) · (χ²_K + λ²·χ²_{N_l - K}),   K ~ Binomial(N_l, ½).

The mean of q does not move at criticality; what drifts is the typical value, and the moments are
heavy-tailed in L/N, so compare logarithms, or moments at small L/N. Sources: Hanin & Nica (2020),
"Products of many large random matrices and gradients in deep neural networks"; Hanin & Nica (2020),
"Finite depth and width corrections to the neural tangent kernel"; Roberts, Yaida & Hanin (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma
from scipy.stats import binom

from widthlab.theory.block_law import NoClosure
from widthlab.theory.criticality import LEAKY_SLOPE
from widthlab.theory.gaussian import activation

Array = NDArray[np.float64]

NEGATIVE_SLOPE: dict[str, float] = {"linear": 1.0, "relu": 0.0, "leaky_relu": LEAKY_SLOPE}
"""λ of the scale-invariant activations."""


@dataclass(frozen=True)
class LogLaw:
    """Mean and variance of log(q_l / q_0) by layer, shape (depth + 1,).

    For relu they are conditional on the signal being alive at that layer; `dead` is the
    probability that it is not.
    """

    mean: Array
    variance: Array
    dead: Array


@dataclass(frozen=True)
class Moments:
    """E q_l / q_0 and E q_l² / q_0² by layer, shape (depth + 1,)."""

    mean: Array
    square: Array


def mean_square(name: str) -> float:
    """κ = ⟨s²⟩_K / K of a scale-invariant activation: 1 linear, ½ relu."""
    return 0.5 * (1.0 + _slope(name) ** 2)


def fluctuation(name: str) -> float:
    """N · Var(q_l / q_{l-1}) of one critical layer, ⟨s⁴⟩/⟨s²⟩² − 1: 5 for relu, 2 for linear."""
    slope = _slope(name)
    return 6.0 * (1.0 + slope**4) / (1.0 + slope**2) ** 2 - 1.0


# ── multilayer perceptron ───────────────────────────────────────────────────────────────────


def mlp_moments(name: str, widths: Sequence[int], c_w: float | None = None) -> Moments:
    """Exact E q_l / q_0 = ∏ κ C_W and E q_l² / q_0² = ∏ (κ C_W)² (1 + fluctuation/N_l).

    `widths` are those of the hidden layers, N_1 … N_L; q_l are post-activations. `c_w` left out is
    critical, κ C_W = 1: then the mean stays, and the second moment is ∏(1 + 5/N_l) for relu and
    ∏(1 + 2/N_l) for linear. The kurtosis of the output over 3 is the same product.
    Source: Hanin & Nica (2020).
    """
    n = _widths(widths)
    gain = 1.0 if c_w is None else mean_square(name) * c_w
    square = gain**2 * (1.0 + fluctuation(name) / n)
    return Moments(_products(np.full_like(n, gain)), _products(square))


def mlp_log_law(name: str, widths: Sequence[int], c_w: float | None = None) -> LogLaw:
    """Exact mean and variance of log(q_l / q_0), for linear and relu.

    Linear: each layer adds ψ(N/2) + log(2 C_W/N), with variance ψ'(N/2). ReLU: with
    K ~ Bin(N, ½) alive neurons, K > 0, it adds ψ(K/2) + log(2 C_W/N), with variance
    Var ψ(K/2) + E ψ'(K/2); a layer is dead with probability 2^-N. `c_w` left out is critical (1
    for linear, 2 for relu). Raises NoClosure for leaky_relu, whose factor is a mixture of weighted
    χ²: use `sample_mlp_ratio`.
    """
    n = _widths(widths)
    if name not in ("linear", "relu"):
        _slope(name)
        raise NoClosure(f"log q of {name} has no closed law; use sample_mlp_ratio")
    gain = 1.0 / mean_square(name) if c_w is None else c_w
    layers = [_log_layer(name, int(width)) for width in n]
    mean = np.array([m for m, _ in layers]) + np.log(2.0 * gain / n)
    variance = np.array([v for _, v in layers])
    dead = dead_probability(widths) if name == "relu" else np.zeros(len(n) + 1)
    return LogLaw(_sums(mean), _sums(variance), dead)


def _log_layer(name: str, width: int) -> tuple[float, float]:
    """Mean and variance of log(χ²/2) of one layer."""
    if name == "linear":
        return float(digamma(width / 2)), float(polygamma(1, width / 2))
    alive = np.arange(1, width + 1)
    weights = binom.pmf(alive, width, 0.5)
    weights /= weights.sum()
    typical = digamma(alive / 2)
    mean = float(weights @ typical)
    spread = float(weights @ (typical - mean) ** 2)
    return mean, spread + float(weights @ polygamma(1, alive / 2))


def dead_probability(widths: Sequence[int]) -> Array:
    """Probability that a ReLU signal has died by layer l: 1 − ∏(1 − 2^-N_l), shape (L + 1,)."""
    return -np.expm1(_sums(np.log1p(-np.exp2(-_widths(widths)))))


def sample_mlp_ratio(
    name: str,
    widths: Sequence[int],
    draws: int,
    generator: np.random.Generator,
    c_w: float | None = None,
) -> Array:
    """Exact draws of q_l / q_0, shape (draws, L + 1), without making any weights.

    Use them for quantiles and medians of q. Dead relu signals are zero.
    """
    n = _widths(widths)
    gain = 1.0 / mean_square(name) if c_w is None else c_w
    slope = _slope(name)
    ratio = np.ones((draws, len(n) + 1))
    for layer, width in enumerate(n.astype(int), start=1):
        up = generator.binomial(width, 0.5, size=draws)
        total = 2.0 * generator.standard_gamma(up / 2)
        if slope:
            total += slope**2 * 2.0 * generator.standard_gamma((width - up) / 2)
        ratio[:, layer] = ratio[:, layer - 1] * gain / width * total
    return ratio


# ── residual perceptron ─────────────────────────────────────────────────────────────────────


def residual_moments(
    name: str,
    depth: int,
    width: int,
    hidden: int,
    *,
    alpha: float,
    c_w: float,
    inner_variance: float = 1.0,
    branch: str = "two_layer",
) -> Moments:
    """Exact E q_l / q_0 and E q_l² / q_0² of a residual stream of embedding width D.

    Blocks h' = h + α V s(U h) with hidden width M, a = α² C_W σ_u² κ:

        E q' = (1 + a) q,
        E q'² = [1 + 2a + 4a/D + (1 + 2/D)(1 + fluctuation/M) a²] q²,

    for linear, relu and leaky_relu (the branch's output is Gaussian given h, and its variance an
    independent factor). Of one_layer branches only the linear one is exact:
    E q'² = [(1 + a)² + (4a + 2a²)/D] q² with a = α² C_W; with another activation the skip keeps a
    memory of signs, and NoClosure is raised. The law is given q_0: a random embedding's own
    fluctuation, E q_0²/(E q_0)² = 1 + 2/D, multiplies it.
    """
    d = float(_widths([width])[0])
    m = float(_widths([hidden])[0])
    if branch == "two_layer":
        a = alpha**2 * c_w * inner_variance * mean_square(name)
        square = 1 + 2 * a + 4 * a / d + (1 + 2 / d) * (1 + fluctuation(name) / m) * a**2
    elif branch == "one_layer":
        if name != "linear":
            activation(name)
            raise NoClosure(
                f"a one_layer {name} residual network has no exact law at finite width: the skip"
                " keeps a memory of the signs; compare with Monte Carlo"
            )
        a = alpha**2 * c_w
        square = (1 + a) ** 2 + (4 * a + 2 * a**2) / d
    else:
        raise ValueError(f"branch must be one_layer or two_layer, not {branch!r}")
    blocks = np.ones(depth)
    return Moments(_products((1 + a) * blocks), _products(square * blocks))


# ── gradients ───────────────────────────────────────────────────────────────────────────────


def gradient_squared_correlation(name: str, widths_above: Sequence[int]) -> float:
    """E[g_i² g_j²] / (E g_i²)² − 1 of two neurons' gradients (i ≠ j): ∏(1 + fluctuation/N_l) − 1.

    g is the gradient of one scalar readout with respect to the post-activations of a layer of a
    multilayer perceptron, and `widths_above` are the hidden widths above that layer; at equal
    widths, (1 + 5/N)^k − 1 for relu and (1 + 2/N)^k − 1 for linear, exactly. The signed
    correlation E[g_i g_j] is zero at every width by symmetry. Source: Hanin & Nica (2020).
    """
    n = _widths(widths_above)
    return float(np.expm1(np.log1p(fluctuation(name) / n).sum()))


# ── parts ───────────────────────────────────────────────────────────────────────────────────


def _slope(name: str) -> float:
    activation(name)
    if name not in NEGATIVE_SLOPE:
        raise NoClosure(
            f"{name} is not scale-invariant, so it has no exact law at finite width;"
            f" these have: {', '.join(NEGATIVE_SLOPE)}"
        )
    return NEGATIVE_SLOPE[name]


def _widths(widths: Sequence[int]) -> Array:
    n = np.asarray(widths, dtype=np.float64)
    if n.ndim != 1 or np.any(n < 1):
        raise ValueError("widths must be a sequence of whole numbers of at least 1")
    return n


def _products(factors: Array) -> Array:
    return np.concatenate([[1.0], np.cumprod(factors)])


def _sums(terms: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(terms)])
