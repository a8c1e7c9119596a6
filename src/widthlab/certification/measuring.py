"""`widthlab.certify`: which insertion points of a network help on data that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import numpy as np
import xarray as xr
from torch import nn

from widthlab.certification.losses import AnyLoss, losses_of, padding
from widthlab.certification.result import Certification
from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.certificates import Certificate
from widthlab.statistics.alignment.estimates import Budgets, Laws, certificate
from widthlab.statistics.alignment.gradients import Mask, each_gram
from widthlab.statistics.alignment.grams import Grams
from widthlab.statistics.alignment.mismatch import mismatch as count_mismatches
from widthlab.statistics.alignment.points import Points, insertion_points
from widthlab.statistics.alignment.pooling import How, Pooling

BUDGETS = ((64, 64), (256, 256), (1024, 1024))
FLIPS = 199
"""Random signs of the noise controls, where the error rate does not need more."""


def certify(
    model: nn.Module,
    points: Points,
    loss: AnyLoss,
    train_loader: Iterable[Any],
    test_loader: Iterable[Any],
    *,
    budgets: Budgets = BUDGETS,
    target: float = 0.05,
    pooling: How | Pooling = "sum",
    laws: Laws = "different",
    pools: tuple[float, float] = (math.inf, math.inf),
    level: float = 0.95,
    simultaneous: bool = False,
    mismatch: bool = False,
    mask: Mask | None = None,
    seed: int = 0,
) -> Certification:
    """Certify steps along the mean gradient of M training samples, judged on K held-out ones.

    `points` are names or patterns of modules ("layer1", "layers.*"), several in a list, or a
    mapping that says how each is pooled; all are measured in one forward and backward pass for each
    batch. `loss` is "cross_entropy", a criterion with reduction="none", or a function of the model
    and a batch that returns one number for each sample. Batches are pairs (x, y), or mappings
    of the model's arguments with `labels` (`input_ids`, `attention_mask`, …), of which padding is
    masked; `mask` replaces what is known of padding. The model stays on its device and is left as
    it was found.

    `budgets` are pairs (M, K), `target` is the largest tolerable Pr(μ_M·g_K ≤ 0), and `level` that
    of the intervals of each point, or of all points together with `simultaneous`. The laws of
    training and test samples are taken as `different`, which is what they are once a network has
    been trained; "equal" says more from the same samples where it has not. `pools` and what is
    certified are explained at `statistics.alignment.estimates.certificate`. With `mismatch`, the
    share of harmful steps is also counted at each budget that the samples suffice for.

    Source: the project's theory, section 4; in words: docs/certificate.md. Raises WidthlabError, in
    one sentence that says what to change, for points that do not exist or that the loss does not
    depend on, a loss that is averaged, a loader with a single batch or fewer than four samples,
    gradients that are not finite, and samples that affect one another.
    """
    if train_loader is test_loader:
        raise WidthlabError(
            "the training and the test loader are the same; give held-out samples as test_loader"
        )
    if not 0 < target < 1:
        raise WidthlabError(f"the target of a bound must lie between 0 and 1, not {target:g}")
    if isinstance(pooling, str):
        pooling = Pooling(pooling)
    if laws not in get_args(Laws):
        raise WidthlabError(f"laws must be equal or different, not {laws!r}")
    if not isinstance(points, Mapping):
        points = dict.fromkeys([points] if isinstance(points, str) else points, pooling)
    poolings = insertion_points(model, points)
    each = 1 - (1 - level) / len(poolings) if simultaneous else level
    losses, flips = losses_of(loss), _flips(each)
    _check(budgets, pools)
    streams = iter(np.random.SeedSequence(seed).spawn(len(poolings)))
    certificates: dict[str, Certificate] = {}
    mismatches: dict[str, xr.Dataset] = {}
    mask = padding if mask is None else mask
    for name, gram in each_gram(model, points, losses, train_loader, test_loader, mask=mask):
        certificates[name] = certificate(
            gram, budgets, laws=laws, pools=pools, level=each, flips=flips, seed=next(streams)
        )
        if mismatch:
            mismatches[name] = _mismatches(gram, budgets, level, seed)
        del gram  # before the next one is made
    return Certification(
        certificates=certificates,
        poolings=poolings,
        target=target,
        level=level,
        simultaneous=simultaneous,
        mismatches=mismatches,
    )


def _check(budgets: Budgets, pools: tuple[float, float]) -> None:
    """Refuse budgets that are no pairs of whole numbers, or beyond the pools."""
    for budget in budgets:
        pair = tuple(budget) if isinstance(budget, Iterable) else ()
        if len(pair) != 2 or any(not float(n).is_integer() or n < 1 for n in pair):
            raise WidthlabError(
                f"a budget must be a pair (M, K) of whole numbers of at least 1, not {budget!r}"
            )
        if pair[0] > pools[0] or pair[1] > pools[1]:
            raise WidthlabError(
                f"the budget {budget!r} is beyond the pools of {pools[0]:g} training and "
                f"{pools[1]:g} test samples; take fewer samples"
            )
    if not len(budgets):
        raise WidthlabError("give at least one budget (M, K), for instance (64, 64)")


def _flips(level: float) -> int:
    """Return how many sign flips tell the error rate of a level."""
    if not 0 < level < 1:
        raise WidthlabError(f"the level must lie between 0 and 1, not {level:g}")
    return max(FLIPS, math.ceil(2 / (1 - level) - 1e-9) - 1)


def _mismatches(gram: Grams, budgets: Budgets, level: float, seed: int) -> xr.Dataset:
    """Return the counts of `statistics.alignment.mismatch` with one axis, the budgets."""
    found = [
        count_mismatches(gram.cross, [m], [k], level=level, seed=seed).isel(
            train_samples=0, test_samples=0
        )
        for m, k in budgets
    ]
    return xr.concat(found, dim="budget")
