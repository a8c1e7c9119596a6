"""What is measured at one insertion point: certificate, controls, and mismatches."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from widthlab.statistics.alignment.certificates import Certificate
from widthlab.statistics.alignment.estimates import Laws, certificate
from widthlab.statistics.alignment.grams import gram_matrices
from widthlab.statistics.alignment.mismatch import mismatch
from widthlab.statistics.alignment.tables import certificate_dataset

if TYPE_CHECKING:
    from widthlab.experiments.alignment import Cell

LAWS: tuple[Laws, ...] = ("different", "equal")
"""What is taken of the laws of training and test gradients; all is measured under each."""


def at_point(
    cell: Cell,
    train: NDArray[np.floating],
    test: NDArray[np.floating],
    seeds: np.random.SeedSequence,
) -> xr.Dataset:
    """Return the certificate and the mismatches of gradients (n₁, F) and (n₂, F) of one point.

    Budgets are all pairs of M and K. `seeds` are the same for every point of a network, so that
    points are compared on the same blocks and the same noise.
    """
    grams = gram_matrices(train, test)
    budgets = list(product(cell.step_samples, cell.held_out_samples))
    by_law = [_with_shares(certificate(grams, budgets, laws=laws, seed=seeds)) for laws in LAWS]
    table = xr.concat(by_law, dim="laws", combine_attrs="drop_conflicts")
    table = table.assign_coords(laws=list(LAWS))
    counted = mismatch(
        grams.cross, cell.step_samples, cell.held_out_samples, draws=cell.draws, seed=seeds
    )
    # (M, K) in row-major order are the budgets.
    return table.assign(
        {
            name: ("budget", values.to_numpy().reshape(-1), values.attrs)
            for name, values in counted.data_vars.items()
        }
    )


def _with_shares(found: Certificate) -> xr.Dataset:
    """Return a certificate with the factors of d₂ = snr²·r, of which the linear law speaks."""
    table = certificate_dataset(found)
    traces = table["train_trace"] * table["test_trace"]
    positive = traces > 0 and table["noise"] > 0
    snr = table["signal"] / np.sqrt(traces) if positive else np.nan
    participation = traces / table["noise"] if positive else np.nan
    texts = {
        "snr": (snr, "m₁·m₂/√(tr Σ₁ tr Σ₂), the signal's share of a gradient"),
        "participation": (participation, "tr Σ₁ tr Σ₂/tr Σ₁Σ₂, directions that the noise fills"),
    }
    return table.assign(
        {
            name: ((), float(value), {"units": "1", "description": words})
            for name, (value, words) in texts.items()
        }
    )
