"""What is claimed of alignment, by family: its growth with width, its bounds, and its noise."""

from __future__ import annotations

import xarray as xr

from widthlab.claims import Claim
from widthlab.experiments.alignment.growth_claims import growth, linear
from widthlab.experiments.alignment.mismatch_claims import (
    bounds,
    control,
    less_with_samples,
    less_with_width,
    noise,
)
from widthlab.experiments.shared.networks import (
    families_of,
    first_snapshot,
    last_snapshot,
    networks_of,
)


def claims(dataset: xr.Dataset) -> list[Claim]:
    """Judge every family; training and test gradients have laws of their own except in `noise`.

    A network that diverged has no part in any claim but that of its initialisation.
    """
    made: list[Claim] = []
    for family in families_of(dataset):
        every = networks_of(dataset, family)
        own = every.where(~every["diverged"])
        apart = own.sel(laws="different")
        end, start = last_snapshot(apart), first_snapshot(every.sel(laws="different"))
        name = f"alignment.{family}"
        made += [
            growth(f"{name}.width", f"{family}: at the end of training", family, end),
            linear(f"{name}.linear", family, end),
        ]
        if bool(start["signal"].notnull().any()):
            when = f"{family}: at initialisation"
            made.append(growth(f"{name}.width_start", when, family, start))
        made += [
            bounds(f"{name}.bounds", family, apart),
            less_with_width(f"{name}.mismatch_width", family, own),
            *less_with_samples(name, family, own),
            control(f"{name}.control", family, own),
            noise(f"{name}.noise", family, own),
        ]
    return made
