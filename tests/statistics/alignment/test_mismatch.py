"""Mismatch rates against vectors, enumeration of pools, and the coverage of their intervals."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.mismatch import block_products, mismatch, pool_moments
from widthlab.theory.certificate import alignment_variance, sampling_factor


def test_blocks_are_disjoint_and_are_the_products_of_their_means():
    generator = np.random.default_rng(0)
    q, p = generator.standard_normal((11, 3)), generator.standard_normal((9, 3))
    found = block_products(q @ p.T, 3, 2)
    by_hand = [
        q[3 * b : 3 * b + 3].mean(axis=0) @ p[2 * b : 2 * b + 2].mean(axis=0) for b in range(3)
    ]
    np.testing.assert_allclose(found, by_hand)
    assert len(block_products(q @ p.T, 12, 2)) == 0


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 3), (4, 2), (5, 4)])
def test_pool_draws_are_those_of_enumeration(m, k):
    generator = np.random.default_rng(1)
    q, p = generator.gamma(0.6, size=(5, 2)) - 0.4, generator.gamma(0.6, size=(4, 2)) - 0.4
    products = np.array(
        [
            q[list(a)].mean(axis=0) @ p[list(b)].mean(axis=0)
            for a in itertools.combinations(range(5), m)
            for b in itertools.combinations(range(4), k)
        ]
    )
    draws = 20_000
    found = mismatch(q @ p.T, [m], [k], draws=draws, seed=2).isel(train_samples=0, test_samples=0)
    assert float(found.pool_variance_exact) == pytest.approx(products.var(), abs=1e-12)
    rate = np.mean(products <= 0)
    error = np.sqrt(rate * (1 - rate) / draws)
    assert abs(float(found.pool_rate) - rate) <= 5 * error
    deviation = 5 * products.std() / np.sqrt(draws) + 1e-12
    assert abs(float(found.pool_mean) - products.mean()) <= deviation
    # The second term is for the mean, which is itself estimated.
    squares = (products - products.mean()) ** 2
    assert abs(float(found.pool_variance) - products.var()) <= (
        5 * squares.std() / np.sqrt(draws) + 25 * products.var() / draws + 1e-12
    )
    assert rate <= float(found.pool_bound)


def test_pool_moments_are_those_of_the_vectors():
    generator = np.random.default_rng(3)
    q, p = generator.standard_normal((6, 3)) + 1, generator.standard_normal((7, 3)) + 1
    s1, s2 = np.cov(q.T), np.cov(p.T)
    m1, m2 = q.mean(axis=0), p.mean(axis=0)
    found = pool_moments(q @ p.T)
    exact = (m1 @ m2, m2 @ s1 @ m2, m1 @ s2 @ m1, np.trace(s1 @ s2))
    np.testing.assert_allclose(tuple(vars(found).values()), exact)


def test_intervals_of_blocks_cover_the_rate():
    """One feature of variance 1 and a mean of 1: μ_M g_K is a product of two normal means."""
    m, k, trials = 2, 3, 300
    a, b = norm.cdf(-np.sqrt(m)), norm.cdf(-np.sqrt(k))
    truth = a * (1 - b) + b * (1 - a)
    generator = np.random.default_rng(4)
    missed = 0
    for trial in range(trials):
        q, p = generator.standard_normal((2, 120)) + 1.0
        found = mismatch(np.outer(q, p), [m], [k], draws=2, seed=trial).squeeze()
        assert int(found.blocks) == 40
        missed += not float(found.block_rate_low) <= truth <= float(found.block_rate_high)
    assert missed / trials <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / trials)


def test_no_progress_counts_as_a_mismatch():
    """Products of 0 are mismatches, in blocks and in draws from the pools."""
    q = np.array([-0.05, 0.0, 0.05, 1.0])
    found = mismatch(np.outer(q, np.ones(4)), [1], [1], draws=20_000).squeeze()
    assert (int(found.blocks), int(found.block_mismatches)) == (4, 2)
    assert float(found.pool_rate) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(20_000))


def test_a_grid_with_holes():
    q = np.random.default_rng(5).standard_normal((10, 4)) + 0.5
    found = mismatch(q @ q[:6].T, [2, 8, 16], [2, 6], draws=50)
    assert found.blocks.values.tolist() == [[3, 1], [1, 1], [0, 0]]
    assert np.isnan(found.block_rate.values[2]).all()
    assert np.isnan(found.pool_rate.values[2]).all()
    assert np.isfinite(found.pool_rate.values[:2]).all()
    assert found.attrs["train_pool"] == 10
    assert all(variable.attrs["description"] for variable in found.data_vars.values())
    whole = mismatch(q @ q[:6].T, [10], [6], draws=20).squeeze()
    assert float(whole.pool_variance_exact) == 0
    assert float(whole.pool_variance) == pytest.approx(0, abs=1e-20)


def test_the_grid_agrees_with_the_formula():
    q = np.random.default_rng(6).standard_normal((20, 3)) + 0.3
    cross = q[:12] @ q[12:].T
    found = mismatch(cross, [3, 6], [4], draws=10)
    for i, m in enumerate((3, 6)):
        exact = alignment_variance(
            pool_moments(cross), sampling_factor(m, 12), sampling_factor(4, 8)
        )
        assert float(found.pool_variance_exact[i, 0]) == pytest.approx(float(exact))


@pytest.mark.parametrize(
    ("cross", "m", "draws", "message"),
    [
        (np.ones((1, 5)), [1], 10, "at least two training"),
        (np.full((3, 3), np.nan), [1], 10, "not finite"),
        (np.ones((3, 3)), [], 10, "whole numbers of at least 1"),
        (np.ones((3, 3)), [0], 10, "whole numbers of at least 1"),
        (np.ones((3, 3)), [1], 1, "at least 2"),
    ],
)
def test_what_is_refused(cross, m, draws, message):
    with pytest.raises(WidthlabError, match=message):
        mismatch(cross, m, [1], draws=draws)
