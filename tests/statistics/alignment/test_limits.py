"""Confidence limits against their definition, worked out from estimates without each sample."""

import numpy as np
import pytest
from scipy.stats import t as student

from widthlab.statistics.alignment.gram_moments import different_laws, equal_laws
from widthlab.statistics.alignment.limits import Jackknife

RATE = 0.025


def samples(seed, n=40):
    scale = np.array([2.0, 1.0, 0.5])
    return np.random.default_rng(seed).gamma(2.0, size=(n, 3)) * scale


def found(laws, seed=0):
    q, p = samples(seed), samples(seed + 1, 30)
    return equal_laws(q @ q.T) if laws == "equal" else different_laws(q @ p.T)


def parts(moments):
    return moments.signal, moments.train_spread, moments.test_spread, moments.noise


@pytest.mark.parametrize("weights", [(1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.1, 0.2, 0.02)])
@pytest.mark.parametrize("laws", ["equal", "different"])
def test_limits_solve_their_equation(laws, weights):
    """At both limits |a − λ√v| is t standard errors of it, √v being linearised."""
    estimates = found(laws)
    low, high = (np.sqrt(limit[0]) for limit in Jackknife.of(estimates, RATE).ratio(weights))
    a, *spreads = (part[0] for part in parts(estimates.unbiased))
    root = np.sqrt(np.dot(weights, spreads))
    smallest = min(group.signal.shape[1] for group in estimates.left_out)
    t = student.ppf(1 - RATE, smallest - 1)
    assert 0 < low < a / root < high < np.inf
    for limit in (low, high):
        variance = 0.0
        for group in estimates.left_out:
            signal, *rest = (part[0] for part in parts(group))
            moved = signal - limit * sum(
                w * part for w, part in zip(weights, rest, strict=True)
            ) / (2 * root)
            n = len(moved)
            variance += (n - 1) / n * np.sum((moved - moved.mean()) ** 2)
        assert abs(a - limit * root) == pytest.approx(t * np.sqrt(variance), rel=1e-9)


def test_an_interval_of_the_mean_is_students():
    """Where the cross products are linear in one sample, the jackknife is the textbook's error."""
    q, p = samples(3)[:, :1], np.ones((30, 1))
    low, high = Jackknife.of(different_laws(q @ p.T), RATE).interval(0)
    half = student.ppf(1 - RATE, 29) * q.std(ddof=1) / np.sqrt(len(q))
    assert (low[0], high[0]) == pytest.approx((q.mean() - half, q.mean() + half))


def test_nothing_is_known_without_a_positive_variance():
    q = np.ones((8, 2))
    low, high = Jackknife.of(equal_laws(q @ q.T), RATE).ratio((1.0, 0.0, 0.0))
    assert (low[0], high[0]) == (0, np.inf)


def test_no_signal_has_a_lower_limit_of_zero():
    q = np.random.default_rng(5).standard_normal((30, 6))
    low, _ = Jackknife.of(equal_laws(q @ q.T), RATE).ratio((0.0, 0.0, 1.0))
    assert low[0] == 0


def test_pools_that_are_used_up_leave_nothing_to_chance():
    """No variance, whatever the moments are: infinite where the signal has a positive limit."""
    low, high = Jackknife.of(found("different"), RATE).ratio((0.0, 0.0, 0.0))
    assert (low[0], high[0]) == (np.inf, np.inf)
    q = np.random.default_rng(5).standard_normal((30, 6))
    low, high = Jackknife.of(equal_laws(q @ q.T), RATE).ratio((0.0, 0.0, 0.0))
    assert (low[0], high[0]) == (0, np.inf)
