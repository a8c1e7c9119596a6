"""What the cells of the mean-ODE experiment measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.mean_ode import PLACES, TRACED
from widthlab.experiments.shared.deep_networks import deep_problem, recorded

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.mean_ode import Cell
    from widthlab.experiments.shared.base import Inputs

ENDINGS = ("_error", "_replicates")
PLACE = np.linspace(0, 1, PLACES + 1)


def networks(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return embeddings and outputs of all seeds at the recorded steps, and a few trajectories."""
    from widthlab.meanode import train

    found = train(
        cell.network,
        deep_problem(cell, inputs),
        eta=cell.learning_rate,
        steps=cell.steps,
        seeds=cell.seeds,
        seed=inputs.seeds,
        positions=PLACE.tolist() if cell.traced else (),
        device=inputs.device,
    )
    kept = found[["embedding", "output", "diverged"]].sel(step=recorded(cell.steps))
    return kept.assign(_traces(found.isel(seed=slice(TRACED)))) if cell.traced else kept


def limit(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the solution of the mean ODE by particles, with its standard error."""
    from widthlab.meanode import solve

    found = solve(
        cell.network,
        deep_problem(cell, inputs),
        eta=cell.learning_rate,
        steps=cell.steps,
        positions=PLACE.tolist(),
        particles=cell.particles,
        replicates=cell.seeds,
        each=("embedding", "output"),
        seed=inputs.seeds,
        device=inputs.device,
    )
    kept = [f"{name}{end}" for name in ("embedding", "output") for end in ("", *ENDINGS)]
    return found[kept].sel(step=recorded(cell.steps)).assign(_traces(found))


def reference(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the limit by large networks, extrapolated in depth, with its standard error."""
    from widthlab.meanode import reference as by_networks

    return by_networks(
        cell.network,
        deep_problem(cell, inputs),
        eta=cell.learning_rate,
        steps=cell.steps,
        seeds=cell.seeds,
        seed=inputs.seeds,
        record=recorded(cell.steps),
        device=inputs.device,
    )


def spreads(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the variance over seeds of the trained embedding and output, by draw of W_E, W_U."""
    import xarray as xr

    from widthlab.meanode import train
    from widthlab.statistics.draws import nth_seed

    rows: dict[str, list[float]] = {"embedding": [], "output": []}
    diverged = 0
    for draw in range(cell.embeddings):
        found = train(
            cell.network,
            deep_problem(cell, inputs, draw),
            eta=cell.learning_rate,
            steps=cell.steps,
            seeds=cell.seeds,
            seed=nth_seed(inputs.seeds, draw),
            record=[cell.steps],
            device=inputs.device,
        )
        living = found.isel(step=0, seed=np.flatnonzero(found["diverged"].to_numpy() < 0))
        diverged += found.sizes["seed"] - living.sizes["seed"]
        for name, row in rows.items():
            few = living.sizes["seed"] < 2
            row.append(np.nan if few else float(living[name].var("seed", ddof=1).mean()))
    about = "variance over seeds of {}, mean over inputs and coordinates"
    return xr.Dataset(
        {
            **{
                f"{name}_variance": (
                    "draw",
                    row,
                    {"units": "1", "description": about.format(name)},
                )
                for name, row in rows.items()
            },
            "diverged": (
                (),
                diverged,
                {"units": "networks", "description": "networks that diverged"},
            ),
        },
        attrs={"outputs": found.sizes["output_coordinate"]},
    )


def _traces(found: xr.Dataset) -> xr.Dataset:
    """Return the first input's output along training and embedding along depth."""
    import xarray as xr

    output = found["output"].isel(input=0).rename(step="training_step")
    depth = found["stream"].isel(input=0, step=-1).drop_vars("step")
    dataset = xr.Dataset(
        {
            "training_trace": output.assign_attrs(
                units="1", description="output of the first input along training"
            ),
            "depth_trace": depth.assign_attrs(
                units="1", description="embedding of the first input along depth, after training"
            ),
        }
    )
    return dataset.rename(seed="traced_seed") if "seed" in dataset.dims else dataset
