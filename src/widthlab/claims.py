"""Claims: one published statement under test, and the rules that give it a verdict.

A claim `holds` where the predicted value lies in the measured interval and the interval excludes
every rival, `fails` where the prediction is excluded, and is `undecided` otherwise: a wide
interval proves nothing. Each rule is one function; each returns a reason that a person can read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from scipy.stats import t as student

from widthlab.errors import WidthlabError

Array = NDArray[np.float64]

Verdict = Literal["holds", "fails", "undecided"]


class Judgement(NamedTuple):
    """A verdict and its reason, one readable sentence."""

    verdict: Verdict
    reason: str


class BandJudgement(NamedTuple):
    """A verdict over many comparisons.

    `p_value` is Bonferroni's for the largest deviation, `worst` the flat index of the comparison
    that deviates most (None where none is finite), and `deviation` how many standard errors it
    is off.
    """

    verdict: Verdict
    reason: str
    p_value: float
    worst: int | None
    deviation: float


def _number(value: Any) -> Any:
    """Numpy numbers become floats, and what is not finite becomes None (null in JSON)."""
    if value is None or isinstance(value, bool | str):
        return value
    number = float(value)
    return number if np.isfinite(number) else None


Number = Annotated[float | None, BeforeValidator(_number)]
Text = Annotated[str, Field(min_length=1)]


class Claim(BaseModel):
    """One statement with its prediction, its measurement and its verdict.

    Numbers that are not finite are stored as None: a measurement that does not exist.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    id: Text
    """Stable name, unique in a study, e.g. ntk_drift.exponent."""
    experiment: Text
    """The experiment that tests it."""
    statement: Text
    """What is claimed, in one sentence."""
    source: Text
    """Where it was claimed: paper, or theorem of the project's theory."""
    predicted: Number
    """The claimed value; None for claims of sign or order."""
    measured: Number
    """The measured value."""
    low: Number
    """Lower end of the measurement's interval."""
    high: Number
    """Upper end of the measurement's interval."""
    verdict: Verdict
    """holds, fails or undecided."""
    reason: Text
    """Why, with the numbers."""


_CLAIMS = TypeAdapter(list[Claim])


def to_json(claims: Iterable[Claim]) -> str:
    """A list of claims as JSON text, in the order given; what is not finite is null."""
    rows = [claim.model_dump() for claim in claims]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> list[Claim]:
    """Claims from the text of `to_json`; raises WidthlabError where it is not such."""
    try:
        return _CLAIMS.validate_python(json.loads(text))
    except json.JSONDecodeError as error:
        raise WidthlabError(f"the claims are not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WidthlabError(
            f"the claims are not as widthlab writes them, at {place}: {first['msg']}"
        ) from error


# ── rules ───────────────────────────────────────────────────────────────────────────────────


def judge_value(
    predicted: float,
    measured: float,
    low: float,
    high: float,
    rivals: Sequence[float] = (),
    *,
    caveat: str = "",
) -> Judgement:
    """Judge a predicted number by a measured interval [low, high], both ends included.

    `rivals` are values of competing theories that must lie outside for the claim to hold.
    `caveat` says why the measurement cannot be trusted (a power law that bends, say); where it is
    not empty the claim is undecided.
    """
    unusable = _unusable(measured, low, high, predicted)
    if unusable:
        return unusable
    interval = f"measured {measured:.4g} [{low:.4g}, {high:.4g}]"
    if caveat:
        return Judgement("undecided", f"{interval} against predicted {predicted:.4g}, but {caveat}")
    if not low <= predicted <= high:
        return Judgement("fails", f"{interval} excludes the predicted {predicted:.4g}")
    inside = [rival for rival in rivals if low <= rival <= high]
    if inside:
        return Judgement(
            "undecided",
            f"{interval} contains the predicted {predicted:.4g} but also the rival"
            f" {_listed(inside)}",
        )
    excluded = f" and excludes the rival {_listed(rivals)}" if rivals else ""
    return Judgement("holds", f"{interval} contains the predicted {predicted:.4g}{excluded}")


def judge_below(bound: float, measured: float, low: float, high: float) -> Judgement:
    """Judge the claim that a quantity is less than `bound`: the whole interval below it holds."""
    return _one_sided(bound, measured, low, high, below=True)


def judge_above(bound: float, measured: float, low: float, high: float) -> Judgement:
    """Judge the claim that a quantity is more than `bound`: the whole interval above it holds."""
    return _one_sided(bound, measured, low, high, below=False)


def judge_within(ends: tuple[float, float], measured: float, low: float, high: float) -> Judgement:
    """Judge the claim that a quantity lies between two numbers: all of its interval must."""
    unusable = _unusable(measured, low, high, sum(ends))
    if unusable:
        return unusable
    interval = f"measured {measured:.4g} [{low:.4g}, {high:.4g}]"
    band = f"{ends[0]:.4g} to {ends[1]:.4g}"
    if ends[0] <= low and high <= ends[1]:
        return Judgement("holds", f"{interval} lies entirely in {band}")
    if high < ends[0] or low > ends[1]:
        return Judgement("fails", f"{interval} lies entirely outside {band}")
    return Judgement("undecided", f"{interval} reaches out of {band}")


