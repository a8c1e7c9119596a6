"""Moments from Gram matrices: exactly unbiased, by enumeration of all samples."""

import itertools

import numpy as np
import pytest

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gram_moments import different_laws, equal_laws

FIELDS = ("signal", "square", "train_spread", "test_spread", "noise")


def truth(first, second):
    m1, m2 = first.mean(axis=0), second.mean(axis=0)
    s1, s2 = np.cov(first.T, ddof=0), np.cov(second.T, ddof=0)
    return [m1 @ m2, (m1 @ m2) ** 2, m2 @ s1 @ m2, m1 @ s2 @ m1, np.trace(s1 @ s2)]


def samples_of(population, n):
    return [
        population[list(chosen)] for chosen in itertools.product(range(len(population)), repeat=n)
    ]


def mean_of(estimates):
    return [np.mean([getattr(one, field) for one in estimates]) for field in FIELDS]


@pytest.mark.parametrize("n", [4, 5])
def test_equal_laws_are_exactly_unbiased(n):
    population = np.random.default_rng(0).gamma(0.6, size=(3, 2)) - 0.3
    every = [equal_laws(q @ q.T) for q in samples_of(population, n)]
    exact = truth(population, population)
    np.testing.assert_allclose(mean_of([one.unbiased for one in every]), exact, rtol=1e-10)
    # ... and the published ones are not: |mean|² overshoots by tr Σ/n.
    overshoot = mean_of([one.plug_in for one in every])[0] - exact[0]
    assert overshoot == pytest.approx(np.trace(np.cov(population.T, ddof=0)) / n)


def test_different_laws_are_exactly_unbiased():
    generator = np.random.default_rng(1)
    first, second = generator.gamma(0.6, size=(2, 2)) - 0.3, generator.gamma(0.8, size=(2, 2))
    every = [different_laws(q @ p.T) for q in samples_of(first, 4) for p in samples_of(second, 4)]
    exact = truth(first, second)
    np.testing.assert_allclose(mean_of([one.unbiased for one in every]), exact, rtol=1e-10)


def test_plug_in_is_the_law_of_the_sample_itself():
    generator = np.random.default_rng(2)
    q, p = generator.gamma(0.6, size=(7, 3)), generator.standard_normal((5, 3))
    for found, exact in (
        (equal_laws(q @ q.T).plug_in, truth(q, q)),
        (different_laws(q @ p.T).plug_in, truth(q, p)),
    ):
        np.testing.assert_allclose(mean_of([found]), exact, rtol=1e-10)


@pytest.mark.parametrize("flipped", [False, True])
def test_left_out_values_are_those_of_the_smaller_sample(flipped):
    """The O(n²) formulas against doing it again without each sample, and with signs in the data."""
    generator = np.random.default_rng(3)
    q, p = generator.gamma(0.6, size=(6, 3)), generator.standard_normal((7, 3))
    s, t = (np.where(generator.random((2, n)) < 0.5, 1.0, -1.0) for n in (6, 7))
    if not flipped:
        s, t = np.ones_like(s), np.ones_like(t)
    pooled, crossed = equal_laws(q @ q.T, s), different_laws(q @ p.T, s, t)
    for row in range(2):
        a, b = s[row][:, None] * q, t[row][:, None] * p
        np.testing.assert_allclose(
            [getattr(pooled.plug_in, field)[row] for field in FIELDS], truth(a, a), atol=1e-12
        )
        for i in range(6):
            without = np.delete(a, i, axis=0)
            one, two = equal_laws(without @ without.T), different_laws(without @ b.T)
            for field in FIELDS:
                np.testing.assert_allclose(
                    getattr(pooled.left_out[0], field)[row, i], getattr(one.unbiased, field)[0]
                )
                np.testing.assert_allclose(
                    getattr(crossed.left_out[0], field)[row, i], getattr(two.unbiased, field)[0]
                )
        for j in range(7):
            without = np.delete(b, j, axis=0)
            two = different_laws(a @ without.T)
            for field in FIELDS:
                np.testing.assert_allclose(
                    getattr(crossed.left_out[1], field)[row, j], getattr(two.unbiased, field)[0]
                )


def test_the_order_of_samples_does_not_matter():
    generator = np.random.default_rng(4)
    q = generator.standard_normal((9, 4)) + 0.5
    again = q[generator.permutation(9)]
    one, two = equal_laws(q @ q.T).unbiased, equal_laws(again @ again.T).unbiased
    np.testing.assert_allclose(mean_of([one]), mean_of([two]), rtol=1e-12)


def test_too_few_samples():
    q = np.random.default_rng(5).standard_normal((4, 3))
    assert np.isnan(equal_laws(q @ q.T).left_out[0].square).all()
    with pytest.raises(WidthlabError, match="at least 4 samples, but got 3"):
        equal_laws(q[:3] @ q[:3].T)
    with pytest.raises(WidthlabError, match="but got 4 and 2"):
        different_laws(q @ q[:2].T)
