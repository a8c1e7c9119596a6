"""Crossings of curves, found between points in log–log."""

import numpy as np
import pytest

from widthlab.experiments.shared.boundaries import fall_from_peak, first_above, widened
from widthlab.experiments.shared.resampling import Resampled

X = np.array([0.5, 1.0, 2.0, 4.0, 8.0])


def test_a_power_law_crosses_where_it_should():
    curves = np.log(np.stack([X**2, 3 * X**2]))
    assert first_above(X, curves, np.log(5.0)) == pytest.approx([5**0.5, (5 / 3) ** 0.5])


def test_a_curve_that_never_crosses_or_starts_above_has_no_crossing():
    curves = np.log(np.stack([X / 100, X * 100]))
    assert np.isnan(first_above(X, curves, 0.0)).all()
    assert np.isnan(first_above(X, np.full(5, np.nan), 0.0))


def test_what_is_not_finite_is_no_crossing():
    """An infinite value ends the curve, at the last point that is known."""
    curve = np.array([-1.0, -0.5, np.inf, np.inf, np.inf])
    assert first_above(X, curve, 0.0) == pytest.approx(1.0)
    assert np.isnan(first_above(X, np.array([np.nan, 1.0, 2.0, 3.0, 4.0]), 0.0))


def test_a_fall_is_looked_for_beyond_the_maximum():
    curve = np.log([0.1, 1.0, 1.0, 0.25, 0.1])
    assert fall_from_peak(X, curve, 0.5) == pytest.approx(2 * 2**0.5)
    assert np.isnan(fall_from_peak(X, np.log(X), 0.5))
    holes = np.where(X > 3, np.nan, curve)
    assert np.isnan(fall_from_peak(X, holes, 0.5))
    assert np.isnan(fall_from_peak(X, np.full(5, np.nan), 0.5))


def test_widened_resamples_cover_the_truth_of_few_draws():
    """Of 400 samples of five lognormal draws, at least 90 % have the truth in their interval.

    The interval is meant to hold 95 %; chance takes 400 to below 90 % less than once in 1e4.
    """
    generator = np.random.default_rng(0)
    covered = {"plain": 0, "widened": 0}
    for _ in range(400):
        logs = 0.3 * generator.standard_normal(5)
        rows = generator.integers(0, 5, (500, 5))
        plain = Resampled(np.exp(logs.mean()), np.exp(logs[rows].mean(1)))
        for name, found in (("plain", plain), ("widened", widened(plain, 5))):
            low, high = np.quantile(found.resamples, (0.025, 0.975))
            covered[name] += low <= 1.0 <= high
    assert covered["widened"] >= 360
    assert covered["plain"] < 360


def test_one_draw_tells_no_interval():
    assert np.isnan(widened(Resampled(np.float64(1.0), np.ones(500)), 1).resamples).all()