def judge_sign(sign: Literal[-1, 1], measured: float, low: float, high: float) -> Judgement:
    """Judge the claim that a quantity, a slope for instance, is positive (1) or negative (-1)."""
    if sign not in (-1, 1):
        raise ValueError(f"sign must be 1 or -1, not {sign!r}")
    return _one_sided(0.0, measured, low, high, below=sign < 0)


def judge_band(
    predicted: ArrayLike,
    measured: ArrayLike,
    errors: ArrayLike,
    *,
    tolerance: ArrayLike = 0.0,
    freedom: ArrayLike = np.inf,
    rival: ArrayLike | None = None,
    significance: float = 0.01,
    labels: Sequence[str] | None = None,
) -> BandJudgement:
    """Judge an exact law by many comparisons at once, arrays of one shape.

    `errors` are standard errors of `measured`, with `freedom` degrees of freedom each (seeds − 1;
    infinite for known errors). `tolerance` is a deviation that the claim allows for (next order in
    1/N, float32). The largest |z| is judged with Bonferroni's correction, which holds however
    the comparisons depend on one another (layers of one network do; χ² would not). With a `rival`
    law the claim holds only if the rival is rejected by the same test. `labels` name the
    comparisons in the reason.

    Comparisons that are not finite are counted in the reason; with none finite the claim is
    undecided. An error of 0 means a number known exactly: any difference beyond the tolerance then
    fails.
    """
    arrays = np.broadcast_arrays(
        *(np.asarray(a, dtype=np.float64) for a in (predicted, measured, errors, tolerance)),
        np.asarray(freedom, dtype=np.float64),
    )
    theory, data, error, allowed, dof = (array.ravel() for array in arrays)
    finite = np.isfinite(theory) & np.isfinite(data) & np.isfinite(error) & (error >= 0)
    finite &= dof > 0
    count, total = int(finite.sum()), len(finite)
    if count == 0:
        reason = f"none of {total} comparisons is finite"
        return BandJudgement("undecided", reason, float("nan"), None, float("nan"))
    p_value, worst, deviation = _largest(theory, data, error, allowed, dof, finite)
    name = f" at {labels[worst]}" if labels is not None else ""
    where = f"measured {data[worst]:.4g} against predicted {theory[worst]:.4g}{name}"
    holes = f"; {total - count} of {total} comparisons are not finite" if count < total else ""
    largest = f"the largest of {count} deviations is {deviation:.2g} standard errors ({where})"
    summary = f"{largest}, p = {p_value:.2g} after correction{holes}"
    if p_value < significance:
        return BandJudgement("fails", summary, p_value, worst, deviation)
    if rival is not None:
        other = np.broadcast_to(np.asarray(rival, dtype=np.float64), arrays[0].shape).ravel()
        known = finite & np.isfinite(other)
        rival_p = _largest(other, data, error, allowed, dof, known)[0] if known.any() else 1.0
        if rival_p >= significance:
            reason = f"{summary}, but the rival law fits as well (p = {rival_p:.2g})"
            return BandJudgement("undecided", reason, p_value, worst, deviation)
        summary = f"{summary}; the rival law is rejected (p = {rival_p:.2g})"
    return BandJudgement("holds", summary, p_value, worst, deviation)


# ── parts ───────────────────────────────────────────────────────────────────────────────────


def _largest(
    theory: Array, data: Array, error: Array, allowed: Array, dof: Array, finite: NDArray[np.bool_]
) -> tuple[float, int, float]:
    """Bonferroni's p of the least likely deviation, its index and its size in standard errors."""
    excess = np.maximum(np.abs(np.where(finite, data - theory, 0.0)) - allowed, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(excess > 0, excess / np.where(finite, error, 1.0), 0.0)
    p = np.where(finite, 2.0 * student.sf(z, np.where(dof > 0, dof, 1.0)), np.inf)
    # where every p is 1 (all deviations allowed for) the largest plain deviation is the worst
    worst = int(np.lexsort((-np.where(finite, np.abs(data - theory), -1.0), p))[0])
    return float(min(1.0, p[worst] * finite.sum())), worst, float(z[worst])


def _one_sided(bound: float, measured: float, low: float, high: float, *, below: bool) -> Judgement:
    unusable = _unusable(measured, low, high, bound)
    if unusable:
        return unusable
    side, other = ("below", "above") if below else ("above", "below")
    interval = f"measured {measured:.4g} [{low:.4g}, {high:.4g}]"
    if high < bound if below else low > bound:
        return Judgement("holds", f"{interval} lies entirely {side} {bound:.4g}")
    if low > bound if below else high < bound:
        return Judgement("fails", f"{interval} lies entirely {other} {bound:.4g}")
    return Judgement("undecided", f"{interval} contains {bound:.4g}")


def _unusable(measured: float, low: float, high: float, reference: float) -> Judgement | None:
    if not np.isfinite(measured):
        return Judgement("undecided", "the measurement is not finite")
    if not (np.isfinite(low) and np.isfinite(high)):
        return Judgement("undecided", f"measured {measured:.4g} has no finite interval")
    if not np.isfinite(reference):
        return Judgement("undecided", "the prediction is not finite")
    if low > high:
        raise ValueError(f"an interval's low end {low} must not exceed its high end {high}")
    return None


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
