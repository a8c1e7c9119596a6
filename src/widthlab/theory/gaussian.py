"""Activations, and their expectations over Gaussian pre-activations.

Notation: ⟨f⟩_K is the mean of f(z) over z ~ N(0, K). Closed forms are used where they exist and
quadrature elsewhere; every quadrature doubles its nodes until two results agree, or raises. (Few
fixed Gauss–Hermite nodes are a trap: at K = 4 they put ⟨tanh'²⟩-type values off by a large factor,
because tanh' lives on |z| ≲ 1 while the nodes spread over √K.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, expit, ndtr

from widthlab.theory.criticality import LEAKY_SLOPE

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

TOLERANCE = 1e-11
"""Agreement asked of two successive quadratures, relative to ⟨|f|⟩."""

_RANGE = 16.0  # in standard deviations; the density there is 1e-56
_PANEL_NODES = (16, 32, 64, 128)
_PLANE_NODES = (64, 128, 256, 512, 1024, 2048)
_PLANE_RANGE = 10.0


class QuadratureError(ArithmeticError):
    """A Gaussian expectation did not converge when its nodes were doubled."""


class Activation(NamedTuple):
    """An activation function s and its first derivative s', elementwise on arrays."""

    value: Function
    derivative: Function


def _gauss(z: Array) -> Array:
    """The standard normal density."""
    density: Array = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return density


ACTIVATIONS: dict[str, Activation] = {
    "linear": Activation(lambda z: z, np.ones_like),
    "relu": Activation(lambda z: np.maximum(z, 0.0), lambda z: np.where(z > 0, 1.0, 0.0)),
    "leaky_relu": Activation(
        lambda z: np.where(z > 0, z, LEAKY_SLOPE * z),
        lambda z: np.where(z > 0, 1.0, LEAKY_SLOPE),
    ),
    "tanh": Activation(np.tanh, lambda z: 1.0 - np.tanh(z) ** 2),
    "erf": Activation(erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-z * z)),
    "gelu": Activation(lambda z: z * ndtr(z), lambda z: ndtr(z) + z * _gauss(z)),
    "silu": Activation(lambda z: z * expit(z), lambda z: expit(z) * (1.0 + z * expit(-z))),
}
"""Activations by name, as the models use them (gelu is z·Φ(z), not its tanh approximation)."""


def activation(name: str) -> Activation:
    """Look an activation up; raises ValueError naming the known ones."""
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


# ── expectations by quadrature ──────────────────────────────────────────────────────────────


def expectation(function: Function, variance: ArrayLike) -> Array:
    """⟨f⟩_K for each K in `variance` (any shape), by quadrature.

    Gauss–Legendre on panels that shrink by halves towards z = 0 on either side, so that a kink at
    0, features of f of order 1, and the Gaussian's own scale √K are all resolved at any K. Nodes
    per panel double until two results agree to TOLERANCE·⟨|f|⟩.

    Raises QuadratureError where they do not, where f is not finite, or where f grows too fast for
    the tails to be negligible; ValueError for a negative or non-finite K.
    """
    k = _variances(variance)
    scale = np.sqrt(k)[..., None]
    finest = min(1.0, 1.0 / float(scale.max(initial=1.0)))
    panels = int(np.ceil(np.log2(_RANGE / finest))) + 1
    edges = np.concatenate([[0.0], _RANGE * 0.5 ** np.arange(panels, -1, -1)])
    edges = np.concatenate([-edges[:0:-1], edges])
    previous: Array | None = None
    for nodes in _PANEL_NODES:
        t, weights = _panel_rule(edges, nodes)
        values = function(scale * t)
        if not np.all(np.isfinite(values)):
            raise QuadratureError("the integrand of a Gaussian expectation is not finite")
        result = np.asarray(values @ weights)
        size = np.abs(values) @ weights
        if previous is not None and np.all(np.abs(result - previous) <= TOLERANCE * size):
            tail = np.abs(values[..., [0, -1]]).max(axis=-1) * _gauss(np.asarray(_RANGE - 1.0))
            if np.all(tail <= TOLERANCE * size):
                return result
            raise QuadratureError("the integrand grows too fast for a Gaussian expectation")
        previous = result
    raise QuadratureError(
        f"a Gaussian expectation did not converge with {_PANEL_NODES[-1]} nodes per panel"
        f" (K up to {float(k.max()):.3g})"
    )


