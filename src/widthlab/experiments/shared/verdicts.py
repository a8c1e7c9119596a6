"""Claims of the two shapes that experiments share: an exponent, and an exact law at many points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from widthlab.claims import Claim, Verdict, judge_band, judge_sign, judge_value

if TYPE_CHECKING:
    from widthlab.scaling import PowerLaw

Array = NDArray[np.float64]


def exponent_claim(
    identifier: str,
    statement: str,
    source: str,
    law: PowerLaw,
    predicted: float,
    rivals: Sequence[float],
    *,
    tolerance: float = 0.0,
    caveat: str = "",
) -> Claim:
    """Judge a predicted exponent; points that bend away from a power law decide nothing.

    A `caveat` says why the data cannot decide, as that they lie outside the law's domain.

    A law of leading order has a `tolerance` for the next order: the interval is widened by it,
    for the prediction and for its rivals alike, and points that bend by no more than the next
    order may bend them still count as a power law.
    """
    if not law.straight and _bend(law) > tolerance:
        caveat = caveat or f"the points bend away from a power law ({_misfit(law)})"
    allowed = f"{tolerance:.2g} allowed for the next order" if tolerance else ""
    ends = law.low - tolerance, law.high + tolerance
    verdict, reason = judge_value(predicted, law.exponent, *ends, rivals, caveat=caveat)
    words = _join(reason, allowed, law.reason)
    return _of_law(identifier, statement, source, law, ends, predicted, verdict, words)


def sign_claim(
    identifier: str,
    statement: str,
    source: str,
    law: PowerLaw,
    sign: Literal[-1, 1],
    *,
    caveat: str = "",
) -> Claim:
    """Judge the claim that a quantity rises (1) or falls (-1), whatever its exponent.

    A `caveat` says why the data cannot decide.
    """
    verdict, reason = judge_sign(sign, law.exponent, law.low, law.high)
    if caveat:
        verdict, reason = "undecided", f"{reason}, but {caveat}"
    words = _join(f"exponent {reason}", law.reason)
    return _of_law(identifier, statement, source, law, (law.low, law.high), None, verdict, words)


def _of_law(
    identifier: str,
    statement: str,
    source: str,
    law: PowerLaw,
    ends: tuple[float, float],
    predicted: float | None,
    verdict: Verdict,
    reason: str,
) -> Claim:
    """Return the claim whose measurement is a fitted exponent, with the interval that decided."""
    return Claim(
        id=identifier,
        experiment=identifier.partition(".")[0],
        statement=statement,
        source=source,
        predicted=predicted,
        measured=law.exponent,
        low=ends[0],
        high=ends[1],
        verdict=verdict,
        reason=reason,
    )


SIGNIFICANCE = 0.01
"""Chance that an exact law is said to fail where it holds, over all its points together."""


def band_claim(
    identifier: str,
    statement: str,
    source: str,
    predicted: Array,
    measured: Array,
    errors: Array,
    *,
    rival: Array,
    labels: Sequence[str],
    draws: int,
    tolerance: Array | float = 0.0,
) -> Claim:
    """Judge a law at many points; the claim's numbers are those of the worst point.

    `draws` is the number of independent draws behind every error, `tolerance` what the law itself
    leaves open, `rival` the law that must be rejected for the claim to hold. The interval is the
    one by which the verdict is reached: at the worst point, corrected for the number of points.
    """
    band = judge_band(
        predicted,
        measured,
        errors,
        tolerance=tolerance,
        freedom=draws - 1,
        labels=labels,
        rival=rival,
        significance=SIGNIFICANCE,
    )
    worst = band.worst
    at = [float(a[worst]) if worst is not None else np.nan for a in (predicted, measured, errors)]
    half = np.nan
    if worst is not None:
        points = int((np.isfinite(predicted) & np.isfinite(measured)).sum())
        allowed = float(np.broadcast_to(tolerance, measured.shape)[worst])
        half = student.ppf(1 - SIGNIFICANCE / (2 * points), draws - 1) * at[2] + allowed
    return Claim(
        id=identifier,
        experiment=identifier.partition(".")[0],
        statement=statement,
        source=source,
        predicted=at[0],
        measured=at[1],
        low=at[1] - half,
        high=at[1] + half,
        verdict=band.verdict,
        reason=band.reason,
    )


def errors_of_variances(law: Array, measured: Array, errors: Array) -> Array:
    """Return the errors that estimated variances have if the law holds.

    The error of a variance is proportional to it, so that an estimate that is too small by chance
    comes with an error too small by the same factor, and would be said to exclude the law too
    often. Errors of estimates above the law, or not positive, stay as they are.
    """
    positive = np.where(measured > 0, measured, np.inf)
    return np.asarray(errors * np.maximum(law / positive, 1.0))


def _bend(law: PowerLaw) -> float:
    """Return the largest distance of a point from the fit, as a change of exponent over its range.

    A relative correction of order ε at one end changes the exponent by ε over the logarithm of the
    range; so does this number, for a point that is ε off the line.
    """
    x, y = np.asarray(law.x)[list(law.used)], np.asarray(law.y)[list(law.used)]
    off = np.abs(np.log(y / law.prefactor) - law.exponent * np.log(x))
    return float(off.max() / np.log(x.max() / x.min()))


def _misfit(law: PowerLaw) -> str:
    return f"χ²/dof {law.misfit:.3g}, p = {law.misfit_p:.2g}, curvature {law.curvature:.2g}"


def _join(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)
