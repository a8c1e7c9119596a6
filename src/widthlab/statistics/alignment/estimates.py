"""The alignment certificate of one insertion point, from Gram matrices alone.

What is relied on is not a point estimate, since on pure noise that of |μ|² is positive about half
the time, and all that a bound needs still in 7 % (24 samples, 6 features), but a limit:
`Certificate.has_bound` says that an upper confidence limit of Pr(μ_M·g_K ≤ 0) lies below 1. Two
things must happen for that.

1. The estimate of |μ|² (m₁·m₂) is among the largest when it is compared with the same estimate of
   sign-flipped gradients. Where gradients are distributed symmetrically about 0, flipping signs
   changes nothing in law, so on such noise this happens with a probability of at most the error
   rate: exactly, for every number of samples, dimension and covariance. For different laws the
   training and the test signs are flipped apart, and the larger p-value counts, since either mean
   may be the one that is 0.
2. The lower confidence limit of m₁·m₂/√Var (`limits`) is positive; B_exact's upper limit comes from
   it. It errs with a probability near the error rate, in the limit of many samples. (At the rate
   of 2.5 % it errs in 0-3 % of Gaussian samples of 30 and 100; but where entries are as skewed as
   gamma variables of shape ½, in 14 % at 100 samples: heavy tails need more samples.)

The error rate is (1 − level)/2, and that of one point: of many points that are all noise, this
share has a bound by chance.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from widthlab.errors import WidthlabError
from widthlab.scaling import Interval
from widthlab.statistics.alignment.budgets import Budgets as Budgets
from widthlab.statistics.alignment.budgets import Pools, checked_budgets
from widthlab.statistics.alignment.certificates import Certificate
from widthlab.statistics.alignment.controls import (
    bounds,
    noise_control,
    random_signs,
    ranks,
    stands_out,
)
from widthlab.statistics.alignment.gram_moments import (
    Estimates,
    GramMoments,
    different_laws,
    equal_laws,
)
from widthlab.statistics.alignment.grams import Grams, centred
from widthlab.statistics.alignment.limits import Jackknife
from widthlab.theory.certificate import alignment_bound, dimensions, sampling_factor

Array = NDArray[np.float64]
Laws = Literal["equal", "different"]

MOST_FLIPS = 20_000
"""Sign flips at most: their signs are kept, and all go through the estimates."""

NAMES: dict[Laws, dict[str, str]] = {
    "equal": {"signal": "|μ|²", "square": "|μ|⁴", "train_spread": "μ'Σμ", "noise": "tr Σ²"},
    "different": {
        "signal": "m₁·m₂",
        "square": "(m₁·m₂)²",
        "train_spread": "m₂'Σ₁m₂",
        "test_spread": "m₁'Σ₂m₁",
        "noise": "tr Σ₁Σ₂",
    },
}
"""What each moment is called in messages."""


def certificate(
    grams: Grams,
    budgets: Budgets,
    *,
    laws: Laws = "equal",
    pools: Pools = (np.inf, np.inf),
    level: float = 0.95,
    flips: int = 199,
    seed: int | np.random.SeedSequence = 0,
) -> Certificate:
    """Return what gradients tell of steps along the mean of M samples, seen on K others.

    `budgets` are pairs (M, K). With `laws` equal, training and test samples are of one law and all
    are pooled; with different laws only their cross products count. `pools` are the sizes of finite
    pools from which the M and K will be drawn without replacement; the samples here are taken as
    drawn independently from the law, whose moments then stand for those of the pools. Every
    interval has limits of error rate (1 − level)/2 each. Two noise controls with `flips` random
    signs are always part of the result (see `Control`).

    Raises WidthlabError for fewer than four samples (of each law), Gram matrices that are not
    finite, budgets or pools that `checked_budgets` refuses, and fewer flips than the level needs or
    more than `MOST_FLIPS`.
    """
    rate = (1 - level) / 2
    gram = grams.pooled if laws == "equal" else grams.cross
    budgets = checked_budgets(budgets, pools)
    _check(gram, laws, rate, flips)
    m, k = np.asarray(budgets, dtype=np.float64).T
    f1, f2 = factors = sampling_factor(m, pools[0]), sampling_factor(k, pools[1])
    generator = np.random.default_rng(seed)
    groups = gram.shape[:1] if laws == "equal" else gram.shape
    signs, noise = (random_signs(generator, flips, groups) for _ in range(2))
    found = equal_laws(gram) if laws == "equal" else different_laws(gram)
    jackknife = Jackknife.of(found, rate)
    p_value = float(ranks(gram, None, signs)[0])
    estimate = found.unbiased
    reason = _reason(estimate, jackknife, p_value, rate, laws)

    b_exact, b_align = bounds(estimate, f1, f2)
    plug_exact, plug_align = bounds(found.plug_in, f1, f2)
    parallel, second, align = _dimension_intervals(found, rate, len(gram))
    limits = np.array([jackknife.ratio((a, b, a * b))[0][0] for a, b in zip(f1, f2, strict=True)])
    names = ("signal", "train_spread", "test_spread", "noise")
    return Certificate(
        laws=laws,
        samples=(len(grams.train), len(grams.test)),
        level=level,
        flips=flips,
        budgets=budgets,
        pools=(float(pools[0]), float(pools[1])),
        **{name: _interval(jackknife, part, len(gram)) for part, name in enumerate(names)},
        train_trace=_trace(grams.pooled if laws == "equal" else grams.train, rate),
        test_trace=_trace(grams.pooled if laws == "equal" else grams.test, rate),
        d_parallel=parallel,
        d_2=second,
        d_align=align,
        b_exact=b_exact[0],
        b_exact_limit=np.ones(len(f1)) if reason else 1 / (1 + limits),
        b_align=b_align[0],
        b_align_limit=np.ones(len(f1)) if reason else alignment_bound(align.low, f1, f2),
        plug_in={name: float(getattr(found.plug_in, name)[0]) for name in names}
        | _plug_in_dimensions(found.plug_in),
        plug_in_b_exact=plug_exact[0],
        plug_in_b_align=plug_align[0],
        p_value=p_value,
        reason=reason,
        controls=(
            noise_control("flipped", gram, noise, signs, factors, rate),
            noise_control("centred", centred(gram), noise, signs, factors, rate),
        ),
        jackknife=jackknife,
    )


def _check(gram: Array, laws: str, rate: float, flips: int) -> None:
    """Refuse what cannot be answered."""
    if laws not in ("equal", "different"):
        raise WidthlabError(f"laws must be equal or different, not {laws!r}")
    if not np.isfinite(gram).all():
        raise WidthlabError(
            "the Gram matrix has entries that are not finite; find out which gradients diverge"
        )
    if not 0 < rate < 0.5:
        raise WidthlabError(f"the level must lie between 0 and 1, not {1 - 2 * rate:g}")
    if (flips + 1) * rate < 1 - 1e-9:
        raise WidthlabError(
            f"{flips} sign flips cannot tell an error rate of {rate:.3g}; take at least "
            f"{int(np.ceil(1 / rate - 1e-9)) - 1}"
        )
    if flips > MOST_FLIPS:
        raise WidthlabError(
            f"{flips} sign flips are more than {MOST_FLIPS}, which tell an error rate of "
            f"{1 / (MOST_FLIPS + 1):.2g}; take a lower level, or fewer points at a time"
        )


def _reason(
    estimate: GramMoments, jackknife: Jackknife, p_value: float, rate: float, laws: Laws
) -> str:
    """Return why there is no bound below 1; empty where there is one."""
    bad = [words for name, words in NAMES[laws].items() if not getattr(estimate, name)[0] > 0]
    if bad:
        return f"the unbiased estimate of {', '.join(bad)} is not positive"
    if not np.isfinite(jackknife.covariance).all():
        return "an interval needs at least five samples"
    if not stands_out(p_value, rate):
        return (
            f"the signal is not distinguishable from sign-flipped gradients (p = {p_value:.2g}, "
            f"at most {rate:.2g} is needed)"
        )
    if jackknife.ratio((1.0, 1.0, 1.0))[0][0] <= 0:
        return "the lower confidence limit of the signal is not positive"
    return ""


def _interval(jackknife: Jackknife, part: int, n: int) -> Interval:
    low, high = (float(limit[0]) for limit in jackknife.interval(part))
    return Interval(float(jackknife.parts[0, part]), low, high, n, n, _few(low))


def _dimension_intervals(
    found: Estimates, rate: float, n: int
) -> tuple[Interval, Interval, Interval]:
    """Return d_∥, d₂ and d_align.

    The limits of a minimum are the smaller ones. Its lower limit errs only where that of the
    smallest part does; but any part's upper limit may be the one that is too small, so that each of
    them has the error rate over the number of parts.
    """
    train, test, noise = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
    # Equal laws have one spread.
    spreads = [train] if len(found.left_out) == 1 else [train, test]
    values = dimensions(found.unbiased.law)
    known = bool(found.unbiased.positive[0])
    reason = "" if known else "an unbiased estimate is not positive"

    def smallest(value: Array, parts: list[tuple[float, float, float]]) -> Interval:
        low = min(float(Jackknife.of(found, rate).ratio(part)[0][0]) for part in parts)
        each = Jackknife.of(found, rate / len(parts))
        high = min(float(each.ratio(part)[1][0]) for part in parts)
        return Interval(float(value[0]) if known else float("nan"), low, high, n, n, reason)

    return (
        smallest(values.parallel, spreads),
        smallest(values.second, [noise]),
        smallest(values.align, [*spreads, noise]),
    )


def _plug_in_dimensions(moments: GramMoments) -> dict[str, float]:
    found = dimensions(moments.law)
    parts = {"d_parallel": found.parallel, "d_2": found.second, "d_align": found.align}
    return {name: float(value[0]) for name, value in parts.items()}


def _trace(gram: Array, rate: float) -> Interval:
    """Return tr Σ = E|q|² − |μ|² with its jackknife."""
    n = len(gram)
    found, diagonal = equal_laws(gram), gram.diagonal()
    value = float(diagonal.mean() - found.unbiased.signal[0])
    without = (diagonal.sum() - diagonal) / (n - 1) - found.left_out[0].signal[0]
    error = float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))
    half = Jackknife.of(found, rate).quantile * error
    return Interval(value, value - half, value + half, n, n)


def _few(low: float) -> str:
    return "" if np.isfinite(low) else "an interval needs at least five samples"
