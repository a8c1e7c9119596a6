"""The sweep of the lazy-ODE experiment as one dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.lazy_ode.distances import PARTS, POWERS
from widthlab.experiments.shared.deep_tables import ENDS, ends, said

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.lazy_ode.distances import Distances

SCALARS = {
    "distance": "root mean square over seeds of the distance to the lazy ODE",
    "spread": "spread over seeds: root of the mean variance over inputs and coordinates",
}


def dataset(distances: Distances) -> xr.Dataset:
    """Return all distances and fits, without claims."""
    import xarray as xr

    sizes, alphas = distances.section.sizes, distances.section.alpha
    shape = len(PARTS), len(sizes), len(alphas)
    found = {f"{name}{end}": np.full(shape, np.nan) for name in SCALARS for end in ENDS}
    blocks = np.full((3, *shape[1:]), np.nan)
    counts = np.zeros((2, *shape[1:]), dtype=np.int64)
    inside = np.zeros(shape[1:], dtype=np.int64)
    for i, size in enumerate(sizes):
        for j, alpha in enumerate(alphas):
            inside[i, j] = alpha in distances.domain(size.units)
            point = distances.points.get((size.units, alpha))
            if point is None:
                continue
            counts[:, i, j] = point.seeds, point.finite
            if len(point.blocks) > 1:
                blocks[:, i, j] = ends(point.blocks)
            for name, own in (("distance", point.distance), ("spread", point.spread)):
                for k, part in enumerate(PARTS):
                    if part in own:
                        for end, value in zip(ENDS, ends(own[part]), strict=True):
                            found[f"{name}{end}"][k, i, j] = value
    grid = ("part", "size", "alpha")
    variables: dict[str, object] = {
        f"{name}{end}": (grid, found[f"{name}{end}"], said(f"{text}{ENDS[end]}"))
        for name, text in SCALARS.items()
        for end in ENDS
    }
    text = "rms distance of h_L to the same network with blocks linearised"
    for number, end in enumerate(ENDS):
        variables[f"blocks{end}"] = (grid[1:], blocks[number], said(f"{text}{ENDS[end]}"))
    variables["seeds"] = (grid[1:], counts[0], said("networks trained", "networks"))
    variables["finite"] = (grid[1:], counts[1], said("networks not diverged", "networks"))
    variables["valid"] = (grid[1:], inside, said("1 where 1 ≪ α ≪ √(ML/D)"))
    variables |= (
        _best_variables(distances) | _fit_variables(distances) | _limit_variables(distances)
    )
    return xr.Dataset(
        variables,
        coords={
            "part": list(PARTS),
            "alpha": alphas,
            "units": ("size", [size.units for size in sizes], said("M·L", "units")),
            "depth": ("size", [size.depth for size in sizes], said("L", "layers")),
            "hidden": ("size", [size.hidden for size in sizes], said("M", "units")),
            "power": list(POWERS),
            "term": ["lazy", "euler", "sampling"],
        },
        attrs={"experiment": "lazy_ode", "embedding_width": distances.section.width},
    )


def _best_variables(distances: Distances) -> dict[str, object]:
    values = np.full((3, len(PARTS), len(distances.section.sizes)), np.nan)
    for (part, units), (best, resampled) in distances.best.items():
        at = PARTS.index(part), [size.units for size in distances.section.sizes].index(units)
        values[0][at] = best
        known = resampled[np.isfinite(resampled)]
        # An interval counts where nearly all resamples have their minimum inside the grid.
        if np.isfinite(best) and len(known) >= 0.975 * len(resampled):
            values[1][at], values[2][at] = np.quantile(known, [0.025, 0.975])
    return {
        f"best_alpha{end}": (
            ("part", "size"),
            values[number],
            said(f"α at which the distance to the lazy ODE is smallest{ENDS[end]}"),
        )
        for number, end in enumerate(ENDS)
    }


def _fit_variables(distances: Distances) -> dict[str, object]:
    sizes, alphas = distances.section.sizes, distances.section.alpha
    units = [size.units for size in sizes]
    shape = len(PARTS), len(POWERS)
    bound = np.full((*shape, len(sizes), len(alphas)), np.nan)
    coefficients, factors = np.full((*shape, 3), np.nan), np.full((3, *shape), np.nan)
    for (part, power), (fit, keys) in distances.fits.items():
        at = PARTS.index(part), POWERS.index(power)
        coefficients[at] = fit.coefficients
        factors[(slice(None), *at)] = fit.factor, fit.low, fit.high
        for key, ratio in zip(keys, fit.ratios, strict=True):
            distance = np.sqrt(distances.points[key].distance[part].mean())
            place = (*at, units.index(key[0]), alphas.index(key[1]))
            bound[place] = distance / ratio
    dims = ("part", "power")
    return {
        "bound": ((*dims, "size", "alpha"), bound, said("c/α^p + a/L + b·α/√(ML), fitted")),
        "coefficient": ((*dims, "term"), coefficients, said("c, a and b")),
        **{
            f"factor{end}": (dims, factors[n], said(f"factor within which it fits{ENDS[end]}"))
            for n, end in enumerate(ENDS)
        },
    }


def _limit_variables(distances: Distances) -> dict[str, object]:
    """Return the distance of the mean ODE to itself at the largest α, and what is learned."""
    alphas = distances.section.alpha
    away, moved = np.full((3, len(PARTS), len(alphas)), np.nan), np.full(len(PARTS), np.nan)
    for i, part in enumerate(PARTS):
        if distances.lazy is not None:
            first, last = (distances.lazy[part].isel(step=at) for at in (0, -1))
            moved[i] = np.sqrt(((last - first) ** 2).mean())
        squares = distances.of_mean(part, alphas)
        for j in range(len(alphas) - 1):
            known = squares[np.isfinite(squares[:, j]), j]
            if len(known) > 1:
                away[:, i, j] = ends(known)
    text = "rms distance of the mean ODE to itself at the largest α"
    return {
        **{
            f"mean_distance{end}": (("part", "alpha"), away[n], said(f"{text}{ENDS[end]}"))
            for n, end in enumerate(ENDS)
        },
        "moved": ("part", moved, said("rms distance of the lazy ODE from its initialisation")),
    }
