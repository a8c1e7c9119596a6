"""What is claimed of d_align's growth with width."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from widthlab.claims import Claim
from widthlab.experiments.shared.networks import by_width
from widthlab.experiments.shared.verdicts import exponent_claim, sign_claim
from widthlab.scaling import PowerLaw, fit_estimates, fit_power_law

SOURCE = "effective alignment dimension (project's theory, section 4)"


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


def growth(identifier: str, when: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge the sign of the exponent; a width without any dimension decides nothing."""
    law = law_of_width(family, dataset, mean_dimension(dataset), low_high=True)
    return sign_claim(
        identifier,
        f"{when} d_align increases with width",
        f"{SOURCE}; published for trained LLaMA-style networks: 3.9 at N = 512 to 9.5 at N = 3072",
        law,
        1,
        caveat=_without_dimension(law),
    )


def _without_dimension(law: PowerLaw) -> str:
    """Say at which widths no power law can be, since no estimate is positive there at all."""
    lost = [f"{x:g}" for x, used in zip(law.x, law.used, strict=True) if not used]
    if not lost:
        return ""
    return f"at N = {', '.join(lost)} d_align is not distinguishable from 0 at any point"


def linear(identifier: str, family: str, dataset: xr.Dataset) -> Claim:
    """Judge linear growth, which needs a signal of constant share in directions that grow as N."""
    law = law_of_width(family, dataset, mean_dimension(dataset), low_high=True)
    caveats = [_without_dimension(law)] if _without_dimension(law) else []
    for name, exponent, words in (
        ("snr", 0.0, "the signal's share of a gradient is not constant"),
        ("participation", 1.0, "the directions that the noise fills do not grow as N"),
    ):
        found = law_of_width(family, dataset, dataset[name].mean("layer"), low_high=False)
        if not np.isfinite([found.low, found.high]).all():
            caveats.append(f"it is not known whether a condition is met: no interval of {name}")
        elif not found.low <= exponent <= found.high:
            interval = f"exponent {found.exponent:.2g} [{found.low:.2g}, {found.high:.2g}]"
            caveats.append(f"a condition is not met: {words} ({interval})")
    return exponent_claim(
        identifier,
        f"{family}: where the stronger conditions hold, d_align grows in proportion to N",
        SOURCE,
        law,
        1.0,
        (0.0, 0.5),
        caveat="; ".join(caveats),
    )
