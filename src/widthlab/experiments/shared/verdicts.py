"""Claims of the two shapes that experiments share: an exponent, and an exact law at many points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.claims import Claim, judge_band, judge_sign, judge_value

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
) -> Claim:
    """Judge a predicted exponent; points that bend away from a power law decide nothing."""
    caveat = "" if law.straight else f"the points bend away from a power law ({_misfit(law)})"
    verdict, reason = judge_value(predicted, law.exponent, law.low, law.high, rivals, caveat=caveat)
    return Claim(
        id=identifier,
        experiment=identifier.partition(".")[0],
        statement=statement,
        source=source,
        predicted=predicted,
        measured=law.exponent,
        low=law.low,
        high=law.high,
        verdict=verdict,
        reason=_join(reason, law.reason),
    )


def falling_claim(identifier: str, statement: str, source: str, law: PowerLaw) -> Claim:
    """Judge the claim that a quantity falls with width, whatever its exponent."""
    verdict, reason = judge_sign(-1, law.exponent, law.low, law.high)
    return Claim(
        id=identifier,
        experiment=identifier.partition(".")[0],
        statement=statement,
        source=source,
        predicted=None,
        measured=law.exponent,
        low=law.low,
        high=law.high,
        verdict=verdict,
        reason=_join(f"exponent {reason}", law.reason),
    )


def band_claim(
    identifier: str,
    statement: str,
    source: str,
    predicted: Array,
    measured: Array,
    errors: Array,
    *,
    labels: Sequence[str],
    draws: int,
    rival: Array | None = None,
    caveat: str = "",
) -> Claim:
    """Judge an exact law at many points; the claim's numbers are those of the worst point.

    `draws` is the number of independent draws behind every error. The interval is two standard
    errors either way. A `caveat` says why the comparison cannot decide.
    """
    band = judge_band(predicted, measured, errors, freedom=draws - 1, labels=labels, rival=rival)
    worst = band.worst
    at = [float(a[worst]) if worst is not None else np.nan for a in (predicted, measured, errors)]
    return Claim(
        id=identifier,
        experiment=identifier.partition(".")[0],
        statement=statement,
        source=source,
        predicted=at[0],
        measured=at[1],
        low=at[1] - 2 * at[2],
        high=at[1] + 2 * at[2],
        verdict="undecided" if caveat else band.verdict,
        reason=_join(band.reason, caveat),
    )


def _misfit(law: PowerLaw) -> str:
    return f"χ²/dof {law.misfit:.3g}, p = {law.misfit_p:.2g}, curvature {law.curvature:.2g}"


def _join(*sentences: str) -> str:
    return "; ".join(sentence for sentence in sentences if sentence)
