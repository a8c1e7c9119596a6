"""The alignment certificate of one insertion point, from Gram matrices alone.

What is certified is not a point estimate, since on pure noise that of |μ|² is positive about half
the time, and all that a bound needs still in 7 % (24 samples, 6 features), but a limit:
`Certificate.certified` says that an upper confidence limit of Pr(μ_M·g_K ≤ 0) lies below 1. Two
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
share is certified by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from widthlab.errors import WidthlabError
from widthlab.scaling import Interval
from widthlab.statistics.alignment.certificates import Certificate, Control
from widthlab.statistics.alignment.gram_moments import (
    Estimates,
    GramMoments,
    different_laws,
    equal_laws,
)
from widthlab.statistics.alignment.grams import Grams, centred
from widthlab.statistics.alignment.limits import Jackknife
from widthlab.theory.certificate import (
    alignment_bound,
    alignment_variance,
    cantelli_bound,
    dimensions,
    sampling_factor,
)

Array = NDArray[np.float64]
Laws = Literal["equal", "different"]
Budgets = Sequence[tuple[int, int]]

BLOCK_NUMBERS = 2**16
"""Signs of flips that go through the estimates at a time, so that memory stays small."""

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
    pools: tuple[float, float] = (np.inf, np.inf),
    level: float = 0.95,
    flips: int = 199,
    seed: int | np.random.SeedSequence = 0,
) -> Certificate:
    """Return what gradients certify for steps along the mean of M samples, seen on K others.

    `budgets` are pairs (M, K). With `laws` equal, training and test samples are of one law and all
    are pooled; with different laws only their cross products count. `pools` are the sizes of finite
    pools from which the M and K will be drawn without replacement; the samples here are taken as
    drawn independently from the law, whose moments then stand for those of the pools. Every
    interval has limits of error rate (1 − level)/2 each. Two noise controls with `flips` random
    signs are always part of the result (see `Control`).

    Raises WidthlabError for fewer than four samples (of each law), Gram matrices that are not
    finite, budgets beyond the pools, and fewer flips than the level needs.
    """
    rate = (1 - level) / 2
    gram = grams.pooled if laws == "equal" else grams.cross
    _check(gram, budgets, laws, rate, flips)
    f1, f2 = _factors(budgets, pools)
    generator = np.random.default_rng(seed)
    signs: list[Array] = [
        np.where(generator.integers(0, 2, size=(flips, n)) == 1, 1.0, -1.0)
        for n in (gram.shape[:1] if laws == "equal" else gram.shape)
    ]
    found = equal_laws(gram) if laws == "equal" else different_laws(gram)
    jackknife = Jackknife.of(found, rate)
    p_value = _p_value(gram, found, signs)
    estimate = found.unbiased
    reason = _reason(estimate, jackknife, p_value, rate, laws)

    b_exact, b_align = _bounds(estimate, f1, f2)
    plug_exact, plug_align = _bounds(found.plug_in, f1, f2)
    parallel, second, align = _dimension_intervals(estimate, jackknife, len(gram))
    limits = np.array([jackknife.ratio((a, b, a * b))[0][0] for a, b in zip(f1, f2, strict=True)])
    names = ("signal", "train_spread", "test_spread", "noise")
    return Certificate(
        laws=laws,
        samples=(len(grams.train), len(grams.test)),
        level=level,
        flips=flips,
        budgets=tuple((int(m), int(k)) for m, k in budgets),
        pools=pools,
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
            _control("flipped", gram, signs, f1, f2, rate),
            _control("centred", centred(gram), signs, f1, f2, rate),
        ),
        jackknife=jackknife,
    )


def _check(gram: Array, budgets: Budgets, laws: str, rate: float, flips: int) -> None:
    """Refuse what cannot be answered."""
    if laws not in ("equal", "different"):
        raise WidthlabError(f"laws must be equal or different, not {laws!r}")
    if not np.isfinite(gram).all():
        raise WidthlabError(
            "the Gram matrix has entries that are not finite; find out which gradients diverge"
        )
    if not budgets:
        raise WidthlabError("give at least one budget (M, K), for instance (64, 64)")
    if not 0 < rate < 0.5:
        raise WidthlabError(f"the level must lie between 0 and 1, not {1 - 2 * rate:g}")
    if (flips + 1) * rate < 1 - 1e-9:
        raise WidthlabError(
            f"{flips} sign flips cannot tell an error rate of {rate:.3g}; take at least "
            f"{int(np.ceil(1 / rate - 1e-9)) - 1}"
        )


def _factors(budgets: Budgets, pools: tuple[float, float]) -> tuple[Array, Array]:
    """Return f₁ and f₂ of every budget."""
    m, k = np.asarray(budgets, dtype=np.float64).T
    try:
        return sampling_factor(m, pools[0]), sampling_factor(k, pools[1])
    except ValueError as error:
        raise WidthlabError(f"budgets and pools do not fit: {error}") from error


def _p_value(gram: Array, found: Estimates, signs: list[Array]) -> float:
    """Return the larger p-value of the signal against flips of each group's signs."""
    observed = float(found.unbiased.signal[0])
    if len(signs) == 1:
        n = len(gram)
        total = np.sum(signs[0] * (signs[0] @ gram), axis=1) - np.trace(gram)
        groups = [total / (n * (n - 1))]
    else:
        groups = [signs[0] @ gram.mean(axis=1) / len(gram), signs[1] @ gram.mean(axis=0)]
        groups[1] /= gram.shape[1]
    # A flip of all signs gives the value itself, up to rounding.
    least = observed - 1e-12 * float(np.linalg.norm(gram)) / gram.size**0.5
    return max((1 + int(np.sum(values >= least))) / (1 + len(values)) for values in groups)


