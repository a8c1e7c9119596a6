"""Families of networks for tests, and activation gradients of laws whose alignment is known."""

import numpy as np
import xarray as xr

from widthlab.experiments import alignment
from widthlab.experiments.alignment.measuring import at_point
from widthlab.experiments.shared.base import Measured

DATA = {"name": "gaussian", "dimension": 5, "train_samples": 64, "test_samples": 64}
FAMILY = {
    "model": {"name": "mlp"},
    "width": [8, 16, 32],
    "depth": 2,
    "seeds": 4,
    "data": DATA,
    "training": {"steps": 3, "snapshots": 2, "batch_size": 8},
}


def section_of(module, **changes):
    """A section of an experiment with one family, `mlp`; changes to the family by `family`."""
    family = {**FAMILY, **changes.pop("family", {})}
    options = {"families": {"mlp": family}, "train_samples": 64, "test_samples": 64}
    return module.Section(**{**options, **changes})


def measured_of(section, law, lost=()):
    """Cells of the alignment experiment whose gradients are drawn from `law(width)` → (μ, σ).

    Gradients are normal with mean μ (width,) and independent entries of standard deviation σ, at
    two insertion points and two snapshots. A network in `lost` diverged after the first one.
    """
    cells = []
    for request in alignment.cells(section, 0):
        cell = request.cell
        generator = np.random.default_rng([cell.network.width, cell.seed])
        mu, sigma = law(cell.network.width)
        diverged = (cell.network.width, cell.seed) in lost
        snapshots = []
        for step in (0, 3)[: 1 if diverged else 2]:
            points = []
            for _ in ("h0", "h1"):
                rows = [mu + sigma * generator.standard_normal((64, len(mu))) for _ in range(2)]
                points.append(at_point(cell, *rows, np.random.SeedSequence(cell.seed)))
            one = xr.concat(points, dim="point", combine_attrs="override")
            one["train_loss"] = one["test_loss"] = 1.0
            snapshots.append(one.assign_coords(step=step))
        dataset = xr.concat(snapshots, dim="snapshot", combine_attrs="override")
        dataset = dataset.assign_coords(point=["h0", "h1"])
        dataset.attrs["status"] = "diverged" if diverged else "finished"
        cells.append(Measured(request.label, cell, dataset))
    return cells
