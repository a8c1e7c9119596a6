"""Sign flips: how the signal compares with them, and what the whole pipeline says of noise.

Where gradients are distributed symmetrically about 0, flipping signs at random changes nothing in
law, so that flips are draws of noise with the same sizes and covariance. They serve twice: the
signal's p-value is its rank among flips (`ranks`), and a `noise_control` sends flips themselves
through everything, each compared with a second, independent set of flips. In that way the share of
them that get a bound below 1 is an error rate that was measured. (Ranked among one another, no
more than the stated share could be found, whatever the code did.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.statistics.alignment.certificates import Control
from widthlab.statistics.alignment.gram_moments import (
    GramMoments,
    different_laws,
    equal_laws,
)
from widthlab.statistics.alignment.limits import Jackknife
from widthlab.theory.certificate import (
    alignment_bound,
    alignment_variance,
    cantelli_bound,
    dimensions,
)

Array = NDArray[np.float64]

BLOCK_NUMBERS = 2**16
"""Signs of flips that go through the estimates at a time, so that memory stays small."""


def random_signs(generator: np.random.Generator, flips: int, shape: tuple[int, ...]) -> list[Array]:
    """Return ±1 (flips, n) for each group of n samples."""
    return [np.where(generator.integers(0, 2, size=(flips, n)) == 1, 1.0, -1.0) for n in shape]


def ranks(gram: Array, signs: list[Array] | None, flips: list[Array]) -> Array:
    """Return the p-values (rows,) of the signal of sign-flipped gradients, compared with `flips`.

    Signs are one group (rows, n) for equal laws and two for different ones; None are the gradients
    themselves. Of two groups each is flipped alone and the larger p-value counts, since either mean
    may be the one that is 0. Where the flipped gradients are noise, p ≤ α has a probability of at
    most α.
    """
    given = [np.ones((1, len(other[0]))) for other in flips] if signs is None else signs
    # A flip of all signs gives the value itself, up to rounding.
    rounding = 1e-12 * float(np.sqrt(np.einsum("ij,ij->", gram, gram) * gram.size))
    if len(flips) == 1:
        # Flips of flipped gradients are flips: all rows have the same ones to compare with.
        others, own = (np.sum(rows * (rows @ gram), axis=1) for rows in (flips[0], given[0]))
        below = np.searchsorted(np.sort(others), own - rounding)
        return np.asarray((1 + len(others) - below) / (1 + len(others)))
    first, second = flips[0] @ gram, flips[1] @ gram.T
    found = [np.empty(0)]
    step = max(1, BLOCK_NUMBERS // max(*gram.shape, len(first)))
    for start in range(0, len(given[0]), step):
        train, test = (rows[start : start + step] for rows in given)
        least = np.sum(train * (test @ gram.T), axis=1, keepdims=True) - rounding
        larger = [(test @ first.T >= least).sum(axis=1), (train @ second.T >= least).sum(axis=1)]
        found.append((1 + np.maximum(*larger)) / (1 + len(first)))
    return np.concatenate(found)


def noise_control(
    name: str,
    gram: Array,
    signs: list[Array],
    flips: list[Array],
    factors: tuple[Array, Array],
    rate: float,
) -> Control:
    """Send sign-flipped gradients through the same estimates, limits and comparison.

    `signs` make the noise, and `flips`, independent of them, are what it is compared with.
    """
    step = max(1, BLOCK_NUMBERS // max(gram.shape))
    blocks = [
        _flipped(gram, [group[start : start + step] for group in signs], factors, rate)
        for start in range(0, len(signs[0]), step)
    ]
    positive, above, align, exact = map(np.concatenate, zip(*blocks, strict=True))
    limits = np.flatnonzero(positive & above)
    # A comparison takes each of them times all flips: only of those for which it decides.
    p_values = ranks(gram, [group[limits] for group in signs], flips)
    return Control(
        name=name,
        certified=float(np.sum(stands_out(p_values, rate)) / len(positive)),
        limit_alone=len(limits) / len(positive),
        point_estimates=float(np.mean(positive)),
        plug_in_d_align=float(np.median(align)),
        plug_in_b_exact=np.median(exact, axis=0),
    )


def stands_out(p_values: ArrayLike, rate: float) -> NDArray[np.bool_]:
    """Say whether a signal is among the largest of flips, for the error rate of a limit."""
    return np.asarray(np.asarray(p_values) <= rate * (1 + 1e-9))


def bounds(moments: GramMoments, f1: Array, f2: Array) -> tuple[Array, Array]:
    """Return B_exact and B_align (rows, budgets), 1 where an estimate is not positive."""
    law, known = moments.law, moments.positive[:, None]
    by_row = type(law)(*(np.asarray(part)[:, None] for part in vars(law).values()))
    exact = cantelli_bound(by_row.signal, alignment_variance(by_row, f1, f2))
    align = alignment_bound(dimensions(by_row).align, f1, f2)
    return np.where(known, exact, 1.0), np.where(known, align, 1.0)


def _flipped(
    gram: Array, signs: list[Array], factors: tuple[Array, Array], rate: float
) -> tuple[NDArray[Any], ...]:
    """Return of some flips: whether all estimates are positive, whether the signal's lower limit
    is, and the plug-in d_align and B_exact."""
    found = equal_laws(gram, signs[0]) if len(signs) == 1 else different_laws(gram, *signs)
    low, _ = Jackknife.of(found, rate).ratio((1.0, 1.0, 1.0))
    return (
        found.unbiased.positive,
        low > 0,
        dimensions(found.plug_in.law).align,
        bounds(found.plug_in, *factors)[0],
    )
