"""What experiments on residual networks of the mean ODE share: problem, measurements, cost.

The task is a scalar regression with an error in the output: y is +1 for the first half of the
classes and −1 for the others, so that it is the same task at every embedding width D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from widthlab.costs import CORE_FLOPS, Cost
from widthlab.experiments.shared.base import Inputs
from widthlab.experiments.shared.random_draws import sphere

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.meanode import Problem, ResidualNetwork

Array = NDArray[np.float64]
Activation = Literal["tanh", "relu"]

CHANGES = {
    "local_update": "rms of κ(u − u_0)·h: what a unit's own weights changed of its pre-activation",
    "preactivation_change": "rms change of pre-activations over their rms at initialisation",
    "distance": "rms of h_L less that of the linearised network, over the rms change of h_L",
    "movement": "rms change of the last embedding h_L",
    "loss_initial": "loss before training",
    "loss_ratio": "loss after training over the loss before",
    "forward_gain": "rms of h_L over that of h_0, before training",
    "backward_gain": "rms of the gradient by h_0 over that by h_L, before training",
}
"""What `changes` returns, by name."""


def scalar_problem(count: int, width: int, inputs: Inputs, seed: int) -> Problem:
    """Return `count` training inputs, embedded in `width` coordinates, with targets ±1.

    h_0 = W_E x with |x|² = d, and f = W_Uᵀ h_L/D, with loss ½|f − y|²; W_E and W_U are drawn from
    `seed` alone. Raises WidthlabError where the data set has fewer inputs.
    """
    import torch

    from widthlab.meanode import Problem, ReadoutLoss, embed, readout
    from widthlab.statistics.draws import nth_seed

    x = sphere(count, inputs).cpu()
    _, labels = inputs.data.train()
    first = labels[:count] < len(inputs.data.classes) / 2
    target = torch.where(first, 1.0, -1.0).double()[:, None]
    loss = ReadoutLoss(readout(width, 1, nth_seed(seed, 1)), target)
    return Problem(embed(x, width, nth_seed(seed, 0)), loss)


def trained(
    network: ResidualNetwork,
    problem: Problem,
    inputs: Inputs,
    *,
    eta: float,
    steps: int,
    seeds: Sequence[int] | int,
    seed: np.random.SeedSequence,
) -> xr.Dataset:
    """Return networks before and after training, with their layers and their linearisations."""
    from widthlab.meanode import train

    return train(
        network,
        problem,
        eta=eta,
        steps=steps,
        seeds=seeds,
        seed=seed,
        record=(0, steps),
        layers=True,
        linearised=True,
        device=inputs.device,
    )


def changes(run: xr.Dataset, problem: Problem) -> dict[str, Array]:
    """Return `CHANGES` of the seeds of `trained`, each (seeds,); NaN where a seed diverged."""
    before, after = (run["embedding"].isel(step=at).to_numpy() for at in (0, -1))
    linear = run["embedding_linearised"].isel(step=-1).to_numpy()
    loss = run["loss"].to_numpy()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        movement = _rms(after - before)
        return {
            "local_update": run["local_update"].isel(step=-1).to_numpy(),
            "preactivation_change": run["preactivation_change"].isel(step=-1).to_numpy(),
            "distance": _rms(after - linear) / movement,
            "movement": movement,
            "loss_initial": loss[:, 0],
            "loss_ratio": loss[:, -1] / loss[:, 0],
            "forward_gain": _rms(before) / _rms(problem.embedding[None].cpu().numpy()),
            "backward_gain": run["backward_gain"].isel(step=0).to_numpy(),
        }


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


def run_cost(
    networks: int,
    depth: int,
    hidden: int,
    width: int,
    count: int,
    steps: int,
    *,
    together: bool = False,
) -> Cost:
    """Estimate what `networks` runs of `trained` cost, one by one or as seeds of one batch."""
    products = float(depth * hidden * width * count)
    # Forward, backward and their linearisations: some fifteen products, and s of every unit.
    flops = (steps + 2) * (30 * products + 100.0 * depth * hidden * count)
    # Each operation on a layer takes some microseconds, however small it is.
    waiting = (steps + 2) * depth * 1.0e-4 * CORE_FLOPS / (networks if together else 1)
    # Weights, their initial values and those of the linearised network, embeddings, activations.
    numbers = depth * (10.0 * hidden * width + count * (4.0 * width + 8.0 * hidden))
    memory = 4 * numbers * (networks if together else 1)
    return Cost(networks * (flops + waiting), memory=min(memory, 2**29), disk=1e5, files=24)


def _rms(values: Array) -> Array:
    """Return root mean squares (seeds,) of (seeds, inputs, coordinates)."""
    return np.asarray(np.sqrt(np.mean(np.square(values), axis=(-2, -1))))
