"""How often a step along −μ_M would harm K unseen samples, from cross products of gradients alone.

Pr(μ_M·g_K ≤ 0) is counted in two ways. Disjoint blocks of M training and K test samples are
independent draws of the law, so that Clopper–Pearson's interval holds, but there are few. Draws
from the pool, without replacement within a draw, are many but share their samples: they tell the
rate for this pool, whose exact variance is known, and have no interval for the law.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import binomtest

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.grams import centred
from widthlab.theory.certificate import (
    AlignmentMoments,
    alignment_variance,
    cantelli_bound,
    sampling_factor,
)

Array = NDArray[np.float64]

ABOUT = {
    "blocks": "disjoint pairs of a training and a test block",
    "block_mismatches": "blocks with μ_M·g_K ≤ 0",
    "block_rate": "share of blocks with μ_M·g_K ≤ 0; NaN without a block",
    "block_rate_low": "lower end of Clopper and Pearson's interval for Pr(μ_M·g_K ≤ 0)",
    "block_rate_high": "upper end of Clopper and Pearson's interval for Pr(μ_M·g_K ≤ 0)",
    "pool_rate": "share of draws from the pools with μ_M·g_K ≤ 0; draws are dependent",
    "pool_mean": "mean of μ_M·g_K over draws from the pools",
    "pool_variance": "variance of μ_M·g_K over draws from the pools",
    "pool_variance_exact": "the same, exactly, over all draws without replacement",
    "pool_bound": "B_exact of the pools, by the exact mean and variance",
}
"""What `mismatch` returns, by name."""


def mismatch(
    cross: Array,
    train_samples: Sequence[int],
    test_samples: Sequence[int],
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int | np.random.SeedSequence = 0,
) -> xr.Dataset:
    """Count mismatches over a grid of M (`train_samples`) and K (`test_samples`).

    `cross` (n₁, n₂) are inner products of training and test gradients. Samples are shuffled once
    by `seed`, since loaders may be sorted. Blocks of different (M, K) share samples, and so are
    dependent; those of one are not. The dataset has dimensions (train_samples, test_samples) and
    the variables of `ABOUT`; NaN where the pools hold too few samples. Raises WidthlabError where
    `cross` is not finite or has a side of fewer than two samples, and for M or K below 1.
    """
    _check(cross, train_samples, test_samples, draws)
    generator = np.random.default_rng(seed)
    n1, n2 = cross.shape
    shuffled = cross[generator.permutation(n1)][:, generator.permutation(n2)]
    pool = pool_moments(cross)
    shape = (len(train_samples), len(test_samples))
    found = {name: np.full(shape, np.nan) for name in ABOUT}
    drawn = _drawn(cross, train_samples, test_samples, draws, generator)
    for i, m in enumerate(train_samples):
        for j, k in enumerate(test_samples):
            values = block_products(shuffled, m, k)
            bad = int(np.sum(values <= 0))
            numbers = {"blocks": float(len(values)), "block_mismatches": float(bad)}
            if len(values):
                test = binomtest(bad, len(values)).proportion_ci(level, method="exact")
                numbers |= {"block_rate": bad / len(values)}
                numbers |= {"block_rate_low": test.low, "block_rate_high": test.high}
            if m <= n1 and k <= n2:
                f1, f2 = sampling_factor(m, n1), sampling_factor(k, n2)
                variance = float(alignment_variance(pool, f1, f2))
                products = drawn[i, j]
                numbers |= {
                    "pool_rate": float(np.mean(products <= 0)),
                    "pool_mean": float(products.mean()),
                    "pool_variance": float(products.var(ddof=1)),
                    "pool_variance_exact": variance,
                    "pool_bound": float(cantelli_bound(pool.signal, variance)),
                }
            for name, number in numbers.items():
                found[name][i, j] = number
    dims = ("train_samples", "test_samples")
    units = {"pool_mean": "gradient^2", "pool_variance": "gradient^4"}
    units["pool_variance_exact"] = units["pool_variance"]
    return xr.Dataset(
        {
            name: (dims, found[name], {"units": units.get(name, "1"), "description": words})
            for name, words in ABOUT.items()
        },
        coords={
            "train_samples": np.asarray(train_samples, dtype=np.int64),
            "test_samples": np.asarray(test_samples, dtype=np.int64),
        },
        attrs={
            "description": "mismatches of training and held-out gradients, μ_M·g_K ≤ 0",
            "train_pool": n1,
            "test_pool": n2,
            "draws": draws,
            "level": level,
            "interval": "Clopper–Pearson over disjoint blocks; draws from pools have none",
        },
    )


def block_products(cross: Array, m: int, k: int) -> Array:
    """Return μ_M·g_K of disjoint blocks, (blocks,): block b has training and test samples b."""
    blocks = min(cross.shape[0] // m, cross.shape[1] // k)
    used = cross[: blocks * m, : blocks * k].reshape(blocks, m, blocks, k)
    return np.asarray(np.einsum("bibj->b", used) / (m * k))


def pool_moments(cross: Array) -> AlignmentMoments:
    """Return the moments of finite pools, exactly, with covariances divided by B − 1."""
    n1, n2 = cross.shape
    return AlignmentMoments(
        cross.mean(),
        cross.mean(axis=1).var(ddof=1),
        cross.mean(axis=0).var(ddof=1),
        np.sum(centred(cross) ** 2) / ((n1 - 1) * (n2 - 1)),
    )


def _drawn(
    cross: Array,
    train_samples: Sequence[int],
    test_samples: Sequence[int],
    draws: int,
    generator: np.random.Generator,
) -> Array:
    """Return μ_M·g_K of draws without replacement, (M, K, draws): prefixes of shuffled pools."""
    n1, n2 = cross.shape
    found = np.full((len(train_samples), len(test_samples), draws), np.nan)
    size = max(1, 2**24 // (8 * (n1 + n2)))
    for start in range(0, draws, size):
        some = slice(start, min(start + size, draws))
        count = some.stop - some.start
        # A sample's rank in a random order: the M first make a draw.
        first, second = (generator.random((count, n)).argsort(axis=1) for n in (n1, n2))
        for i, m in enumerate(train_samples):
            if m > n1:
                continue
            means = np.less(first, m).astype(np.float64) @ cross / m
            for j, k in enumerate(test_samples):
                if k <= n2:
                    found[i, j, some] = np.where(second < k, means, 0.0).sum(axis=1) / k
    return found


def _check(
    cross: Array, train_samples: Sequence[int], test_samples: Sequence[int], draws: int
) -> None:
    if cross.ndim != 2 or min(cross.shape) < 2:
        raise WidthlabError(
            "mismatches need cross products of at least two training and two test samples, but "
            f"their shape is {cross.shape}"
        )
    if not np.isfinite(cross).all():
        raise WidthlabError(
            "the cross products have entries that are not finite; find out which gradients diverge"
        )
    for name, counts in (("train_samples", train_samples), ("test_samples", test_samples)):
        if not len(counts) or min(counts) < 1:
            raise WidthlabError(f"{name} must be whole numbers of at least 1, not {list(counts)}")
    if draws < 2:
        raise WidthlabError(f"draws must be at least 2, not {draws}")
