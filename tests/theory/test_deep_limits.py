"""Kernels of the lazy regime against samples, and the forms of the error bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from widthlab.theory import deep_limits
from widthlab.theory.gaussian import activation as activation_of

DRAWS = 200_000
ERRORS = 5.0
"""Standard errors allowed for each number: a false alarm of 6e-7 for each of some 60."""


def embeddings() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, 4)) * np.array([[1.0], [0.4], [2.0]])


def assert_mean(samples: np.ndarray, expected: np.ndarray) -> None:
    error = samples.std(0) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(0) - expected) <= ERRORS * error + 1e-10)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
def test_kernel_of_perceptrons_is_the_mean_of_its_gradients(activation: str) -> None:
    """E of ∂φ_a(h_i)/∂u·∂φ_b(h_j)/∂u and of the same by v, entry by entry over coordinates."""
    h, (deviation_u, deviation_v, scale) = embeddings(), (1.3, 0.8, 0.6)
    rng = np.random.default_rng(1)
    u = rng.normal(size=(DRAWS, 4)) * deviation_u
    v = rng.normal(size=(DRAWS, 4)) * deviation_v
    s = activation_of(activation)
    z = scale * u @ h.T
    inner, outer = deep_limits.perceptron_tangent_kernel(
        h @ h.T,
        activation,
        inner_deviation=deviation_u,
        outer_deviation=deviation_v,
        inner_scale=scale,
    )
    slopes = s.derivative(z)
    gram = scale**2 * h @ h.T
    for a, b in ((0, 0), (0, 1), (2, 2)):
        weights = (v[:, a] * v[:, b])[:, None, None] * slopes[:, :, None] * slopes[:, None, :]
        assert_mean(weights * gram, inner if a == b else np.zeros((3, 3)))
    values = s.value(z)
    assert_mean(values[:, :, None] * values[:, None, :], outer)


@pytest.mark.parametrize("activation", ["tanh", "linear"])
def test_kernel_of_matrix_blocks_is_the_mean_of_its_gradients(activation: str) -> None:
    h = embeddings()
    row = np.random.default_rng(2).normal(size=(DRAWS, 4)) * 0.7
    slopes = activation_of(activation).derivative(row @ h.T)
    kernel = deep_limits.matrix_tangent_kernel(h @ h.T, activation, deviation=0.7)
    assert_mean(slopes[:, :, None] * slopes[:, None, :] * (h @ h.T), kernel)


def test_matrix_blocks_with_a_mean_have_no_constant_kernel() -> None:
    with pytest.raises(ValueError, match="relu"):
        deep_limits.matrix_tangent_kernel(np.eye(2), "relu", deviation=1.0)


def test_the_output_varies_at_initialisation_without_width() -> None:
    """Var f over draws of everything is outputs·⟨s²⟩/(ML), at a width of 4 as at 64."""
    depth, hidden, outputs, draws = 1, 64, 2, 4000
    rng = np.random.default_rng(3)
    found = []
    for width in (4, 64):
        h0 = np.ones(width)
        u, v = (rng.normal(size=(draws, hidden, width)) * np.sqrt(width) for _ in range(2))
        s = np.tanh(u @ h0 / width)
        h = np.einsum("njd,nj->nd", v, s) / (depth * hidden)
        readout = rng.normal(size=(draws, width, outputs)) * np.sqrt(outputs)
        f = np.einsum("nd,ndk->nk", h, readout) / width
        squares = f**2 * depth * hidden / outputs / (s**2).mean()
        error = squares.std() / np.sqrt(squares.size)
        assert abs(squares.mean() - 1) < ERRORS * error
        found.append(squares.mean())
    slope = np.log(found[1] / found[0]) / np.log(16)
    assert slope == pytest.approx(deep_limits.SAMPLING_OUTPUT.width, abs=0.05)


@pytest.mark.parametrize("power", [deep_limits.LAZY_BOUND, deep_limits.LAZY_SYMMETRIC])
def test_best_alpha_is_where_the_lazy_error_is_smallest(power: float) -> None:
    parts = {"nonlinear": 2.0, "sampling": 0.5, "power": power}
    found = minimize_scalar(
        lambda log: float(deep_limits.lazy_error(np.exp(log), 1024, 4, euler=3.0, **parts)),
        bounds=(0.0, 8.0),
        method="bounded",
    )
    best = float(deep_limits.best_alpha(1024, 4, **parts))
    assert np.exp(found.x) == pytest.approx(best, rel=1e-3)
    wider = float(deep_limits.best_alpha(1024, 64, **parts))
    expected = deep_limits.best_alpha_slope(power)
    assert np.log(wider / best) / np.log(16) == pytest.approx(expected)
    assert expected == {1.0: 1 / 4, 2.0: 1 / 6}[power]


def test_the_parts_of_the_bound_have_the_slopes() -> None:
    def slope(name: str, **parts: float) -> float:
        sizes = {"depth": 8.0, "hidden": 4.0, "width": 16.0}
        ends = [
            deep_limits.error_bound(**(sizes | {name: factor * sizes[name]}), **parts)
            for factor in (1.0, 4.0)
        ]
        return float(np.log(ends[1] / ends[0]) / np.log(4.0))

    for parts, slopes in (
        ({"euler": 1.0, "sampling": 0.0}, deep_limits.EULER),
        ({"euler": 0.0, "sampling": 1.0}, deep_limits.SAMPLING),
    ):
        for name, expected in slopes._asdict().items():
            assert slope(name, **parts) == pytest.approx(expected)
    crossing = deep_limits.depth_of_crossing(64, 8, euler=3.0, sampling=0.5)
    parts = {"euler": 3.0, "sampling": 0.0}, {"euler": 0.0, "sampling": 0.5}
    first, second = (deep_limits.error_bound(crossing, 64, 8, **part) for part in parts)
    assert float(first) == pytest.approx(float(second))
