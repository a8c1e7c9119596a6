"""Moments of random kernels: unbiased, and with errors that are those of repetitions."""

import numpy as np
import pytest

from widthlab.scaling import fit_power_law
from widthlab.statistics.kernel_moments import (
    condition_numbers,
    deviations,
    diagonal_moments,
    distance,
    halves,
    median_interval,
    root,
    squares,
)


def kernels(draws, seed=0, shift=0.0, spread=0.3):
    """Kernels of two inputs about [[2, 1], [1, 2]], with a shift and a spread of every entry."""
    noise = np.random.default_rng(seed).standard_normal((draws, 2, 2))
    noise = (noise + noise.transpose(0, 2, 1)) / 2
    return np.array([[2.0, 1.0], [1.0, 2.0]]) + shift + spread * noise


def test_moments_of_the_diagonal_are_those_of_gamma_variables():
    """Five standard errors each, of four numbers."""
    rng = np.random.default_rng(1)
    draws = 20_000
    diagonal = rng.gamma(4.0, 0.5, (draws, 2))
    found = diagonal_moments(diagonal[:, :, None] * np.eye(2))
    assert found.alive == 1
    assert abs(found.mean - 2) < 5 * found.mean_error
    assert abs(found.relative_variance - 0.25) < 5 * found.relative_variance_error
    assert abs(found.log_variance - 0.283823) < 5 * found.log_variance_error


def test_errors_are_the_spread_of_repetitions():
    """Of 400 repetitions: a standard deviation is known to 3.5 %, and 20 % are allowed."""
    rng = np.random.default_rng(2)
    samples = [rng.gamma(4.0, 0.5, (300, 2))[:, :, None] * np.eye(2) for _ in range(400)]
    found = [diagonal_moments(one) for one in samples]
    for name in ("mean", "relative_variance", "log_variance"):
        repeated = np.std([getattr(one, name) for one in found])
        stated = np.mean([getattr(one, f"{name}_error") for one in found])
        assert stated == pytest.approx(repeated, rel=0.2)


def test_dead_entries_leave_logarithms_only():
    some = kernels(50)
    some[0] = 0.0
    found = diagonal_moments(some)
    assert found.alive == pytest.approx(0.98)
    assert np.isfinite(list(vars(found).values())).all()
    some[:, 0] = 0.0
    assert np.isfinite(diagonal_moments(some).log_variance)
    assert np.isnan(diagonal_moments(some[:1]).mean)
    assert np.isnan(diagonal_moments(np.zeros((3, 2, 2))).log_variance)


def test_norms_are_frobenius():
    reference = np.array([[2.0, 1.0], [1.0, 2.0]])
    vectors = deviations(kernels(5), reference)
    norms = np.linalg.norm(kernels(5) - reference, axis=(1, 2)) / np.linalg.norm(reference)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), norms)


def test_the_distance_of_the_mean_is_free_of_its_noise():
    """|E v|² over 300 repetitions, five standard errors; the plain norm is far outside."""
    reference = kernels(1, spread=0.0)[0]
    shift = 0.02
    true = np.linalg.norm(np.full((2, 2), shift)) / np.linalg.norm(reference)
    products, plain = [], []
    for seed in range(300):
        vectors = deviations(kernels(60, seed, shift), reference)
        first, second = halves(vectors).mean(axis=0)
        products.append(first @ second)
        plain.append(np.sum(vectors.mean(axis=0) ** 2))
    error = np.std(products) / np.sqrt(len(products))
    assert abs(np.mean(products) - true**2) < 5 * error
    assert np.mean(plain) - true**2 > 10 * error


def test_resampled_distances_scatter_about_the_distance():
    vectors = deviations(kernels(4000, 1, shift=0.05), kernels(1, spread=0.0)[0])
    law = fit_power_law([1, 2], [halves(vectors), halves(vectors) / 2], statistic=distance)
    assert law.low < -1 < law.high
    assert law.high - law.low < 1


def test_the_fluctuation_is_the_root_of_the_total_variance():
    vectors = deviations(kernels(2000), kernels(1, spread=0.0)[0])
    total = vectors.var(axis=0, ddof=1).sum()
    assert root(squares(vectors)[None])[0] == pytest.approx(np.sqrt(total))
    assert np.isnan(squares(vectors[:1])).all()
    assert halves(vectors[:3]).shape == (0, 2, 3)


def test_condition_numbers():
    matrices = np.array([[[2.0, 0.0], [0.0, 0.5]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0], [0, 0]]])
    np.testing.assert_array_equal(condition_numbers(matrices), [4.0, np.inf, np.inf])


def test_the_interval_of_a_median_covers():
    """95 % asked; over 1000 samples of 40, at least 92 % is seen unless 1 in 10⁵ happens."""
    rng = np.random.default_rng(3)
    samples = rng.standard_cauchy((1000, 40))
    ends = np.array([median_interval(one) for one in samples])
    covered = np.mean((ends[:, 1] <= 0) & (ends[:, 2] >= 0))
    assert 0.92 < covered < 0.995
    assert median_interval(np.array([1.0, 2.0, np.inf]))[0] == 2
    assert np.isnan(median_interval(np.array([]))).all()
