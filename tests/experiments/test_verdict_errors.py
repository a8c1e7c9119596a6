"""Errors of variances as they are if the law holds: no law is rejected for a lucky few draws."""

import numpy as np

from widthlab.experiments.shared.verdicts import errors_of_variances, exponent_claim
from widthlab.scaling import fit_power_law


def test_variances_that_are_small_by_chance_reject_no_law():
    """Of 40,000 repetitions with 30 normal numbers, 0.13 % may lie 3 errors below: 6 times that do
    with their own errors, and fewer with the law's. Five standard errors of 52 counts are 36."""
    rng = np.random.default_rng(0)
    measured = rng.standard_normal((40_000, 30)).var(axis=1, ddof=1)
    own = measured * np.sqrt(2 / 29)
    plain = ((measured - 1) / own < -3).mean()
    law = np.ones_like(measured)
    held = ((measured - 1) / errors_of_variances(law, measured, own) < -3).mean()
    assert plain > 5 * 0.00135
    assert held < 0.00135 + 36 / 40_000


def test_only_estimates_below_the_law_are_touched():
    measured, errors = np.array([-0.1, 0.5, 1.0, 2.0]), np.full(4, 0.1)
    found = errors_of_variances(np.ones(4), measured, errors)
    np.testing.assert_allclose(found, [0.1, 0.2, 0.1, 0.1])


def test_points_that_bend_by_the_next_order_still_are_a_power_law():
    """N^-½ (1 + 3/N), so precisely measured that the bend is seen; 3/32 is allowed for, or not."""
    widths = [32, 64, 128, 256]
    rng = np.random.default_rng(1)
    samples = [w**-0.5 * (1 + 3 / w) * (1 + 1e-3 * rng.standard_normal(200)) for w in widths]
    law = fit_power_law(widths, samples)
    assert not law.straight

    def verdict(tolerance):
        words = ("a.b.c", "falls as N^-½", "a paper")
        return exponent_claim(*words, law, -0.5, (-1.0, 0.0), tolerance=tolerance).verdict

    assert verdict(0.0) == "undecided"
    assert verdict(3 / 32 / np.log(8)) == "holds"
