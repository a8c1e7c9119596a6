"""Residual streams with branches of one layer, h' = h + α (W s(h) + b), to order 1/N.

Here q alone is no Markov chain: the branch's variance S = C_W (1/N)Σ s(h_j)² + C_b depends on the
shape of the stream, which the skip remembers. But given all S, every neuron's stream is a Gaussian
random walk, h_l = h_0 + α Σ_m √S_m ξ_m, of variance K_l = q_0 + α² Σ S_m. So to order 1/N

    δK_{l+1} = χ_l δK_l + α² C_W x_l/√N,     χ = 1 + α² C_W g'(K),

where x_l/√N is the noise of the neurons' mean of s(h_l)², correlated between layers, and

    N Var q_l = 2K_l² + 2 Cov(y_l, √N δK_l) + N Var δK_l,     y_l that of h_l²,
    mean_{l+1} = χ_l mean_l + α² C_W [½ g'' N Var δK_l + own_l].

own_l = Σ_p a_{lp} ∂⟨s²(h_l) s²(h_p)⟩/∂K_l (with √N δK_l = Σ_p a_{lp} x_p) is each neuron's own
share in the noise that moved it; the derivative is ½⟨(s²)''(h_l) s²(h_p)⟩. Normalised Hermite
components turn the correlations into sums: the n-th of layers p < l correlate by (K_p/K_l)^{n/2}.
With layer normalisation at the entrance s² loses its components 1 and 2 and its dependence on K,
so that only this correlation has a slope by K_l; χ = 1, and ½ g'' … becomes −⟨s² He₄⟩/4. Derived
here; tested by brute force.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from widthlab.theory.block_law import residual_susceptibilities
from widthlab.theory.gaussian import QuadratureError, activation, second_moment
from widthlab.theory.higher_moments import (
    fourth_component,
    second_moment_curvature,
    square_variance,
)

Array = NDArray[np.float64]

COMPONENTS = (200, 400, 800, 1600, 3200, 6400)
"""Hermite components to keep: as many as it takes; a kink leaves sums right to some 1e-4."""

TOLERANCE = 1e-6
"""Largest part of Var s² that may lie beyond them."""

_RANGE, _PANELS, _NODES = 16.0, 64, 32


def one_layer_terms(
    law: Array, name: str, c_w: float, *, alpha: float, normalisation: str = "none"
) -> tuple[Array, Array, Array]:
    """Mean, variance and covariance terms of `Corrections` from the block law (depth + 1, …).

    Raises QuadratureError where the stream's variance is so large that s² needs more Hermite
    components than there are (some hundreds for tanh).
    """
    columns = [
        _stream(column, name, c_w, alpha, normalisation == "layer")
        for column in law.reshape(len(law), -1).T
    ]
    mean, variance, covariance = (
        np.stack(part, axis=-1).reshape(law.shape) for part in zip(*columns, strict=True)
    )
    return mean, variance, covariance


def _stream(
    k: Array, name: str, c_w: float, alpha: float, normalised: bool
) -> tuple[Array, Array, Array]:
    gain = alpha**2 * c_w
    entrance = np.where(k > 0, 1.0, 0.0) if normalised else k
    c = square_components(name, entrance)
    if normalised:
        c[:, 1:3] = 0.0
        chi = np.ones_like(k)
        shift = np.where(k > 0, -0.25 * fourth_component(name), 0.0)
        curvature = np.zeros_like(k)
    else:
        chi = residual_susceptibilities(k, name, c_w, 0.0, alpha=alpha, branch="one_layer").parallel
        shift, curvature = np.zeros_like(k), second_moment_curvature(name, k)
    orders = np.arange(float(c.shape[1]))
    # K times the slope by K of the n-th component's correlation with the past
    own_share = np.zeros_like(c)
    if normalised:
        own_share = -0.5 * orders * c
    else:  # components of ½(s²)''
        own_share[:, :-2] = 0.5 * np.sqrt((orders[:-2] + 1) * (orders[:-2] + 2)) * c[:, 2:]
    mean, variance, covariance = np.zeros_like(k), 2 * k**2, 2 * k**2
    shared, memory = 0.0, np.zeros(c.shape[1])  # N Var δK, and components of √N δK given h_l
    for layer in range(len(k)):
        if layer:
            ratio = k[layer - 1] / k[layer] if k[layer] > 0 else 1.0
            before, noise = layer - 1, c[layer - 1] @ c[layer - 1]
            own = own_share[before] @ memory / k[before] if k[before] > 0 else 0.0
            mean[layer] = chi[before] * mean[before] + gain * (
                0.5 * curvature[before] * shared + shift[before] + own
            )
            shared = (
                chi[before] ** 2 * shared
                + 2 * chi[before] * gain * (memory @ c[before])
                + gain**2 * noise
            )
            memory = (chi[before] * memory + gain * c[before]) * ratio ** (orders / 2)
        # h² is K (1 + √2·second component)
        variance[layer] = 2 * k[layer] ** 2 + 2 * np.sqrt(2) * k[layer] * memory[2] + shared
    # q_0 moves K_l through its own noise: y_0 against y_l and against δK_l
    carried = 0.0
    covariance[0] = 2 * k[0] ** 2
    for layer in range(1, len(k)):
        before = layer - 1
        # Cov(y_0, x_l): only the second component, correlated by K_0/K_l
        overlap = np.sqrt(2) * k[0] * c[before, 2] * (k[0] / k[before] if k[before] > 0 else 0.0)
        carried = chi[before] * carried + gain * overlap
        covariance[layer] = 2 * k[0] ** 2 + carried
    return mean, variance, covariance


def square_components(name: str, variance: Array) -> Array:
    """⟨s² he_n(z/√K)⟩_K by orthonormal Hermite polynomials, n along the last axis, n = 0 put to 0.

    Raises QuadratureError where the most components miss more than TOLERANCE of Var s².
    """
    t, weights = _rule()
    values = activation(name).value(np.sqrt(variance)[:, None] * t) ** 2
    values = (values - second_moment(name, variance)[:, None]) * weights
    whole = square_variance(name, variance)
    components = [np.zeros_like(variance)]
    previous, current = np.zeros_like(t), np.ones_like(t)
    for n in range(1, COMPONENTS[-1] + 1):
        previous, current = current, (t * current - np.sqrt(n - 1.0) * previous) / np.sqrt(n)
        components.append(values @ current)
        if n in COMPONENTS:
            c = np.stack(components, axis=1)
            if np.all(np.abs((c**2).sum(axis=1) - whole) <= TOLERANCE * whole):
                return c
    raise QuadratureError(
        f"the square of {name} needs more than {COMPONENTS[-1]} Hermite components"
        f" (stream variance up to {float(variance.max()):.3g}); use a smaller alpha or depth"
    )


def _rule() -> tuple[Array, Array]:
    """Gauss–Legendre on equal panels with the standard normal density; a kink at 0 is an edge."""
    x, w = np.polynomial.legendre.leggauss(_NODES)
    half = _RANGE / _PANELS
    centres = -_RANGE + half * (2 * np.arange(_PANELS) + 1)
    t = (centres[:, None] + half * x).ravel()
    density = np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi)
    return t, np.tile(half * w, _PANELS) * density