def pair_expectation(
    function: Function, first: ArrayLike, second: ArrayLike, cross: ArrayLike
) -> Array:
    """⟨f(u)·f(v)⟩ over Gaussian (u, v) with variances `first`, `second` and covariance `cross`.

    For smooth f only: the trapezoidal rule in the plane, which converges exponentially for
    functions analytic near the real axis. Nodes per axis double until two results agree.
    Arguments broadcast. Raises QuadratureError where they do not agree (a kink, or a variance
    above some thousands), and ValueError where the covariance is not one.
    """
    a, b, c = _pair(first, second, cross)
    results = [
        _plane(function, *entry) for entry in zip(a.ravel(), b.ravel(), c.ravel(), strict=True)
    ]
    return np.array(results, dtype=np.float64).reshape(a.shape)


def _plane(function: Function, first: float, second: float, cross: float) -> float:
    product = np.sqrt(first * second)
    correlation = cross / product if product > 0 else 0.0
    sine = np.sqrt(max(0.0, 1.0 - correlation**2))
    previous: float | None = None
    for nodes in _PLANE_NODES:
        t = np.linspace(-_PLANE_RANGE, _PLANE_RANGE, nodes + 1)
        weights = _gauss(t) * (t[1] - t[0])
        left = function(np.sqrt(first) * t) * weights
        right = function(np.sqrt(second) * (correlation * t[:, None] + sine * t[None, :]))
        if not (np.all(np.isfinite(left)) and np.all(np.isfinite(right))):
            raise QuadratureError("the integrand of a Gaussian expectation is not finite")
        result = float(left @ right @ weights)
        size = float(np.abs(left) @ np.abs(right) @ weights)
        if previous is not None and abs(result - previous) <= TOLERANCE * size:
            return result
        previous = result
    raise QuadratureError(
        f"a pair expectation did not converge with {_PLANE_NODES[-1]} nodes per axis"
        f" (variances {first:.3g}, {second:.3g})"
    )


def _panel_rule(edges: Array, nodes: int) -> tuple[Array, Array]:
    """Nodes and Gaussian weights of Gauss–Legendre on every panel between `edges`."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    half = 0.5 * np.diff(edges)[:, None]
    t = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * x).ravel()
    return t, (half * w).ravel() * _gauss(t)


def _variances(variance: ArrayLike) -> Array:
    k = np.asarray(variance, dtype=np.float64)
    if not np.all(np.isfinite(k)) or np.any(k < 0):
        raise ValueError("a variance must be finite and not negative")
    return k


def _pair(first: ArrayLike, second: ArrayLike, cross: ArrayLike) -> tuple[Array, Array, Array]:
    """Broadcast, validate, and clip rounding beyond |cross| = √(first·second)."""
    a, b, c = np.broadcast_arrays(
        _variances(first), _variances(second), np.asarray(cross, dtype=np.float64)
    )
    bound = np.sqrt(a * b)
    if not np.all(np.abs(c) <= bound * (1 + 1e-9)):
        raise ValueError("a covariance must not exceed the product of standard deviations")
    return a, b, np.clip(c, -bound, bound)


# ── the kernels of the theory ───────────────────────────────────────────────────────────────


def second_moment(name: str, variance: ArrayLike) -> Array:
    """g(K) = ⟨s²⟩_K.

    Closed for linear, relu, leaky_relu, erf (Williams 1997) and gelu; quadrature for the others.
    """
    k = _variances(variance)
    if name in _SECOND_MOMENT:
        return _SECOND_MOMENT[name](k)
    s = activation(name).value
    return expectation(lambda z: s(z) ** 2, k)


def second_moment_slope(name: str, variance: ArrayLike) -> Array:
    """g'(K) = dg/dK = ⟨z·s·s'⟩_K / K (integration by parts), and s'(0)² at K = 0."""
    k = _variances(variance)
    if name in _SECOND_MOMENT_SLOPE:
        return _SECOND_MOMENT_SLOPE[name](k)
    s = activation(name)
    k = np.maximum(k, _TINY)
    return expectation(lambda z: z * s.value(z) * s.derivative(z), k) / k


def derivative_moment(name: str, variance: ArrayLike) -> Array:
    """⟨s'²⟩_K; closed for linear, relu, leaky_relu, erf and gelu, quadrature for the others."""
    k = _variances(variance)
    if name in _DERIVATIVE_MOMENT:
        return _DERIVATIVE_MOMENT[name](k)
    slope = activation(name).derivative
    return expectation(lambda z: slope(z) ** 2, k)


def pair_moment(name: str, first: ArrayLike, second: ArrayLike, cross: ArrayLike) -> Array:
    """⟨s(u)·s(v)⟩ of Gaussian (u, v); arguments as in `pair_expectation`.

    Closed for linear, relu and leaky_relu (Cho & Saul 2009) and erf (Williams 1997).
    """
    if name in _PAIR_MOMENT:
        return _PAIR_MOMENT[name](*_pair(first, second, cross))
    return pair_expectation(activation(name).value, first, second, cross)


