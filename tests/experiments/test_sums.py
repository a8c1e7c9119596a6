"""Bounds that are sums: fits against known coefficients and a grid search."""

import numpy as np
import pytest

from widthlab.experiments.shared.sums import fit_sum, fit_sum_of_seeds


def terms_of():
    depth, hidden = (grid.ravel() for grid in np.meshgrid([4.0, 16, 64], [1.0, 16, 256]))
    return np.stack([1 / depth, (depth * hidden) ** -0.5], 1)


def test_an_exact_sum_is_recovered():
    fit = fit_sum(terms_of(), terms_of() @ [0.3, 0.7])
    np.testing.assert_allclose(fit.coefficients, [0.3, 0.7], rtol=1e-6)
    assert fit.factor == pytest.approx(1.0, abs=1e-6)


def test_a_term_that_is_not_there_has_coefficient_zero():
    fit = fit_sum(terms_of(), terms_of() @ [0.0, 0.7])
    assert fit.coefficients[0] == pytest.approx(0.0, abs=1e-6)
    assert fit.coefficients[1] == pytest.approx(0.7, rel=1e-4)


def test_the_fit_is_the_best_of_a_grid_search():
    rng = np.random.default_rng(0)
    terms = terms_of()
    y = np.hypot(*(terms * [0.5, 0.6]).T) * np.exp(0.1 * rng.normal(size=len(terms)))
    fit = fit_sum(terms, y)
    a, b = np.meshgrid(np.geomspace(0.05, 2, 300), np.geomspace(0.05, 2, 300))
    fitted = terms[:, 0, None, None] * a + terms[:, 1, None, None] * b
    costs = (np.log(y[:, None, None] / fitted) ** 2).sum(0)
    best = np.unravel_index(costs.argmin(), costs.shape)
    # To the spacing of the grid, 1.2 %.
    np.testing.assert_allclose(fit.coefficients, [a[best], b[best]], rtol=0.02)
    assert (np.log(fit.ratios) ** 2).sum() <= costs.min() + 1e-12


def test_parts_in_quadrature_lie_within_the_leeway_of_a_sum():
    fit = fit_sum(terms_of(), np.hypot(*(terms_of() * [0.5, 0.6]).T))
    assert 1.0 < fit.factor < 2**0.5


def test_intervals_cover_what_was_put_in():
    """Of 40 sets of seeds the 95 % interval of b misses 6 or more in 1 of 100 cases."""
    terms = terms_of()
    missed = 0
    for number in range(40):
        rng = np.random.default_rng(number)
        size = terms @ [0.3, 0.7]
        squares = [(own * rng.normal(size=(60, 8))).__pow__(2).mean(1) for own in size]
        fit = fit_sum_of_seeds(terms, squares, seed=number)
        low, high = fit.intervals[1]
        missed += not low <= 0.7 <= high
        assert fit.low <= fit.factor <= fit.high
    assert missed < 7
