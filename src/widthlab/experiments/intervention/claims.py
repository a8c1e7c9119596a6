"""What is claimed of interventions: small steps do what the gradients say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from widthlab.claims import Claim, judge_above
from widthlab.experiments.shared.networks import families_of
from widthlab.scaling import mean_interval

if TYPE_CHECKING:
    from widthlab.experiments.intervention import Section

PRESERVED = 0.96
"""Lower end of what is published: 96-99 % of the predicted change is preserved at small steps."""
SOURCE = "effective alignment dimension (project's theory, section 4): 96-99 % preserved"


def claims(section: Section, dataset: xr.Dataset) -> list[Claim]:
    """Judge, for every family, the ratio and the sign at its smallest resolved step."""
    made: list[Claim] = []
    for family in families_of(dataset):
        if "ratio" not in dataset:
            continue
        own = dataset.isel(network=dataset["family"].to_numpy() == family)
        own = own.where(~own["diverged"])
        for key, name, statement in (
            ("ratio", "ratio", "of the predicted change of the held-out loss is observed"),
            ("sign", "sign_agreement", "of draws change the held-out loss in the predicted sense"),
        ):
            values, scales = at_smallest(own, name)
            found = mean_interval(values.to_numpy())
            verdict, reason = judge_above(PRESERVED, found.value, found.low, found.high)
            made.append(
                Claim(
                    id=f"intervention.{family}.{key}",
                    experiment="intervention",
                    statement=f"{family}: at small steps at least {PRESERVED:.0%} {statement}",
                    source=SOURCE,
                    predicted=PRESERVED,
                    measured=found.value,
                    low=found.low,
                    high=found.high,
                    verdict=verdict,
                    reason=f"at b/z of {scales}, mean over insertion points, interval over "
                    f"{found.finite} of {found.total} networks: {reason}",
                )
            )
    return made


def at_smallest(dataset: xr.Dataset, name: str) -> tuple[xr.DataArray, str]:
    """Return the mean over points (network,) at each point's smallest resolved step, and those."""
    resolved = dataset["resolved"] == 1
    first = resolved.argmax("scale")
    values = dataset[name].isel(scale=first).where(resolved.any("scale"))
    taken = dataset["scale"].isel(scale=first).where(resolved.any("scale")).to_numpy()
    taken = taken[np.isfinite(taken)]
    words = f"{taken.min():g} to {taken.max():g}" if len(taken) else "none, no step is resolved"
    return values.mean("layer"), words
