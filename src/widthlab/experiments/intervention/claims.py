"""What is claimed of interventions: small steps do what the gradients say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.stats import binomtest

from widthlab.claims import Claim, Judgement, judge_above, judge_within
from widthlab.experiments.shared.networks import families_of, networks_of
from widthlab.scaling import Interval, mean_interval

PRESERVED = 0.96
"""Lower end of what is published: 96-99 % of the predicted change is preserved at small steps."""
SMALL = 0.01
"""A small step: b of this size over the activation, or the grid's next smaller one."""
SOURCE = "effective alignment dimension (project's theory, section 4): 96-99 % preserved"


def claims(dataset: xr.Dataset) -> list[Claim]:
    """Judge, for every family, the ratio and the sign at a small step."""
    if "ratio" not in dataset:
        return []
    made: list[Claim] = []
    for family in families_of(dataset):
        own = networks_of(dataset, family)
        own = own.where(~own["diverged"])
        at, scale = at_small_step(own)
        ratio = mean_interval(at["ratio"].mean("layer").to_numpy())
        sign = _share(at["sign_agreement"].mean("layer").to_numpy(), _draws(own))
        within = (PRESERVED, 2 - PRESERVED)
        for key, found, predicted, judgement, statement in (
            (
                "ratio",
                ratio,
                1.0,
                judge_within(within, ratio.value, ratio.low, ratio.high),
                f"the change of the held-out loss is the predicted one within {1 - PRESERVED:.0%}",
            ),
            (
                "sign",
                sign,
                PRESERVED,
                judge_above(PRESERVED, sign.value, sign.low, sign.high),
                f"at least {PRESERVED:.0%} of draws change the held-out loss in the predicted "
                "sense",
            ),
        ):
            made.append(_claim(family, key, found, predicted, judgement, statement, scale, own))
    return made


def _claim(
    family: str,
    key: str,
    found: Interval,
    predicted: float,
    judgement: Judgement,
    statement: str,
    scale: float,
    own: xr.Dataset,
) -> Claim:
    lost = float(1 - at_small_step(own)[0]["ratio"].notnull().mean())
    unresolved = f"; {lost:.0%} of the points are not resolved there" if lost > 0 else ""
    size = f"{scale:g} times the activation" if np.isfinite(scale) else "any size in the grid"
    return Claim(
        id=f"intervention.{family}.{key}",
        experiment="intervention",
        statement=f"{family}: at a step of {size}, {statement}",
        source=SOURCE,
        predicted=predicted,
        measured=found.value,
        low=found.low,
        high=found.high,
        verdict=judgement.verdict,
        reason=f"mean over insertion points, interval over {found.finite} of {found.total} "
        f"networks: {judgement.reason}{unresolved}",
    )


def at_small_step(dataset: xr.Dataset) -> tuple[xr.Dataset, float]:
    """Return what was measured at the largest step that is small, where it is resolved, and it.

    The scale is NaN, and so are the numbers, where the grid has no small step.
    """
    scales = dataset["scale"].to_numpy()
    # 0.01 and 0.01 written otherwise are one step.
    small = np.flatnonzero(scales <= SMALL * (1 + 1e-9))
    at = dataset.isel(scale=int(small[-1]) if len(small) else 0)
    known = (at["resolved"] == 1) & bool(len(small))
    return at.where(known), float(scales[small[-1]]) if len(small) else np.nan


def _draws(own: xr.Dataset) -> int:
    """Return the independent draws of all networks; those at the points of one are the same."""
    at = own["predicted"].isel(scale=0, layer=0)
    return int(at.notnull().sum())


def _share(values: np.ndarray, draws: int) -> Interval:
    """Return a share over networks with an interval that knows how few draws there were.

    Student's interval of shares that are all 1 has no width; Clopper and Pearson's of all draws,
    counted as though the points of a network were one, has.
    """
    found = mean_interval(values)
    if not (draws and np.isfinite(found.value)):
        return found
    exact = binomtest(round(found.value * draws), draws).proportion_ci(0.95, method="exact")
    low, high = (
        np.nanmin([found.low, exact.low]),
        min(1.0, float(np.nanmax([found.high, exact.high]))),
    )
    return replace(found, low=float(low), high=high)
