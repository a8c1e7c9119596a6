"""Does a direction found on training samples help on unseen ones, and how does width change that?

At insertion points of trained networks the effective alignment dimension d_align is estimated from
activation gradients of training and test samples, without bias; it bounds the probability that a
step along the mean of M training gradients harms K unseen samples. The bounds stand beside the
mismatches that are counted, beside the published (biased) estimates, and beside the same
pipeline on noise. Source: the project's theory, section 4 (effective alignment dimension).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from widthlab.experiments.shared.base import Grid, Inputs, Measured, Request
from widthlab.experiments.shared.measured_gradients import (
    GradientsCell,
    GradientsSection,
    chosen_samples,
    measured_gradients,
    requests,
)
from widthlab.specs import WHOLE, Count, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

TITLE = "Effective alignment dimension"
QUESTION = (
    "Does a step along the mean gradient of M training samples help on K unseen ones, and is that "
    "more certain in wider networks?"
)
METHOD = (
    "Networks are trained at every width and seed. At each insertion point the gradient of every "
    "sample's loss by the activation is taken, for training and for test samples drawn at random, "
    "pooled over positions as the section says (batch normalisation in evaluation mode, with "
    "statistics of training samples at that snapshot). From their inner products come "
    "unbiased estimates of the moments of μ_M·g_K with limits by the jackknife over samples, the "
    "bounds B_exact and B_align of Pr(μ_M·g_K ≤ 0), and that rate itself, counted over disjoint "
    "blocks of M and K samples. The same pipeline runs on gradients whose signs are flipped at "
    "random, as they are (flipped) and with their mean taken off (centred). All is done twice: "
    "with laws of their own for training and test gradients, of which claims are made, since after "
    "training they differ; and with one law for both, as it is published. What is said of a "
    "network is the mean over its insertion points, where a point whose estimates are not all "
    "positive counts as d_align = 0. Seeds are the repetitions; they share the data set, so all is "
    "said given that. A network that diverged enters no claim but that of its initialisation."
)


class Section(GradientsSection):
    """Grid of the alignment experiment."""

    step_samples: Annotated[Grid, Unit("samples")] = Field(default=[2, 8, 32])
    """M: training samples of a step."""
    held_out_samples: Annotated[Grid, Unit("samples")] = Field(default=[2, 8, 32])
    """K: unseen samples on which it is tested."""
    snapshots: Literal["all", "last"] = "all"
    """Snapshots of the training that are measured."""
    draws: Annotated[int, Field(ge=2), WHOLE, Unit("draws")] = 400
    """Draws of M and K samples from those measured, beside the disjoint blocks."""

    @model_validator(mode="after")
    def _blocks(self) -> Self:
        for name, samples in (("step_samples", "train"), ("held_out_samples", "test")):
            most, pool = max(getattr(self, name)), getattr(self, f"{samples}_samples")
            if 2 * most > pool:
                raise ValueError(
                    f"{name}: {most} is too many, two blocks of them need {2 * most} "
                    f"{samples}_samples, which is {pool}"
                )
        return self


class Cell(GradientsCell):
    """The alignment of one trained network."""

    step_samples: list[Count]
    held_out_samples: list[Count]
    snapshots: Literal["all", "last"]
    draws: Count


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every family, width and seed."""

    def make(**fields: object) -> Cell:
        own = ("step_samples", "held_out_samples", "snapshots", "draws")
        return Cell.model_validate({**fields, **{name: getattr(section, name) for name in own}})

    return requests(section, seed, make, passes=4 if section.snapshots == "all" else 1)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the certificates, controls and mismatches at every snapshot and insertion point."""
    import numpy as np
    import xarray as xr

    from widthlab.checkpoints.files import load_history
    from widthlab.experiments.alignment.measuring import at_point
    from widthlab.experiments.shared.families import measurable

    (trained,) = inputs.checkpoints
    history = load_history(trained.folder)
    steps = [int(step) for step in history["step"]]
    samples = chosen_samples(cell, inputs)
    found, names = [], []
    steps = steps if cell.snapshots == "all" else steps[-1:]
    for step in steps:
        model = measurable(trained, step, inputs)
        seeds = np.random.SeedSequence([step, *inputs.seeds.generate_state(4).tolist()])
        with measured_gradients(cell, model, samples) as (train, test):
            names = list(train.rows)
            points = [at_point(cell, train.rows[p], test.rows[p], seeds) for p in names]
            one = xr.concat(points, dim="point", combine_attrs="override")
            losses = {"train": train.losses.mean(), "test": test.losses.mean()}
        for part, value in losses.items():
            about = {"units": "1", "description": f"mean loss of the measured {part} samples"}
            one[f"{part}_loss"] = ((), float(value), about)
        found.append(one)
    attrs = {"status": trained.status, "pooling": cell.pooling, "loss": cell.loss}
    if not found:  # a run that diverged before its first step
        return xr.Dataset(attrs=attrs)
    dataset = xr.concat(found, dim="snapshot", combine_attrs="override")
    dataset = dataset.assign_coords(point=names, step=("snapshot", steps))
    return dataset.assign_attrs(attrs)


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return all networks in one dataset, with claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.alignment.claims import claims
    from widthlab.experiments.shared.networks import side_by_side

    dataset = side_by_side(measured)
    dataset.attrs |= {"experiment": "alignment", "pooling": section.pooling}
    dataset.attrs["claims"] = to_json(claims(dataset))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return d_align by width, layer and training step, mismatches and bounds, and the noise."""
    from widthlab.experiments.alignment import drawings

    return drawings.figures(dataset)
