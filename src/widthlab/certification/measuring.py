"""`widthlab.certify`: which insertion points of a network help on data that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from widthlab.certification.arguments import Arguments, pooled_points
from widthlab.certification.losses import AnyLoss, BatchLosses
from widthlab.certification.overlap import refuse_shared, same_gradients
from widthlab.certification.result import Certification
from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.budgets import Budgets, Pools, checked_budgets
from widthlab.statistics.alignment.certificates import Certificate
from widthlab.statistics.alignment.estimates import MOST_FLIPS, Laws, certificate
from widthlab.statistics.alignment.gradients import Mask, each_gram
from widthlab.statistics.alignment.grams import Grams
from widthlab.statistics.alignment.mismatch import mismatch as count_mismatches
from widthlab.statistics.alignment.points import insertion_points
from widthlab.statistics.alignment.pooling import How, Pooling

BUDGETS = ((64, 64), (256, 256), (1024, 1024))
FLIPS = 199
"""Random signs of the noise controls, where the error rate does not need more."""


def certify(
    model: nn.Module,
    points: str | Sequence[str] | Mapping[str, How | Pooling],
    loss: AnyLoss,
    train_loader: Iterable[Any],
    test_loader: Iterable[Any],
    *,
    budgets: Iterable[tuple[int, int]] = BUDGETS,
    target: float = 0.05,
    pooling: How | Pooling = "sum",
    laws: Laws = "different",
    pools: Pools = (math.inf, math.inf),
    level: float = 0.95,
    simultaneous: bool = False,
    mismatch: bool = False,
    mask: Mask | None = None,
    seed: int = 0,
) -> Certification:
    """Certify steps along the mean gradient of M training samples, judged on K held-out ones.

    `points` are names or patterns of modules ("layer1", "layers.*"), several in a list, or a
    mapping that says how each is pooled; all are measured in one forward and backward pass for each
    batch. `loss` is "cross_entropy", "mse", a criterion with reduction="none", or a function of the
    model and a batch that returns one number for each sample (`losses.BatchLosses`). Batches are
    pairs (x, y), or mappings of the model's arguments with `labels` (`input_ids`, `attention_mask`,
    …); positions of sequences that do not count are masked, and `mask` replaces what is known of
    them. The model stays on its device and is left as it was found.

    `budgets` are pairs (M, K), `target` is the largest tolerable Pr(μ_M·g_K ≤ 0), and `level` that
    of the intervals of each point, or of all points together with `simultaneous`. The laws of
    training and test samples are taken as `different`, which is what they are once a network has
    been trained; "equal" says more from the same samples where it has not. `pools` and what is
    certified are explained at `statistics.alignment.estimates.certificate`. With `mismatch`, the
    share of harmful steps is also counted at each budget that the samples suffice for.

    Source: the project's theory, section 4; in words: docs/certificate.md. Raises WidthlabError, in
    one sentence that says what to change, for points that do not exist or that the loss does not
    depend on, a loss that is averaged, a loader with a single batch or fewer than four samples,
    gradients that are not finite, samples that affect one another, loaders that share samples, and
    arguments that `Arguments` and `checked_budgets` refuse.
    """
    Arguments(
        model=model,
        train_loader=train_loader,
        test_loader=test_loader,
        target=target,
        laws=laws,
        level=level,
        seed=seed,
    ).check()
    refuse_shared(train_loader, test_loader)
    budgets = checked_budgets(budgets, pools)
    poolings = insertion_points(model, pooled_points(points, pooling))
    each = 1 - (1 - level) / len(poolings) if simultaneous else level
    losses, flips = BatchLosses(loss), _flips(each)
    streams = iter(np.random.SeedSequence(seed).spawn(len(poolings)))
    certificates: dict[str, Certificate] = {}
    mismatches: dict[str, xr.Dataset] = {}
    same: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    mask = losses.mask if mask is None else mask
    for name, gram in each_gram(model, poolings, losses, train_loader, test_loader, mask=mask):
        certificates[name] = certificate(
            gram, budgets, laws=laws, pools=pools, level=each, flips=flips, seed=next(streams)
        )
        if mismatch:
            mismatches[name] = _mismatches(gram, budgets, each, seed)
        # Samples that are the same are so at all points.
        same = same_gradients(gram) if same is None else same & same_gradients(gram)
        del gram  # before the next one is made
    return Certification(
        certificates=certificates,
        poolings=poolings,
        target=target,
        level=level,
        simultaneous=simultaneous,
        mismatches=mismatches,
        repeated=0 if same is None else int(same.any(axis=0).sum()),
    )


def _flips(level: float) -> int:
    """Return how many sign flips tell the error rate of a level."""
    flips = max(FLIPS, math.ceil(2 / (1 - level) - 1e-9) - 1)
    if flips > MOST_FLIPS:
        raise WidthlabError(
            f"the level of each point, {level:.6g}, takes {flips:,} sign flips, more than "
            f"{MOST_FLIPS:,}; take a lower level, or fewer points at a time"
        )
    return flips


def _mismatches(gram: Grams, budgets: Budgets, level: float, seed: int) -> xr.Dataset:
    """Return the counts of `statistics.alignment.mismatch` with one axis, the budgets."""
    found = [
        count_mismatches(gram.cross, [m], [k], level=level, seed=seed).isel(
            train_samples=0, test_samples=0
        )
        for m, k in budgets
    ]
    return xr.concat(found, dim="budget")
