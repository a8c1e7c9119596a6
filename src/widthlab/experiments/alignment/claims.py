"""What is claimed of alignment: its growth with width, its bounds, and what noise would give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import binom, linregress
from scipy.stats import t as student

from widthlab.claims import Claim, Judgement, judge_below, judge_sign
from widthlab.experiments.shared.networks import by_width, families_of, last_snapshot
from widthlab.experiments.shared.verdicts import SIGNIFICANCE, exponent_claim, sign_claim
from widthlab.scaling import Interval, PowerLaw, fit_estimates, fit_power_law, mean_interval

if TYPE_CHECKING:
    from widthlab.experiments.alignment import Section

Array = NDArray[np.float64]

SOURCE = "effective alignment dimension (project's theory, section 4)"
RATE = 0.025
"""Error rate of one limit of a certificate."""


def claims(section: Section, dataset: xr.Dataset) -> list[Claim]:
    """Judge every family; training and test gradients have laws of their own except in `noise`."""
    made: list[Claim] = []
    for family in families_of(dataset):
        own = dataset.isel(network=dataset["family"].to_numpy() == family)
        apart = own.sel(laws="different")
        end, start = last_snapshot(apart), apart.isel(snapshot=0)
        name = f"alignment.{family}"
        made += [
            _growth(f"{name}.width", f"{family}: at the end of training", family, end),
            _linear(f"{name}.linear", family, end),
        ]
        if section.snapshots == "all":
            made.append(
                _growth(f"{name}.width_start", f"{family}: at initialisation", family, start)
            )
        made += [
            _bounds(f"{name}.bounds", family, apart),
            _less_with_width(f"{name}.mismatch_width", family, own),
            *_less_with_samples(name, family, own),
            _control(f"{name}.control", family, own),
            _noise(f"{name}.noise", family, own),
        ]
    return made


# ── growth with width ───────────────────────────────────────────────────────────────────────


def mean_dimension(dataset: xr.Dataset, name: str = "d_align") -> xr.DataArray:
    """Return the mean over insertion points; a point that estimates do not certify counts as 0.

    A network without a measurement (diverged) stays NaN.
    """
    there = dataset["signal"].notnull()
    return dataset[name].where(dataset[name].notnull() | ~there, 0.0).mean("layer")


def law_of_width(
    family: str, dataset: xr.Dataset, values: xr.DataArray, low_high: bool
) -> PowerLaw:
    """Fit values by network to a power of width, with intervals from seeds.

    Where every width has one network the intervals come from the samples instead (`low_high`): from
    the limits of d_align, as though the points of a network moved together.
    """
    widths, groups = by_width(dataset, family, values.to_numpy())
    if not low_high or any(len(group) > 1 for group in groups):
        return fit_power_law(widths, groups, seed=0)
    generator = np.random.default_rng(0)
    ends = [
        by_width(dataset, family, mean_dimension(dataset, f"d_align_{end}").to_numpy())[1]
        for end in ("low", "high")
    ]
    resampled = []
    for value, low, high in zip(groups, *ends, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = float(np.log(high / low)[0] / (2 * 1.96)) if low[0] > 0 else np.nan
        resampled.append(value[0] * np.exp(spread * generator.standard_normal(1000)))
    law = fit_estimates(widths, np.concatenate(groups), resampled)
    words = "one network at each width: the interval is that of its samples, not of networks"
    return replace(law, reason="; ".join(part for part in (words, law.reason) if part))


def _growth(identifier: str, when: str, family: str, dataset: xr.Dataset) -> Claim:
    law = law_of_width(family, dataset, mean_dimension(dataset), low_high=True)
    return sign_claim(
        identifier,
        f"{when} d_align increases with width",
        f"{SOURCE}; published for LLaMA-style networks: 3.9 at N = 512 to 9.5 at N = 3072",
        law,
        1,
    )


def _linear(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge linear growth, which needs a signal of constant share in directions that grow as N."""
    law = law_of_width(family, dataset, mean_dimension(dataset), low_high=True)
    caveats = []
    for name, exponent, words in (
        ("snr", 0.0, "the signal's share of a gradient is not constant"),
        ("participation", 1.0, "the directions that the noise fills do not grow as N"),
    ):
        found = law_of_width(family, dataset, dataset[name].mean("layer"), low_high=False)
        if not found.low <= exponent <= found.high:
            interval = f"exponent {found.exponent:.2g} [{found.low:.2g}, {found.high:.2g}]"
            caveats.append(f"{words} ({interval})")
    caveat = "its conditions are not met: " + " and ".join(caveats) if caveats else ""
    return exponent_claim(
        identifier,
        f"{family}: where the stronger conditions hold, d_align grows in proportion to N",
        SOURCE,
        law,
        1.0,
        (0.0, 0.5),
        caveat=caveat,
    )


# ── mismatches and bounds ───────────────────────────────────────────────────────────────────


def _bounds(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
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
    order = "B_exact ≤ B_align everywhere" if gap <= 0 else f"B_exact > B_align by {gap:.1g}"
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
        f"{family}: mismatches are no more frequent than B_exact, and B_exact ≤ B_align",
        SOURCE,
        excess,
        Judgement(verdict, reason),
        0.0,
    )


def mismatch_rate(dataset: xr.Dataset) -> xr.DataArray:
    """Return Pr(μ_M·g_K ≤ 0) by network, snapshot and budget: draws from the pools, all points."""
    rate: xr.DataArray = dataset["pool_rate"].mean("layer")
    return rate


def _less_with_width(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge the slope of the rate in log₂ N, over networks, at all budgets and snapshots."""
    rates = mismatch_rate(dataset).mean(["budget", "snapshot"]).to_numpy()
    widths = np.log2(dataset["width"].to_numpy())
    known = np.isfinite(rates)
    slope = Interval(np.nan, np.nan, np.nan, int(known.sum()), len(rates))
    if known.sum() > 2 and len(set(widths[known])) > 1:
        line = linregress(widths[known], rates[known])
        half = student.ppf(0.975, known.sum() - 2) * line.stderr
        ends = line.slope - half, line.slope + half
        slope = Interval(line.slope, *ends, int(known.sum()), len(rates))
    verdict, words = judge_sign(-1, slope.value, slope.low, slope.high)
    return _claim(
        identifier,
        f"{family}: at a fixed budget, mismatches are rarer in wider networks",
        SOURCE,
        slope,
        Judgement(verdict, f"change of the rate for each doubling of N: {words}"),
    )


def _less_with_samples(name: str, family: str, dataset: xr.Dataset) -> list[Claim]:
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


def _control(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    over = ["snapshot", "layer", "control", "laws"]
    found = mean_interval(dataset["control_certified"].mean(over).to_numpy())
    judgement = judge_below(RATE, found.value, found.low, found.high)
    return _claim(
        identifier,
        f"{family}: of the same gradients turned into noise, at most {RATE:.1%} are certified",
        f"{SOURCE}, noise control",
        found,
        judgement,
        RATE,
    )


def _noise(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
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
