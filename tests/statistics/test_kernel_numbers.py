"""Drift, alignment and eigenvalues of kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from widthlab.errors import WidthlabError
from widthlab.statistics.ntk import eigenvalues, kernel_alignment, relative_drift


def kernels() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 6, 9, dtype=torch.float64, generator=generator)
    return a @ a.T, b @ b.T


def test_relative_drift_by_a_loop() -> None:
    kernel, kernel0 = kernels()
    top = sum(float(kernel[i, j] - kernel0[i, j]) ** 2 for i in range(6) for j in range(6))
    bottom = sum(float(kernel0[i, j]) ** 2 for i in range(6) for j in range(6))
    assert relative_drift(kernel, kernel0) == pytest.approx(math.sqrt(top / bottom), rel=1e-14)
    assert relative_drift(kernel0, kernel0) == 0
    assert relative_drift(3 * kernel0, kernel0) == pytest.approx(2.0)


def test_alignment_by_a_loop() -> None:
    a, b = kernels()
    inner, first, second = (
        sum(float(x[i, j] * y[i, j]) for i in range(6) for j in range(6))
        for x, y in ((a, b), (a, a), (b, b))
    )
    expected = inner / math.sqrt(first * second)
    assert kernel_alignment(a, b) == pytest.approx(expected, rel=1e-14)
    assert kernel_alignment(a, 7 * a) == pytest.approx(1.0)
    assert kernel_alignment(torch.eye(6), torch.ones(6, 6) - torch.eye(6)) == 0


def test_eigenvalues_descend_and_are_those_of_the_kernel() -> None:
    kernel, _ = kernels()
    values = eigenvalues(kernel.float())
    assert values.dtype == torch.float64
    assert bool((values.diff() <= 0).all())
    expected = np.sort(np.linalg.eigvals(kernel.float().double().numpy()).real)[::-1]
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-6)
    assert float(values.sum()) == pytest.approx(float(kernel.trace()), rel=1e-6)
    torch.testing.assert_close(
        eigenvalues(torch.diag(torch.tensor([1.0, 3.0, 2.0]))),
        torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64),
    )


def test_dead_and_diverged_kernels_give_nan() -> None:
    kernel, zero = kernels()[0], torch.zeros(6, 6)
    assert math.isnan(relative_drift(zero, zero))
    assert math.isnan(kernel_alignment(kernel, zero))
    broken = kernel.clone()
    broken[0, 0] = math.inf
    assert bool(eigenvalues(broken).isnan().all())
    assert not math.isfinite(relative_drift(broken, kernel))


def test_shapes_are_checked() -> None:
    with pytest.raises(WidthlabError, match="same samples and outputs"):
        relative_drift(torch.eye(3), torch.eye(4))
    with pytest.raises(WidthlabError, match="same samples and outputs"):
        kernel_alignment(torch.eye(3), torch.eye(4))
    with pytest.raises(WidthlabError, match="square"):
        eigenvalues(torch.ones(2, 3))
