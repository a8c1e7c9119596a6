"""Bounds that are sums: the smallest factor by a grid search, and how forms are judged."""

import numpy as np
import pytest

from widthlab.experiments.shared.sums import fit_sum, fit_sums_of_seeds, judge_form


def terms_of():
    depth, hidden = (grid.ravel() for grid in np.meshgrid([4.0, 16, 64], [1.0, 16, 256]))
    return np.stack([1 / depth, (depth * hidden) ** -0.5], 1)


def seeds_of(y, spread=0.1, seeds=60):
    rng = np.random.default_rng(0)
    return [(own * rng.normal(1, spread, seeds)) ** 2 for own in y]


def test_an_exact_sum_is_recovered():
    fit = fit_sum(terms_of(), terms_of() @ [0.3, 0.7])
    np.testing.assert_allclose(fit.coefficients, [0.3, 0.7], rtol=1e-6)
    assert fit.factor == pytest.approx(1.0, abs=1e-6)


def test_a_term_that_is_not_there_has_coefficient_zero():
    fit = fit_sum(terms_of(), terms_of() @ [0.0, 0.7])
    assert fit.coefficients[0] == pytest.approx(0.0, abs=1e-6)
    assert fit.coefficients[1] == pytest.approx(0.7, rel=1e-4)


def test_the_factor_is_the_smallest_of_a_grid_search():
    """And least squares of the logarithms overstates it, here by more than a tenth."""
    rng = np.random.default_rng(0)
    terms = terms_of()
    y = np.hypot(*(terms * [0.5, 0.6]).T) * np.exp(0.1 * rng.normal(size=len(terms)))
    y[4] *= 2.0
    fit = fit_sum(terms, y)
    a, b = np.meshgrid(np.geomspace(0.05, 2, 300), np.geomspace(0.05, 2, 300))
    off = np.log(y[:, None, None] / (terms[:, 0, None, None] * a + terms[:, 1, None, None] * b))
    worst = np.exp(np.abs(off).max(0).min())
    # To the spacing of the grid, 1.2 %.
    assert fit.factor <= worst + 1e-9
    assert fit.factor == pytest.approx(worst, rel=0.02)
    best = np.unravel_index((off**2).sum(0).argmin(), a.shape)
    assert np.exp(np.abs(off[:, *best]).max()) > 1.1 * fit.factor


def test_parts_in_quadrature_lie_within_the_leeway_of_a_sum():
    fit = fit_sum(terms_of(), np.hypot(*(terms_of() * [0.5, 0.6]).T))
    assert 1.0 < fit.factor < 2**0.5


def test_one_term_needs_the_root_of_the_range_of_ratios():
    terms = terms_of()[:, :1]
    y = terms[:, 0] * np.linspace(1, 3, len(terms))
    assert fit_sum(terms, y).factor == pytest.approx(3**0.5)


def test_intervals_cover_what_was_put_in():
    """Of 40 sets of seeds an interval of 95 % misses 6 or more in 1 of 100 cases."""
    terms = terms_of()
    missed = {"b": 0, "factor": 0}
    truth = fit_sum(terms[:, 1:], terms @ [0.3, 0.7]).factor
    for number in range(40):
        rng = np.random.default_rng(number)
        size = terms @ [0.3, 0.7]
        squares = [(own * rng.normal(size=(60, 8))).__pow__(2).mean(1) for own in size]
        forms = {"both": terms, "second": terms[:, 1:]}
        found = fit_sums_of_seeds(forms, squares, seed=number)
        low, high = found["both"].intervals[1]
        missed["b"] += not low <= 0.7 <= high
        missed["factor"] += not found["second"].low <= truth <= found["second"].high
        assert found["both"].low <= found["both"].factor <= found["both"].high
    assert max(missed.values()) < 7


@pytest.mark.parametrize(
    ("coefficients", "verdict"), [((0.5, 0.6), "holds"), ((0.0, 0.6), "undecided")]
)
def test_a_form_holds_where_every_term_is_needed(coefficients, verdict):
    terms = terms_of()
    forms = {"both": terms, "first": terms[:, :1], "second": terms[:, 1:]}
    found = fit_sums_of_seeds(forms, seeds_of(terms @ coefficients))
    without = {"1/L": found["second"], "1/√(ML)": found["first"]}
    assert judge_form(found["both"], 2**0.5, without, {}).verdict == verdict


def test_two_forms_that_both_fit_are_undecided():
    terms = terms_of()
    near = terms * np.linspace(1, 1.2, len(terms))[:, None]
    found = fit_sums_of_seeds({"one": terms, "other": near}, seeds_of(terms @ [0.5, 0.6]))
    for name, rival in (("one", "other"), ("other", "one")):
        judged = judge_form(found[name], 2**0.5, {}, {rival: found[rival]})
        assert judged.verdict == "undecided"
        assert rival in judged.reason


def test_a_form_that_needs_more_fails():
    terms = terms_of()
    found = fit_sums_of_seeds({"second": terms[:, 1:]}, seeds_of(terms @ [0.9, 0.1]))
    assert judge_form(found["second"], 2**0.5, {}, {}).verdict == "fails"
