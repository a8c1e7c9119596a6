"""Bounds that are sums of terms, as a/L + b·√(D/(ML)), fitted to errors with their residuals.

An error whose independent parts add in quadrature lies between 1/√k of the sum of its k parts and
the sum itself. So a bound of k terms that is tight describes all errors within a factor of √k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from widthlab.claims import Judgement, judge_below

Array = NDArray[np.float64]

RESAMPLES = 200
"""Resamples of the seeds: the interval is of the worst point, which needs no fine percentiles."""


@dataclass(frozen=True)
class SumFit:
    """y ≈ Σ_k c_k x_k with c_k ≥ 0, of which no other c describes y within a smaller factor."""

    coefficients: Array
    """c_k (terms,)."""
    ratios: Array
    """y over the fit (points,)."""
    low: float = np.nan
    """Lower end of the 95 % interval over seeds of `factor`."""
    high: float = np.nan
    """Upper end."""
    intervals: Array | None = None
    """95 % intervals of the coefficients (terms, 2)."""

    @property
    def factor(self) -> float:
        """The factor within which the fit describes every point: the largest of y/fit, fit/y."""
        return float(np.exp(np.abs(np.log(self.ratios)).max()))


def fit_sum(terms: Array, y: Array) -> SumFit:
    """Fit positive y (points,) by terms (points, terms), all positive."""
    coefficients = _smallest(terms, y[None])[0]
    return SumFit(coefficients, y / (terms @ coefficients))


def fit_sums_of_seeds(
    forms: Mapping[str, Array], squares: Sequence[Array], seed: int = 0
) -> dict[str, SumFit]:
    """Fit root mean squares of seeds by several forms, terms (points, terms) by name.

    `squares` has one array (seeds,) for each point. Intervals come from resampling the seeds of
    every point, the same resamples for all forms. The worst of many points is biased upwards in
    resamples as it is in the sample, so that an end of the interval of the factor is the farther
    one of the percentile and of its reflection.
    """
    y = np.array([np.sqrt(own.mean()) for own in squares])
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    drawn = np.stack(
        [
            np.sqrt(own[generator.integers(0, len(own), (RESAMPLES, len(own)))].mean(1))
            for own in squares
        ],
        axis=1,
    )
    found = {}
    for name, terms in forms.items():
        fit = fit_sum(terms, y)
        again = _smallest(terms, drawn)
        factors = np.exp(np.abs(np.log(drawn / (again @ terms.T))).max(axis=1))
        low, high = np.quantile(factors, [0.025, 0.975])
        found[name] = SumFit(
            fit.coefficients,
            fit.ratios,
            float(max(min(low, fit.factor**2 / high), 1.0)),
            float(max(high, fit.factor**2 / low)),
            np.quantile(again, [0.025, 0.975], axis=0).T,
        )
    return found


def judge_form(
    fit: SumFit, leeway: float, without: Mapping[str, SumFit], rivals: Mapping[str, SumFit]
) -> Judgement:
    """Judge that a form describes all points within a factor, and that no lesser or other one does.

    `without` are fits without one of its terms, by that term, and `rivals` other forms. Where the
    interval of one of them reaches down to the leeway, it may do as well, and the data do not
    decide.
    """
    verdict, reason = judge_below(leeway, fit.factor, fit.low, fit.high)
    others = {f"without {name}": own for name, own in without.items()} | dict(rivals)
    if not others:
        return Judgement(verdict, reason)
    words = ", ".join(
        f"{name} {own.factor:.3g} [{own.low:.3g}, {own.high:.3g}]" for name, own in others.items()
    )
    reason = f"{reason}; factors needed by others: {words}"
    as_good = [name for name, own in others.items() if own.low <= leeway]
    if verdict == "holds" and as_good:
        return Judgement(
            "undecided", f"{reason}; not shown to need more than {leeway:.3g}: {', '.join(as_good)}"
        )
    return Judgement(verdict, reason)


def _smallest(terms: Array, y: Array) -> Array:
    """Return c (sets, terms) with the smallest factor for each set of y (sets, points).

    Linear programmes, minimise g with y ≤ T c ≤ g·y and c ≥ 0, all as one; then c/√g leaves the
    factor √g on both sides.
    """
    sets, points = y.shape
    count = terms.shape[1]
    scale = 1 / (terms / y.mean(axis=0)[:, None]).mean(axis=0)
    blocks = []
    for own in y:
        relative = terms * scale / own[:, None]
        none, one = np.zeros((points, 1)), np.ones((points, 1))
        blocks.append(np.block([[-relative, none], [relative, -one]]))
    found = linprog(
        np.tile(np.append(np.zeros(count), 1.0), sets),
        A_ub=sparse.block_diag(blocks, format="csc"),
        b_ub=np.tile(np.repeat([-1.0, 0.0], points), sets),
        method="highs-ds",
    )
    if found.x is None:
        raise ValueError(f"no sum of terms fits: {found.message}")
    solved = found.x.reshape(sets, count + 1)
    coefficients: Array = solved[:, :count] * scale / np.sqrt(solved[:, count:])
    return coefficients
