"""Does the held-out loss move as activation gradients predict, when the activation is stepped?

A parameter b, zero at first, is added to the activation at an insertion point of a trained network
and set to −η μ_M, with μ_M the mean of M training gradients. To first order the loss of K held-out
samples changes by −η μ_M·g_K, of which the alignment certificate speaks. Observed against
predicted changes over step sizes and independent draws say how far that goes. Source: the
project's theory, section 4 (intervention).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from widthlab.experiments.shared.base import Inputs, Measured, Request, ordered
from widthlab.experiments.shared.measured_gradients import (
    GradientsCell,
    GradientsSection,
    batch_mask,
    chosen_samples,
    losses_of,
    measured_gradients,
    requests,
)
from widthlab.specs import Count, Positive, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

TITLE = "Intervention at the activation"
QUESTION = (
    "Does the loss of unseen samples fall by as much as the gradients say, when the activation is "
    "stepped along −μ_M, and up to which step size?"
)
METHOD = (
    "At the end of training a bias of zero is added at each insertion point and set to −η μ_M, the "
    "mean gradient of M training samples; the loss of K unseen samples is measured and compared "
    "with −η μ_M·g_K. Draws are disjoint blocks of M and K samples. The step size is given as the "
    "size of b over that of the activation (rms over samples). The ratio is the slope through the "
    "origin of observed over predicted changes over draws; a step is resolved where the predicted "
    "changes are a hundred rounding errors of the loss. What is said of a network is the mean over "
    "its insertion points; seeds are the repetitions."
)


Scales = Annotated[list[Positive], Field(min_length=1), AfterValidator(ordered)]


class Section(GradientsSection):
    """Grid of the intervention experiment."""

    scales: Annotated[Scales, Unit("1")] = Field(default=[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
    """Sizes of the step: of b over the activation."""
    step_samples: Annotated[Count, Unit("samples")] = 16
    """M: training samples of a step."""
    held_out_samples: Annotated[Count, Unit("samples")] = 16
    """K: unseen samples on which it is tested."""

    @model_validator(mode="after")
    def _blocks(self) -> Self:
        for name, part in (("step_samples", "train"), ("held_out_samples", "test")):
            asked, pool = getattr(self, name), getattr(self, f"{part}_samples")
            if 2 * asked > pool:
                raise ValueError(
                    f"{name}: {asked} is too many, two draws of them need {2 * asked} "
                    f"{part}_samples, which is {pool}"
                )
        return self


class Cell(GradientsCell):
    """The interventions in one trained network."""

    scales: list[Positive]
    step_samples: Count
    held_out_samples: Count


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every family, width and seed."""

    def make(**fields: object) -> Cell:
        own = ("scales", "step_samples", "held_out_samples")
        return Cell.model_validate({**fields, **{name: getattr(section, name) for name in own}})

    return requests(section, seed, make, tests=1 + len(section.scales))


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return observed and predicted changes at every insertion point and step size."""
    import xarray as xr

    from widthlab.checkpoints.files import load_history
    from widthlab.experiments.shared.families import measurable
    from widthlab.statistics.alignment.intervention import intervention
    from widthlab.statistics.alignment.scales import matching_norms

    (trained,) = inputs.checkpoints
    steps = load_history(trained.folder)["step"]
    attrs = {"status": trained.status, "pooling": cell.pooling, "loss": cell.loss}
    if not steps:  # a run that diverged before its first step
        return xr.Dataset(attrs=attrs)
    samples = chosen_samples(cell, inputs)
    model = measurable(trained, int(steps[-1]), inputs)
    mask = batch_mask(samples.test)
    found = []
    with measured_gradients(cell, model, samples) as (train, test):
        norms = matching_norms(model, train.points, samples.test, mask=mask)
        for point, rows in train.rows.items():
            eta = norms[point] / _mean_norm(rows, cell.step_samples)
            one = intervention(
                model,
                point,
                losses_of(cell.loss),
                train,
                test,
                samples.test,
                [scale * eta for scale in cell.scales],
                train_samples=cell.step_samples,
                test_samples=cell.held_out_samples,
                mask=mask,
                seed=inputs.seeds.spawn(1)[0],
            )
            about = {"units": "activation^2/loss", "description": "η of a step as large as z"}
            one["unit_step"] = ((), eta, about)
            found.append(one.rename(step="scale").assign_coords(scale=cell.scales))
        dataset = xr.concat(found, dim="point", combine_attrs="drop_conflicts")
        dataset["first_order_end"] = dataset["first_order_end"] / dataset["unit_step"]
        dataset["first_order_end"].attrs = {"units": "1", "description": END}
        return dataset.assign_coords(point=list(train.rows)).assign_attrs(attrs)


END = "largest size of b over z up to which resolved steps have a ratio within 10 % of 1"


def _mean_norm(rows: np.ndarray, samples: int) -> float:
    """Return the expected norm of the mean of so many of the rows (n, F)."""
    mean = np.asarray(rows.mean(axis=0, dtype=np.float64))
    square = float(mean @ mean)
    each = float(np.mean(np.einsum("nf,nf->n", rows, rows, dtype=np.float64)))
    return max(float(np.sqrt(square + max(each - square, 0.0) / samples)), 1e-300)


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return all networks in one dataset, with claims."""
    from widthlab.claims import to_json
    from widthlab.experiments.intervention.claims import claims
    from widthlab.experiments.shared.networks import side_by_side

    dataset = side_by_side(measured)
    dataset.attrs |= {
        "experiment": "intervention",
        "pooling": section.pooling,
        "step_samples": section.step_samples,
        "held_out_samples": section.held_out_samples,
    }
    dataset.attrs["claims"] = to_json(claims(dataset))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return ratio and sign agreement by step size, and observed against predicted changes."""
    from widthlab.experiments.intervention import drawings

    return drawings.figures(dataset)
