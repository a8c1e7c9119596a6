"""What is claimed of mismatches and their bounds, and of what noise would give."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import binom, linregress
from scipy.stats import t as student

from widthlab.claims import Claim, Judgement, judge_below, judge_sign
from widthlab.experiments.alignment.growth_claims import SOURCE, law_of_width
from widthlab.experiments.shared.verdicts import SIGNIFICANCE, sign_claim
from widthlab.scaling import Interval, mean_interval

Array = NDArray[np.float64]

RATE = 0.025
"""Error rate of one limit of a certificate at its level of 95 %."""


def bounds(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge rate ≤ B_exact at every point, snapshot and budget where an estimate says B < 1."""
    blocks, bad = dataset["blocks"], dataset["block_mismatches"]
    inside = (dataset["b_exact"] < 1) & (blocks > 0)
    worst = {}
    for name in ("b_exact", "b_exact_limit"):
        bound = (dataset[name] * blocks).where(inside).groupby("width").sum("network")
        n = blocks.where(inside).groupby("width").sum("network")
        x = bad.where(inside).groupby("width").sum("network")
        known = n.to_numpy() > 0
        counts, total = x.to_numpy()[known], n.to_numpy()[known]
        share = np.clip(bound.to_numpy()[known] / total, 0.0, 1.0)
        p = binom.sf(counts - 1, total, share)
        worst[name] = float(min(1.0, p.min() * len(p))) if len(p) else np.nan
    rate = bad / blocks.where(blocks > 0)
    over = ["snapshot", "layer", "budget"]
    excess = mean_interval((rate - dataset["b_exact"]).where(inside).mean(over).to_numpy())
    gap = float((dataset["b_exact"] - dataset["b_align"]).where(inside).max())
    tested = int(inside.sum())
    order = f"B_exact > B_align by {gap:.1g}" if gap > 0 else "B_exact ≤ B_align everywhere"
    verdict, words = judge_below(0.0, excess.value, excess.low, excess.high)
    reason = (
        f"rate less bound, mean over {tested} comparisons and interval over networks: {words}; "
        f"{order}"
    )
    if worst["b_exact_limit"] < SIGNIFICANCE or gap > 1e-9:
        verdict = "fails"
        reason += f"; a bound's upper limit is exceeded, p = {worst['b_exact_limit']:.2g}"
    elif worst["b_exact"] < SIGNIFICANCE:
        verdict = "undecided"
        reason += (
            f"; an estimated bound is exceeded (p = {worst['b_exact']:.2g} after correction), but "
            "within its upper limit"
        )
    return _claim(
        identifier,
        f"{family}: mismatches are no more frequent than B_exact (which is ≤ B_align, always)",
        SOURCE,
        excess,
        Judgement(verdict, reason),
        0.0,
    )


def mismatch_rate(dataset: xr.Dataset) -> xr.DataArray:
    """Return Pr(μ_M·g_K ≤ 0) by network, snapshot and budget: draws from the pools, all points."""
    rate: xr.DataArray = dataset["pool_rate"].mean("layer")
    return rate


def less_with_width(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge the slope of the rate in log₂ N, over networks, at all budgets and snapshots."""
    rates = mismatch_rate(dataset).mean(["budget", "snapshot"]).to_numpy()
    widths = np.log2(dataset["width"].to_numpy())
    known = np.isfinite(rates)
    slope = Interval(np.nan, np.nan, np.nan, int(known.sum()), len(rates))
    if len(set(widths[known])) > 1:
        line = linregress(widths[known], rates[known])
        # Two networks have a slope, and no interval.
        freedom = known.sum() - 2
        half = student.ppf(0.975, freedom) * line.stderr if freedom else np.nan
        ends = line.slope - half, line.slope + half
        slope = Interval(line.slope, *ends, int(known.sum()), len(rates))
    verdict, words = judge_sign(-1, slope.value, slope.low, slope.high)
    return _claim(
        identifier,
        f"{family}: with the same M and K, mismatches are rarer in wider networks",
        SOURCE,
        slope,
        Judgement(
            verdict,
            "change of the rate, mean over all M, K, points and snapshots, for each doubling of N: "
            f"{words}",
        ),
    )


def less_with_samples(name: str, family: str, dataset: xr.Dataset) -> list[Claim]:
    """Judge, for each network, the slope of the rate in log₂ M and in log₂ K."""
    rate = mismatch_rate(dataset).mean("snapshot").to_numpy()
    made = []
    for key, letter, words in (
        ("train_samples", "M", "more training samples in the step"),
        ("test_samples", "K", "more unseen samples in the test"),
    ):
        samples = np.log2(dataset[key].to_numpy())
        lever = samples - samples.mean()
        total = np.sum(lever**2)
        slopes = rate @ lever / total if total > 0 else np.full(len(rate), np.nan)
        found = mean_interval(slopes)
        verdict, reason = judge_sign(-1, found.value, found.low, found.high)
        made.append(
            _claim(
                f"{name}.mismatch_{letter.lower()}",
                f"{family}: mismatches are rarer with {words} ({letter})",
                SOURCE,
                found,
                Judgement(
                    verdict,
                    f"change of the rate for each doubling of {letter}, over networks: {reason}",
                ),
            )
        )
    return made


# ── noise ───────────────────────────────────────────────────────────────────────────────────


def control(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge how often gradients that were turned into noise get a bound below 1."""
    over = ["snapshot", "layer", "control", "laws"]
    found = mean_interval(dataset["control_certified"].mean(over).to_numpy())
    judgement = judge_below(RATE, found.value, found.low, found.high)
    return _claim(
        identifier,
        f"{family}: of the same gradients turned into noise, at most {RATE:.1%} get a bound",
        f"{SOURCE}, noise control",
        found,
        judgement,
        RATE,
    )


def noise(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge that the published estimates of one law grow with width where there is no signal."""
    noise = dataset["control_plug_in_d_align"].sel(laws="equal", control="centred")
    law = law_of_width(family, dataset, noise.mean(["layer", "snapshot"]), low_high=False)
    return sign_claim(
        identifier,
        f"{family}: the published (plug-in) d_align increases with width on noise alone",
        f"{SOURCE}: plug-in d_∥ of noise is about N/n",
        law,
        1,
    )


def _claim(
    identifier: str,
    statement: str,
    source: str,
    found: Interval,
    judgement: Judgement,
    predicted: float | None = None,
) -> Claim:
    return Claim(
        id=identifier,
        experiment="alignment",
        statement=statement,
        source=source,
        predicted=predicted,
        measured=found.value,
        low=found.low,
        high=found.high,
        verdict=judgement.verdict,
        reason=judgement.reason,
    )
