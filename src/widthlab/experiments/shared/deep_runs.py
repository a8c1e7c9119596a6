"""What training changes in residual networks of the mean ODE: layers, stream, and linearity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.base import Inputs
from widthlab.experiments.shared.deep_networks import DeepCell

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.meanode import Problem

Array = NDArray[np.float64]

CHANGES = {
    "local_update": "rms of κ(u − u_0)·h: what a unit's own weights changed of its pre-activation",
    "preactivation_change": "rms change of pre-activations over their rms at initialisation",
    "distance": "rms of h_L less that of the linearised network, over the rms change of h_L",
    "distance_lazy": "the same with each block linearised, at the stream that results",
    "movement": "rms change of the last embedding h_L",
    "loss_initial": "loss before training",
    "loss_ratio": "loss after training over the loss before",
    "forward_gain": "rms of h_L over that of h_0, before training",
    "backward_gain": "rms of the gradient by h_0 over that by h_L, before training",
}
"""What `changes` returns, by name."""
RATE = "η of the networks: raw rates are η·L·M·D"


def trained(
    cell: DeepCell,
    problem: Problem,
    inputs: Inputs,
    learning_rate: float,
    seeds: Sequence[int] | int,
) -> xr.Dataset:
    """Return networks before and after training, with their layers and their linearisations.

    Weights come from the cell's own seeds.
    """
    from widthlab.meanode import train

    return train(
        cell.network,
        problem,
        eta=learning_rate,
        steps=cell.steps,
        seeds=seeds,
        seed=inputs.seeds,
        record=(0, cell.steps),
        layers=True,
        companions=("tangent", "lazy"),
        device=inputs.device,
    )


def changes(run: xr.Dataset, problem: Problem) -> dict[str, Array]:
    """Return `CHANGES` of the seeds of `trained`, each (seeds,); NaN where a seed diverged."""
    before, after = (run["embedding"].isel(step=at).to_numpy() for at in (0, -1))
    linear, lazy = (
        run[f"embedding_{kind}"].isel(step=-1).to_numpy() for kind in ("tangent", "lazy")
    )
    loss = run["loss"].to_numpy()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        movement = _rms(after - before)
        return {
            "local_update": run["local_update"].isel(step=-1).to_numpy(),
            "preactivation_change": run["preactivation_change"].isel(step=-1).to_numpy(),
            "distance": _rms(after - linear) / movement,
            "distance_lazy": _rms(after - lazy) / movement,
            "movement": movement,
            "loss_initial": loss[:, 0],
            "loss_ratio": loss[:, -1] / loss[:, 0],
            "forward_gain": _rms(before) / _rms(problem.embedding[None].cpu().numpy()),
            "backward_gain": run["backward_gain"].isel(step=0).to_numpy(),
        }


def forward_law(depth: int, activation: str, sigma_u: float, scale: float, q: float = 1.0) -> float:
    """Return the forward gain at infinite width, by the block law of the signal variance.

    `scale` is the factor on a block, with the deviation of the mean of its M units; q is the mean
    square of h_0. Infinite where the signal outgrows double precision.
    """
    from widthlab.theory.block_law import residual_variance

    try:
        with np.errstate(over="ignore", invalid="ignore"):
            law = residual_variance(
                q, depth, activation, 1.0, 0.0, alpha=scale, inner_variance=sigma_u**2
            )
    except ValueError:  # a variance that is not finite
        return np.inf
    return float(np.sqrt(law[-1] / law[0]))


def changes_dataset(
    found: dict[str, Array], dims: Sequence[str], diverged: NDArray[np.int64], **coordinates: object
) -> xr.Dataset:
    """Return `CHANGES` and the step at which a network diverged (−1: never) as one dataset."""
    import xarray as xr

    variables: dict[str, object] = {
        name: (dims, values, {"units": "1", "description": CHANGES[name]})
        for name, values in found.items()
    }
    about = {"units": "steps", "description": "first step that is not finite, −1 for none"}
    variables["diverged"] = (dims, diverged, about)
    return xr.Dataset(variables, coordinates)


def _rms(values: Array) -> Array:
    """Return root mean squares (seeds,) of (seeds, inputs, coordinates)."""
    return np.asarray(np.sqrt(np.mean(np.square(values), axis=(-2, -1))))
