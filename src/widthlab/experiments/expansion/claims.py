"""What expansions say of the second theorem, and of growing a network in practice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.claims import Claim, Judgement, judge_above
from widthlab.experiments.expansion.measuring import LEVEL
from widthlab.experiments.shared.networks import by_width, families_of, networks_of
from widthlab.statistics.alignment.expansion_bounds import VERDICTS
from widthlab.theory.generalisation import hoeffding

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

SOURCE = "direct train–test expansion, the project's theory, section 4 (second theorem)"
CERTIFICATE = "effective alignment dimension, the project's theory, section 4 (first theorem)"
VACUOUS = VERDICTS.index("vacuous bound")


def claims(dataset: xr.Dataset) -> list[Claim]:
    """Judge the inequality, its bound, what expansion does, and signs, by family and block."""
    made: list[Claim] = []
    if "change" not in dataset:
        return made
    for label in families_of(dataset):
        family = networks_of(dataset, label)
        if not bool(family["change"].notnull().any()):
            continue
        for block in dataset["block"].to_numpy():
            own = family.sel(block=block)
            name = f"expansion.{label}.{block}"
            made += [inequality(name, own), vacuous(name, own), improves(name, own)]
        # f_η does not depend on the block: its bias is all that has moved.
        made.append(aligned(f"expansion.{label}", family.isel(block=0, drop=True)))
    return made


def inequality(name: str, own: xr.Dataset) -> Claim:
    """Judge whether the left side is at most the right, by the paired bound where it says anything.

    The share of a network's expansions in which it holds is one number; a bound that is vacuous
    holds of itself and decides nothing.
    """
    from widthlab.scaling import mean_interval

    there = own["change"].notnull()
    holds = own["holds"].where(there)
    tested = there & (own["verdict"].sel(bound="paired") != VACUOUS)
    paired = holds.sel(bound="paired")
    judged = paired.where(tested) if bool(tested.any()) else paired
    interval = mean_interval(_networks(judged.mean(("layer", "draw"))), level=LEVEL)
    every, count = int(there.sum()), int(tested.sum())
    slack = 2 * (own["epsilon_train"] + own["epsilon_test"]).sel(bound="paired")
    words = (
        f"of {every} expansions it holds in {int(holds.sel(bound='generic').sum())} with the "
        f"generic bound, in {int(paired.sum())} with the paired one, and in "
        f"{int((own['needed'].where(there) <= 0).sum())} it would without ε_M and ε_K; at most "
        f"{float((own['needed'] / slack).max()):.2g} of the paired 2(ε_M + ε_K) was needed"
    )
    if not count:
        verdict = Judgement(
            "undecided", f"the bound is vacuous in all {every} expansions, so nothing was tested"
        )
    elif interval.high < LEVEL:
        verdict = Judgement("fails", f"less often than in the {LEVEL:.0%} that are promised")
    else:
        verdict = Judgement(
            "holds" if interval.low >= LEVEL else "undecided",
            f"in {float(judged.mean()):.3g} of the {count} expansions whose bound is not vacuous",
        )
    return Claim(
        id=f"{name}.inequality",
        experiment="expansion",
        statement=(
            f"{_title(name)}: the expanded network's loss on test samples is at most "
            "L(f_old) − Δ_R − Δ_ERM + 2(ε_M + ε_K)"
        ),
        source=SOURCE,
        predicted=LEVEL,
        measured=interval.value,
        low=interval.low,
        high=interval.high,
        verdict=verdict.verdict,
        reason=f"{verdict.reason}; {words}",
    )


def vacuous(name: str, own: xr.Dataset) -> Claim:
    """Judge whether the generic bound is vacuous for every expansion of the grid."""
    there = own["change"].notnull()
    generic, paired = (own["verdict"].sel(bound=b).where(there) == VACUOUS for b in _bounds(own))
    every, count = int(there.sum()), int(generic.sum())
    needed = own["samples_needed"].where(there)
    finite = needed.where(np.isfinite(needed))
    least = [float(finite.sel(bound=b).min()) for b in _bounds(own)]
    words = (
        f"2(ε_M + ε_K) leaves nothing to say in {count} of {every} expansions, and in "
        f"{int(paired.sum())} by the paired bound; to certify what was gained, either would need "
        f"M = K of at least {_number(least[0])} and {_number(least[1])}{_counts(own)}"
    )
    return Claim(
        id=f"{name}.vacuous",
        experiment="expansion",
        statement=(
            f"{_title(name)}: the generic norm-based bound on ε_M and ε_K is vacuous at every "
            "point, width and seed"
        ),
        source=SOURCE,
        predicted=1.0,
        measured=count / every,
        low=None,
        high=None,
        verdict="holds" if count == every else "fails",
        reason=words,
    )


def improves(name: str, own: xr.Dataset) -> Claim:
    """Judge whether networks get better on fresh samples, on average over points and draws."""
    mean = own["change"].mean(("layer", "draw"))
    better = _networks((mean < 0).where(mean.notnull()))
    share = float(better.mean())
    low, high = _share(int(better.sum()), len(better))
    verdict = judge_above(0.5, share, low, high)
    groups = zip(*by_width(own, str(own["family"][0].item()), mean.to_numpy()), strict=True)
    counts = ", ".join(
        f"{np.sum(group < 0)} of {np.isfinite(group).sum()} at width {width}"
        for width, group in groups
    )
    there = own["change"].notnull()
    every = int(there.sum())
    # The intervals' upper ends: for any law of the losses, and for large samples.
    sure = [
        int((own["change_high"].sel(interval=method).where(there) < 0).sum())
        for method in ("bernstein", "student")
    ]
    fresh = own["loss"].sel(part="fresh")
    alone = (fresh.sel(state="stepped") - fresh.sel(state="old")).mean(("layer", "draw"))
    words = (
        f"better networks: {counts}; by the step alone {int((alone < 0).sum())} of {len(better)}; "
        f"single expansions whose interval lies below 0: {sure[0]} of {every} by empirical "
        f"Bernstein, {sure[1]} by Student's t"
    )
    return Claim(
        id=f"{name}.improves",
        experiment="expansion",
        statement=(
            f"{_title(name)}: expansion lowers the loss of fresh samples, averaged over "
            "points and draws, in most networks"
        ),
        source=SOURCE,
        predicted=0.5,
        measured=share,
        low=low,
        high=high,
        verdict=verdict.verdict,
        reason=f"share of networks {verdict.reason}; {words}",
    )


def aligned(name: str, own: xr.Dataset) -> Claim:
    """Judge whether Δ_R > 0 at least as often as certified: share − (1 − B_align), by network."""
    from widthlab.scaling import mean_interval

    certified = own["b_align_limit"] < 1
    there = own["delta_r"].notnull() & certified
    positive = (own["delta_r"] > 0).where(there)
    excess = (positive - (1 - own["b_align_limit"])).where(there)
    by_network = _networks(excess.mean(("layer", "draw")))
    interval = mean_interval(by_network, level=LEVEL)
    verdict = judge_above(0.0, interval.value, interval.low, interval.high)
    points = int((certified & own["delta_r"].notnull().any("draw")).sum())
    every = int(own["delta_r"].notnull().any("draw").sum())
    if not len(by_network):
        verdict = Judgement("undecided", "nothing is certified")
    words = f"{points} of {every} points are certified for these M and K"
    if len(by_network):
        bound = float((1 - own["b_align_limit"]).where(there).mean())
        words += f"; Δ_R > 0 in {float(positive.mean()):.3g} of draws there, against {bound:.3g}"
    return Claim(
        id=f"{name}.aligned",
        experiment="expansion",
        statement=(
            f"{_title(name)}: where it is certified, a step lowers the test loss (Δ_R > 0) with a "
            "probability of at least 1 − B_align"
        ),
        source=CERTIFICATE,
        predicted=0.0,
        measured=interval.value,
        low=interval.low,
        high=interval.high,
        verdict=verdict.verdict,
        reason=f"share − (1 − B_align), mean over networks: {verdict.reason}; {words}",
    )


def _counts(own: xr.Dataset) -> str:
    """Say what of the generic bound is due to the numbers of samples alone, whatever the block."""
    if "step_samples" not in own.attrs:
        return ""
    counts = (own.attrs["step_samples"], own.attrs["held_out_samples"])
    share = 2 * sum(hoeffding(n, 1.0, (1 - LEVEL) / 2) for n in counts)
    return f"; Hoeffding's term alone, of a block without size, is {share:.2g} of the cap"


def _bounds(own: xr.Dataset) -> list[str]:
    return [str(bound) for bound in own["bound"].to_numpy()]


def _networks(values: xr.DataArray) -> Array:
    """Return one number for every network that has one."""
    each = values.to_numpy().ravel().astype(np.float64)
    return np.asarray(each[np.isfinite(each)])


def _share(count: int, total: int) -> tuple[float, float]:
    """Return Clopper and Pearson's interval."""
    from scipy.stats import binomtest

    if not total:
        return np.nan, np.nan
    interval = binomtest(count, total).proportion_ci(LEVEL, method="exact")
    return float(interval.low), float(interval.high)


def _number(value: float) -> str:
    return f"{value:.2g}" if np.isfinite(value) else "infinitely many"


def _title(name: str) -> str:
    return ", ".join(name.split(".")[1:])
