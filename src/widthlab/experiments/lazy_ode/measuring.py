"""What the cells of the lazy-ODE experiment measure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.shared.deep_networks import deep_problem

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.lazy_ode import Cell
    from widthlab.experiments.shared.base import Inputs

KEPT = ["embedding", "output"]


def networks(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return trained embeddings and outputs (alpha, seed, …), and distances to linear blocks."""
    import xarray as xr

    from widthlab.meanode import train
    from widthlab.statistics.draws import nth_seed

    problem = deep_problem(cell, inputs)
    found = []
    for number, alpha in enumerate(cell.alphas):
        run = train(
            replace(cell.network, alpha=alpha),
            problem,
            eta=cell.learning_rate,
            steps=cell.steps,
            seeds=cell.seeds,
            # Independent networks at every α, so that points of a curve have independent errors.
            seed=nth_seed(inputs.seeds, number),
            record=[cell.steps],
            companions=["lazy"],
            device=inputs.device,
        ).isel(step=0, drop=True)
        own = run[[*KEPT, "diverged"]]
        # Linear blocks may diverge where the network does not: then there is no distance.
        with np.errstate(over="ignore", invalid="ignore"):
            square = (run["embedding"] - run["embedding_lazy"]) ** 2
        own["block_square"] = square.mean(["input", "coordinate"], skipna=False)
        own["block_square"].attrs = {
            "units": "1",
            "description": "mean square distance of h_L to that of the same network with blocks "
            "linearised about their initial weights",
        }
        found.append(own)
    return xr.concat(found, dim=xr.DataArray(cell.alphas, dims="alpha", name="alpha"))


def mean_ode(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the mean ODE's trained embedding and output by α and pair of replicates.

    All α have the same particles, so that differences between them are free of most of their
    error. NaN at an α where the ODE is not solved.
    """
    import xarray as xr

    from widthlab.errors import WidthlabError
    from widthlab.meanode import solve
    from widthlab.statistics.draws import nth_seed

    problem = deep_problem(cell, inputs)
    found: list[xr.Dataset | None] = []
    for alpha in cell.alphas:
        try:
            pairs = [
                solve(
                    replace(cell.network, alpha=alpha),
                    problem,
                    eta=cell.learning_rate,
                    steps=cell.steps,
                    record=[cell.steps],
                    particles=cell.particles,
                    replicates=2,
                    seed=nth_seed(inputs.seeds, number),
                    device=inputs.device,
                )[KEPT].isel(step=0, drop=True)
                for number in range(cell.seeds // 2)
            ]
        except WidthlabError:
            found.append(None)
        else:
            found.append(xr.concat(pairs, dim="pair"))
    solved = [one for one in found if one is not None]
    if not solved:
        raise WidthlabError(
            "the mean ODE is not solved at any alpha; use a smaller learning_rate or alpha"
        )
    holes = [one if one is not None else xr.full_like(solved[0], np.nan) for one in found]
    return xr.concat(holes, dim=xr.DataArray(cell.alphas, dims="alpha", name="alpha"))


def lazy_ode(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return the lazy ODE's trained embedding and output, before training too, and the tangent's.

    The tangent ODE, linear in the stream too, is what a network tends to at small learning rates,
    and not as α grows.
    """
    from widthlab.meanode import solve_lazy, solve_tangent

    problem = deep_problem(cell, inputs)
    found, tangent = (
        solver(
            cell.network,
            problem,
            eta=cell.learning_rate,
            steps=cell.steps,
            record=[0, cell.steps],
        )
        for solver in (solve_lazy, solve_tangent)
    )
    return found[KEPT].assign({f"{name}_tangent": tangent[name] for name in KEPT})
