"""The law of μ_M·g_K against enumeration of pools, and its bounds."""

import itertools

import numpy as np
import pytest

from widthlab.theory.certificate import (
    AlignmentMoments,
    alignment_bound,
    alignment_variance,
    cantelli_bound,
    dimensions,
    effective_samples,
    samples_needed,
    sampling_factor,
)


def population_moments(train, test, ddof):
    m1, m2 = train.mean(axis=0), test.mean(axis=0)
    s1, s2 = (np.atleast_2d(np.cov(pool.T, ddof=ddof)) for pool in (train, test))
    return AlignmentMoments(m1 @ m2, m2 @ s1 @ m2, m1 @ s2 @ m1, np.trace(s1 @ s2))


def means(pool, samples, draws):
    return np.array(
        [pool[list(chosen)].mean(axis=0) for chosen in draws(range(len(pool)), samples)]
    )


def tuples(indices, samples):
    return itertools.product(indices, repeat=samples)


@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("replaced", [True, False])
def test_mean_and_variance_by_enumeration(m, k, replaced):
    """All draws from skewed pools of 4 and 5 samples, with and without replacement: exact."""
    generator = np.random.default_rng(0)
    train = generator.gamma(0.5, size=(4, 3)) - 0.2
    test = generator.gamma(0.7, size=(5, 3)) - 0.1
    draws = tuples if replaced else itertools.combinations
    products = means(train, m, draws) @ means(test, k, draws).T
    moments = population_moments(train, test, ddof=0 if replaced else 1)
    f1 = sampling_factor(m) if replaced else sampling_factor(m, len(train))
    f2 = sampling_factor(k) if replaced else sampling_factor(k, len(test))
    assert products.mean() == pytest.approx(moments.signal, rel=1e-12)
    variance = alignment_variance(moments, f1, f2)
    assert products.var() == pytest.approx(variance, rel=1e-12)
    assert np.mean(products <= 0) <= cantelli_bound(moments.signal, variance)


def test_equal_laws_have_the_published_variance():
    moments = AlignmentMoments.of_equal_laws(2.0, 3.0, 5.0)
    variance = alignment_variance(moments, sampling_factor(4), sampling_factor(10))
    assert variance == pytest.approx((1 / 4 + 1 / 10) * 3.0 + 5.0 / 40)


def test_a_pool_that_is_used_up_leaves_no_variance():
    f = sampling_factor(7, 7)
    assert f == 0
    assert alignment_variance(AlignmentMoments(1.0, 2.0, 3.0, 4.0), f, f) == 0
    assert np.isinf(effective_samples(f, f))


def test_the_dimension_bound_is_never_below_the_exact_one():
    generator = np.random.default_rng(1)
    parts = generator.gamma(0.5, size=(4, 2000)) + 1e-6
    moments = AlignmentMoments(*parts)
    f1 = sampling_factor(generator.integers(1, 100, 2000))
    f2 = sampling_factor(generator.integers(1, 100, 2000), 100)
    exact = cantelli_bound(moments.signal, alignment_variance(moments, f1, f2))
    bound = alignment_bound(dimensions(moments).align, f1, f2)
    assert np.all(exact <= bound * (1 + 1e-12))


def test_effective_samples_and_dimensions():
    assert effective_samples(1 / 6, 1 / 10) == pytest.approx(60 / 17)
    found = dimensions(AlignmentMoments(3.0, 2.0, 4.5, 6.0))
    assert (found.parallel, found.second, found.align) == (2.0, 1.5, 1.5)


def test_cantelli_is_attained():
    """Two points, 0 with probability b and v/(b·mean)-spread otherwise: equality."""
    mean, variance = 1.0, 0.25
    bound = cantelli_bound(mean, variance)
    other = mean + variance / mean
    assert bound * 0 + (1 - bound) * other == pytest.approx(mean)
    assert (1 - bound) * other**2 - mean**2 == pytest.approx(variance)


@pytest.mark.parametrize(
    ("mean", "variance"), [(0.0, 1.0), (-1.0, 0.1), (np.nan, 1.0), (1, np.nan)]
)
def test_without_a_signal_nothing_is_bounded(mean, variance):
    assert cantelli_bound(mean, variance) == 1


def test_no_dimension_without_signal_or_variance():
    found = dimensions(AlignmentMoments([-1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 1.0]))
    np.testing.assert_array_equal(found.parallel, [0.0, np.nan])
    np.testing.assert_array_equal(alignment_bound(found.align, 0.1, 0.1), [1.0, 1.0])


@pytest.mark.parametrize("target", [0.5, 0.1, 0.01, 0.003])
def test_samples_needed_is_the_smallest_number(target):
    generator = np.random.default_rng(2)
    for parts in generator.gamma(1.0, size=(50, 4)) + 0.05:
        moments = AlignmentMoments(*parts)
        m = samples_needed(moments, target)
        bounds = [
            cantelli_bound(moments.signal, alignment_variance(moments, 1 / n, 1 / n))
            for n in (m, m - 1)
            if n
        ]
        assert bounds[0] <= target * (1 + 1e-9)
        assert len(bounds) == 1 or bounds[1] > target


def test_samples_needed_of_whole_numbers():
    assert samples_needed(AlignmentMoments(1.0, 1.0, 1.0, 0.0), 0.5) == 2
    assert samples_needed(AlignmentMoments(1.0, 0.0, 0.0, 9.0), 0.5) == 3


@pytest.mark.parametrize("parts", [(0, 1, 1, 1), (-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, np.nan, 1)])
def test_no_number_of_samples_helps(parts):
    assert samples_needed(AlignmentMoments(*parts), 0.1) is None


def test_what_cannot_be_meant():
    with pytest.raises(ValueError, match="from 1 to the pool's 5"):
        sampling_factor([2, 6], 5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        samples_needed(AlignmentMoments(1, 1, 1, 1), 1.0)