def pair_derivative_moment(
    name: str, first: ArrayLike, second: ArrayLike, cross: ArrayLike
) -> Array:
    """⟨s'(u)·s'(v)⟩ of Gaussian (u, v); arguments and closed forms as in `pair_moment`."""
    if name in _PAIR_DERIVATIVE_MOMENT:
        return _PAIR_DERIVATIVE_MOMENT[name](*_pair(first, second, cross))
    return pair_expectation(activation(name).derivative, first, second, cross)


_TINY = 1e-12  # a variance that stands for 0 where one divides by it
_LEAKY_MEAN_SQUARE = 0.5 * (1.0 + LEAKY_SLOPE**2)


def _gelu_second_moment(k: Array) -> Array:
    root = np.pi * (1 + k) * np.sqrt(1 + 2 * k)
    return k * (0.25 + np.arcsin(k / (1 + k)) / (2 * np.pi)) + k * k / root


def _gelu_derivative_moment(k: Array) -> Array:
    """⟨Φ²⟩ + 2⟨zΦφ⟩ + ⟨z²φ²⟩, each a Gaussian integral."""
    return (
        0.25
        + np.arcsin(k / (1 + k)) / (2 * np.pi)
        + k / (np.pi * (1 + k) * np.sqrt(1 + 2 * k))
        + k / (2 * np.pi * (1 + 2 * k) ** 1.5)
    )


def _angle(a: Array, b: Array, c: Array) -> Array:
    """The angle between two inputs; a vanishing input counts as orthogonal."""
    product = np.sqrt(a * b)
    return np.arccos(np.clip(c / np.where(product > 0, product, 1.0), -1.0, 1.0))


def _relu_pair(a: Array, b: Array, c: Array) -> Array:
    angle = _angle(a, b, c)
    return (np.sqrt(a * b) * np.sin(angle) + c * (np.pi - angle)) / (2 * np.pi)


def _relu_pair_derivative(a: Array, b: Array, c: Array) -> Array:
    return (np.pi - _angle(a, b, c)) / (2 * np.pi)


def _leaky_pair(a: Array, b: Array, c: Array) -> Array:
    """s(z) = r(z) − λ·r(−z) with r the ReLU, expanded."""
    same, opposite = _relu_pair(a, b, c), _relu_pair(a, b, -c)
    return (1 + LEAKY_SLOPE**2) * same - 2 * LEAKY_SLOPE * opposite


def _leaky_pair_derivative(a: Array, b: Array, c: Array) -> Array:
    same, opposite = _relu_pair_derivative(a, b, c), _relu_pair_derivative(a, b, -c)
    return (1 + LEAKY_SLOPE**2) * same + 2 * LEAKY_SLOPE * opposite


def _erf_pair(a: Array, b: Array, c: Array) -> Array:
    return 2 / np.pi * np.arcsin(2 * c / np.sqrt((1 + 2 * a) * (1 + 2 * b)))


def _erf_pair_derivative(a: Array, b: Array, c: Array) -> Array:
    return 4 / np.pi / np.sqrt((1 + 2 * a) * (1 + 2 * b) - 4 * c * c)


_SECOND_MOMENT: dict[str, Function] = {
    "linear": lambda k: k,
    "relu": lambda k: 0.5 * k,
    "leaky_relu": lambda k: _LEAKY_MEAN_SQUARE * k,
    "erf": lambda k: 2 / np.pi * np.arcsin(2 * k / (1 + 2 * k)),
    "gelu": _gelu_second_moment,
}

_SECOND_MOMENT_SLOPE: dict[str, Function] = {
    "linear": np.ones_like,
    "relu": lambda k: np.full_like(k, 0.5),
    "leaky_relu": lambda k: np.full_like(k, _LEAKY_MEAN_SQUARE),
    "erf": lambda k: 4 / np.pi / ((1 + 2 * k) * np.sqrt(1 + 4 * k)),
}

_DERIVATIVE_MOMENT: dict[str, Function] = {
    "linear": np.ones_like,
    "relu": lambda k: np.full_like(k, 0.5),
    "leaky_relu": lambda k: np.full_like(k, _LEAKY_MEAN_SQUARE),
    "erf": lambda k: 4 / np.pi / np.sqrt(1 + 4 * k),
    "gelu": _gelu_derivative_moment,
}

_PAIR_MOMENT: dict[str, Callable[[Array, Array, Array], Array]] = {
    "linear": lambda a, b, c: c,
    "relu": _relu_pair,
    "leaky_relu": _leaky_pair,
    "erf": _erf_pair,
}

_PAIR_DERIVATIVE_MOMENT: dict[str, Callable[[Array, Array, Array], Array]] = {
    "linear": lambda a, b, c: np.ones_like(c),
    "relu": _relu_pair_derivative,
    "leaky_relu": _leaky_pair_derivative,
    "erf": _erf_pair_derivative,
}
