"""Deviations of means: exact coverage by enumeration, complexities by brute force."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from widthlab.theory.generalisation import (
    OCTAVES,
    bias_complexity,
    both_complexities,
    empirical_bernstein,
    hoeffding,
    is_vacuous,
    peeled,
    residual_complexity,
    uniform_deviation,
)

RATES = np.linspace(0.01, 0.99, 33)


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("n", [5, 40, 300])
@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("how", ["hoeffding", "bernstein"])
def test_intervals_cover_every_coin_as_often_as_they_say(how, delta, n, sides):
    """Values 0 and 3 with probability p: every outcome is enumerated, so coverage is exact."""
    heads = np.arange(n + 1)
    if how == "hoeffding":
        half = np.full(n + 1, hoeffding(n, 3.0, delta, sides=sides))
    else:
        coins = [np.repeat([3.0, 0.0], [k, n - k]) for k in heads]
        half = np.array([empirical_bernstein(x, 3.0, delta, sides=sides) for x in coins])
    for p in RATES:
        off = 3 * heads / n - 3 * p
        missed = off > half if sides == 1 else np.abs(off) > half
        assert binom.pmf(heads, n, p)[missed].sum() <= delta


def test_hoeffding_is_of_the_right_size():
    """A fair coin is missed by half the width more often than δ: the width is not just large."""
    n, delta = 400, 0.05
    half = hoeffding(n, 1.0, delta) / 2
    heads = np.arange(n + 1)
    assert binom.pmf(heads, n, 0.5)[np.abs(heads / n - 0.5) > half].sum() > delta


def test_bernstein_pays_where_the_variance_is_small():
    values = np.full(2000, 0.5)
    values[:20] = 0.6
    assert empirical_bernstein(values, 1.0, 0.05) < 0.5 * hoeffding(2000, 1.0, 0.05)
    n, v, log = 2000, values.var(ddof=1), math.log(4 / 0.05)
    by_hand = math.sqrt(2 * v * log / n) + 7 * log / (3 * (n - 1))
    assert empirical_bernstein(values, 1.0, 0.05) == pytest.approx(by_hand, rel=1e-12)


def test_the_complexity_of_a_bias_bounds_every_sign():
    """Losses g·b: sup_b Σ εᵢ gᵢ·b = R|Σ εᵢ gᵢ|, averaged over all 2^10 signs."""
    generator = np.random.default_rng(0)
    n, features, radius = 10, 4, 0.7
    signs = np.array(list(itertools.product([-1, 1], repeat=n)))
    for shared in (0.0, 1.0):
        g = (1 - shared) * generator.standard_normal((n, features)) + shared
        exact = radius * np.linalg.norm(signs @ g, axis=1).mean() / n
        largest = np.linalg.norm(g, axis=1).max()
        bound = bias_complexity(largest, radius, features, n)
        assert exact <= bound <= 2 * math.sqrt(2 * features) * exact
        # Without the factor √(2F) of the contraction it would still be true of linear losses, but
        # not with half of that.
        assert exact > 0.5 * bound / math.sqrt(2 * features)


def _largest_sum(signs, z, generator, hidden, tries):
    """Return the largest Σᵢₖ εᵢₖ (V relu(Uẑᵢ))ₖ over |V| = |U| = 1 that a search finds.

    For given U the best V is known, V ∝ Σᵢ εᵢ relu(Uẑᵢ)', and the value is that matrix's norm.
    """
    lifted = np.concatenate([z, np.ones((len(z), 1))], axis=1)
    u = generator.standard_normal((tries, hidden, lifted.shape[1]))
    u /= np.linalg.norm(u, axis=(1, 2), keepdims=True)
    hiddens = np.maximum(np.einsum("thc,ic->tih", u, lifted), 0)
    return np.linalg.norm(np.einsum("ik,tih->tkh", signs, hiddens), axis=(1, 2)).max()


@pytest.mark.parametrize(("n", "channels"), [(4, 1), (16, 2), (64, 2)])
@pytest.mark.parametrize("hidden", [1, 3])
def test_the_complexity_of_two_layers_bounds_what_a_search_finds(n, channels, hidden):
    """All directions of few channels are tried; the bound is above, and falls as the sum does."""
    generator = np.random.default_rng(1)
    z = generator.standard_normal((n, channels))
    found = [
        _largest_sum(generator.choice([-1, 1], (n, channels)), z, generator, hidden, 3000)
        for _ in range(60)
    ]
    size = math.sqrt(np.mean(np.sum(z**2, axis=1) + 1))
    # √2 Λ is the contraction's part, which the search has not.
    bound = residual_complexity(1 / math.sqrt(2), 1.0, channels, size, n)
    assert np.mean(found) / n <= bound <= 12 * np.mean(found) / n


def test_uniform_deviations_hold_for_all_biases_at_once():
    """Losses ½ + g·b of a known population: the supremum over |b| ≤ R is R|mean g − E g|."""
    generator = np.random.default_rng(2)
    features, n, radius, delta = 3, 50, 0.2, 0.1
    population = generator.choice([-1.0, 1.0], size=(400, features)) / math.sqrt(features)
    expectation = population.mean(axis=0)
    deviations = np.array(
        [
            radius * np.linalg.norm(population[rows].mean(axis=0) - expectation)
            for rows in generator.integers(0, 400, (2000, n))
        ]
    )
    span = 2 * radius  # |g| = 1
    epsilon = uniform_deviation(bias_complexity(1.0, radius, features, n), span, n, delta)
    assert np.mean(deviations > epsilon) <= delta
    # That of one fixed bias would not do for the supremum of many features.
    wide = generator.choice([-1.0, 1.0], size=(2000, n, 200)).mean(axis=1) / math.sqrt(200)
    supremum = radius * np.linalg.norm(wide, axis=1)
    many = uniform_deviation(bias_complexity(1.0, radius, 200, n), span, n, delta)
    assert np.mean(supremum > many) <= delta
    few = hoeffding(n, span / math.sqrt(200), delta)  # any one bias along a coordinate
    assert np.mean(supremum > few) > 0.5


def test_octaves_share_delta():
    radii = [2.0**k for k in range(-OCTAVES, OCTAVES + 1)]
    shares = [peeled(radius, 0.05) for radius in radii]
    assert [radius for radius, _ in shares] == radii
    deltas = [delta for _, delta in shares]
    assert len(set(deltas)) == len(radii)
    assert 0.049 < sum(deltas) <= 0.05
    assert peeled(0.3, 1.0)[0] == 0.5
    assert peeled(0.0, 1.0)[0] == 2.0**-OCTAVES
    with pytest.raises(ValueError, match="between 0 and"):
        peeled(float("nan"), 0.05)


@pytest.mark.parametrize(("factor", "vacuous"), [(127.0, True), (300.0, False)])
def test_generic_bounds_need_more_than_128_samples_a_feature(factor, vacuous):
    features, radius = 1000, 0.1
    n = int(factor * features)
    epsilon = uniform_deviation(bias_complexity(1.0, radius, features, n), 2 * radius, n, 0.05)
    assert is_vacuous(4 * epsilon, 0.0, radius) == vacuous
    assert is_vacuous(float("nan"), 0.0, radius)


def test_two_parts_share_a_lipschitz_constant():
    """|δu| + |δv| ≤ √2 |(δu, δv)|, with equality where both are equal."""
    assert both_complexities(1.0, 2.0) == pytest.approx(3 * math.sqrt(2))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_impossible_arguments_are_refused(delta):
    with pytest.raises(ValueError, match="δ must lie between"):
        hoeffding(10, 1.0, delta)
    with pytest.raises(ValueError, match="at least 2 samples"):
        empirical_bernstein([1.0], 1.0, 0.05)
    with pytest.raises(ValueError, match="more than their span"):
        empirical_bernstein([0.0, 2.0], 1.0, 0.05)