def _reason(
    estimate: GramMoments, jackknife: Jackknife, p_value: float, rate: float, laws: Laws
) -> str:
    """Return why nothing is certified; empty where something is."""
    bad = [words for name, words in NAMES[laws].items() if not getattr(estimate, name)[0] > 0]
    if bad:
        return f"the unbiased estimate of {', '.join(bad)} is not positive"
    if not np.isfinite(jackknife.covariance).all():
        return "an interval needs at least five samples"
    if p_value > rate * (1 + 1e-9):
        return (
            f"the signal is not distinguishable from sign-flipped gradients (p = {p_value:.2g}, "
            f"at most {rate:.2g} is needed)"
        )
    if jackknife.ratio((1.0, 1.0, 1.0))[0][0] <= 0:
        return "the lower confidence limit of the signal is not positive"
    return ""


def _bounds(moments: GramMoments, f1: Array, f2: Array) -> tuple[Array, Array]:
    """Return B_exact and B_align (rows, budgets), 1 where an estimate is not positive."""
    law, known = moments.law, moments.positive[:, None]
    by_row = type(law)(*(np.asarray(part)[:, None] for part in vars(law).values()))
    exact = cantelli_bound(by_row.signal, alignment_variance(by_row, f1, f2))
    align = alignment_bound(dimensions(by_row).align, f1, f2)
    return np.where(known, exact, 1.0), np.where(known, align, 1.0)


def _interval(jackknife: Jackknife, part: int, n: int) -> Interval:
    low, high = (float(limit[0]) for limit in jackknife.interval(part))
    return Interval(float(jackknife.parts[0, part]), low, high, n, n, _few(low))


def _dimension_intervals(
    moments: GramMoments, jackknife: Jackknife, n: int
) -> tuple[Interval, Interval, Interval]:
    """Return d_∥, d₂ and d_align; a minimum's limits are the smaller ones."""
    found = dimensions(moments.law)
    train, test, noise = (
        [float(limit[0]) for limit in jackknife.ratio(weights)]
        for weights in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    )
    parallel = [min(pair) for pair in zip(train, test, strict=True)]
    align = [min(pair) for pair in zip(parallel, noise, strict=True)]
    values = (found.parallel[0], found.second[0], found.align[0])
    known = bool(moments.positive[0])
    reason = "" if known else "an unbiased estimate is not positive"
    first, second, third = (
        Interval(float(value) if known else float("nan"), low, high, n, n, reason)
        for value, (low, high) in zip(values, (parallel, noise, align), strict=True)
    )
    return first, second, third


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


def _control(
    name: str, gram: Array, signs: list[Array], f1: Array, f2: Array, rate: float
) -> Control:
    """Send sign-flipped gradients through the same estimates, limits and rules."""
    step = max(1, BLOCK_NUMBERS // max(gram.shape))
    blocks = [
        _flipped(gram, [group[start : start + step] for group in signs], f1, f2, rate)
        for start in range(0, len(signs[0]), step)
    ]
    signal, positive, above, align, exact = map(np.concatenate, zip(*blocks, strict=True))
    # Flips of flipped gradients are flips, so that each is judged among the others.
    rank = np.mean(signal >= signal[:, None], axis=1)
    return Control(
        name=name,
        certified=float(np.mean(positive & above & (rank <= rate * (1 + 1e-9)))),
        point_estimates=float(np.mean(positive)),
        plug_in_d_align=float(np.median(align)),
        plug_in_b_exact=np.median(exact, axis=0),
    )


def _flipped(
    gram: Array, signs: list[Array], f1: Array, f2: Array, rate: float
) -> tuple[NDArray[Any], ...]:
    """Return of some flips: the signal, whether all estimates are positive, whether the signal's
    lower limit is, and the plug-in d_align and B_exact."""
    found = equal_laws(gram, signs[0]) if len(signs) == 1 else different_laws(gram, *signs)
    low, _ = Jackknife.of(found, rate).ratio((1.0, 1.0, 1.0))
    return (
        found.unbiased.signal,
        found.unbiased.positive,
        low > 0,
        dimensions(found.plug_in.law).align,
        _bounds(found.plug_in, f1, f2)[0],
    )


def _few(low: float) -> str:
    return "" if np.isfinite(low) else "an interval needs at least five samples"
