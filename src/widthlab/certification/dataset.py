"""A certification as one xarray dataset: insertion points × budgets, with units and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from widthlab.statistics.alignment.tables import certificate_dataset

if TYPE_CHECKING:
    from widthlab.certification.result import Certification


def dataset_of(found: Certification) -> xr.Dataset:
    """Return the numbers of all points, with dimensions point, budget and control.

    The variables are those of `statistics.alignment.tables.certificate_dataset`, with `needed` and
    `meets_target`, and those of `statistics.alignment.mismatch` where mismatches were counted.
    Gradients have the unit of the loss over that of the activation.
    """
    parts = [certificate_dataset(certificate) for certificate in found.certificates.values()]
    if found.mismatches:
        parts = [
            part.merge(counted.drop_vars(["train_samples", "test_samples"]))
            for part, counted in zip(parts, found.mismatches.values(), strict=True)
        ]
    dataset = xr.concat(
        parts, "point", data_vars="all", coords="minimal", compat="equals", join="exact"
    ).assign_coords(
        # Text of any length from the start: zarr 3 has no specification of other text.
        point=(
            "point",
            np.array(list(found), dtype=object),
            _about("1", "insertion point, a module's name"),
        ),
        pooling=(
            "point",
            [pooling.how for pooling in found.poolings.values()],
            _about("1", "how gradients are pooled over positions"),
        ),
    )
    needed = [np.nan if value is None else value for value in found.needed().values()]
    met = [certificate.meets(found.target) for certificate in found.certificates.values()]
    words = "smallest M = K with b_exact_limit ≤ target; NaN where there is no bound"
    dataset = dataset.assign(
        needed=("point", np.array(needed, dtype=np.float64), _about("samples", words)),
        meets_target=(("point", "budget"), np.stack(met), _about("1", "b_exact_limit ≤ target")),
    )
    return dataset.assign_attrs(
        description="alignment certificates of insertion points",
        decision=found.decision,
        target=found.target,
        level=found.level,
        simultaneous=int(found.simultaneous),
        error_rate=found.error_rate,
        repeated_samples=found.repeated,
        interval="two limits of error rate error_rate each, by the jackknife over samples",
    )


def _about(units: str, description: str) -> dict[str, Any]:
    return {"units": units, "description": description}
