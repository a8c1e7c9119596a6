"""The sweep of the mean-ODE experiment as one dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.mean_ode import TRACED
from widthlab.experiments.mean_ode.errors import PARTS, Errors
from widthlab.experiments.mean_ode.measuring import PLACE
from widthlab.experiments.shared.deep_tables import ENDS, ends, said

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

TRACED_DEPTHS = 4
"""Depths of the thinnest networks of which trajectories are drawn, at most."""

SCALARS = {
    "sampling": "spread over seeds: root of the mean variance over inputs and coordinates",
    "sampling_low": "lower end of the 95 % interval of sampling",
    "sampling_high": "upper end of the 95 % interval of sampling",
    "bias": "distance of the mean over seeds from the limit, without the noise of that mean",
    "bias_low": "lower end of the 95 % interval over seeds of bias, the limit being known",
    "bias_high": "upper end of the 95 % interval over seeds of bias, the limit being known",
    "noise": "standard error of the mean over seeds, and of the limit",
    "total": "root mean square over seeds of the distance to the limit",
    "total_low": "lower end of the 95 % interval of total",
    "total_high": "upper end of the 95 % interval of total",
}


def dataset(errors: Errors) -> xr.Dataset:
    """Return all errors and fits, without claims."""
    import xarray as xr

    from widthlab.scaling import bootstrap_interval
    from widthlab.statistics.kernel_moments import distance

    section, steps = errors.section, errors.steps
    depths, hiddens = section.depth, section.hidden
    shape = (len(PARTS), len(depths), len(hiddens))
    found = {name: np.full(shape, np.nan) for name in (*SCALARS, "bound")}
    along = {
        name: np.full((*shape, len(steps)), np.nan) for name in ("step_sampling", "step_total")
    }
    counts = {name: np.zeros(shape[1:], dtype=np.int64) for name in ("seeds", "finite")}
    every = list(errors.points.values())
    for i, part in enumerate(PARTS):
        for (depth, hidden), point in errors.points[part].items():
            at = i, depths.index(depth), hiddens.index(hidden)
            counts["seeds"][at[1:]] = point.seeds
            counts["finite"][at[1:]] = min(own[depth, hidden].finite for own in every)
            for name, own in (("sampling", point.spread), ("total", point.total)):
                for number, step in enumerate(steps):
                    if step in own:
                        along[f"step_{name}"][(*at, number)] = np.sqrt(own[step].mean())
                if section.steps in own:
                    for end, value in zip(ENDS, ends(own[section.steps]), strict=True):
                        found[f"{name}{end}"][at] = value
            if len(point.halves):
                noise = float(np.sqrt(point.spread[section.steps].mean() / point.finite))
                found["noise"][at] = np.hypot(noise, errors.limit_error(part, section.steps))
                bias = bootstrap_interval(point.halves, distance)
                for end in ("", "_low", "_high"):
                    value = bias.value if not end else getattr(bias, end[1:])
                    found[f"bias{end}"][at] = value
        if part in errors.fits:
            fit, sizes = errors.fits[part]
            for (depth, hidden), ratio in zip(sizes, fit.ratios, strict=True):
                at = i, depths.index(depth), hiddens.index(hidden)
                found["bound"][at] = found["total"][at] / ratio
    grid = ("part", "depth", "hidden")
    texts = SCALARS | {"bound": "a/L + b·√(D/(ML)), fitted to total"}
    variables: dict[str, object] = {
        name: (grid, found[name], {"units": "1", "description": text})
        for name, text in texts.items()
    }
    for name, text in (("sampling", SCALARS["sampling"]), ("total", SCALARS["total"])):
        about = {"units": "1", "description": f"{text}, along training"}
        variables[f"step_{name}"] = ((*grid, "step"), along[f"step_{name}"], about)
    for name, text in (("seeds", "networks trained"), ("finite", "networks not diverged")):
        about = {"units": "networks", "description": text}
        variables[name] = (grid[1:], counts[name], about)
    variables |= _width_variables(errors) | _limit_variables(errors) | _trace_variables(errors)
    dataset = xr.Dataset(
        variables,
        coords={
            "part": list(PARTS),
            "depth": depths,
            "hidden": hiddens,
            "step": steps,
            "width": section.width_sweep.width,
        },
        attrs={
            "experiment": "mean_ode",
            "embedding_width": section.width,
            "width_sweep_units": section.width_sweep.depth * section.width_sweep.hidden,
            "width_diverged": errors.width_diverged,
            "reference_units": section.reference.depth * section.reference.hidden,
        },
    )
    return dataset


def _width_variables(errors: Errors) -> dict[str, object]:
    widths = errors.section.width_sweep.width
    found = np.full((3, len(PARTS), len(widths)), np.nan)
    for i, part in enumerate(PARTS):
        for width, values in errors.widths[part].items():
            known = values[np.isfinite(values)]
            if len(known) > 1:
                found[:, i, widths.index(width)] = ends(known)
    return {
        f"width_sampling{end}": (
            ("part", "width"),
            found[number],
            {
                "units": "1",
                "description": f"{SCALARS['sampling' + end]}, and draws of W_E, W_U",
            },
        )
        for number, end in enumerate(ENDS)
    }


def _limit_variables(errors: Errors) -> dict[str, object]:
    about = {
        "limit_error": "standard error of the solution of the mean ODE, rms",
        "reference_error": "standard error of the large networks' mean, extrapolated, rms",
        "reference_distance": "rms distance of the two",
        "moved": "rms distance of the limit from its initialisation",
    }
    found = {name: np.full((len(PARTS), len(errors.steps)), np.nan) for name in about}
    for i, part in enumerate(PARTS):
        for j, step in enumerate(errors.steps):
            if errors.limit is None:
                continue
            found["limit_error"][i, j] = errors.limit_error(part, step)
            limit = errors.limit[part].sel(step=step)
            start = errors.limit[part].sel(step=0)
            found["moved"][i, j] = np.sqrt(((limit - start) ** 2).mean())
            if errors.reference is not None:
                other = errors.reference.sel(step=step)
                found["reference_error"][i, j] = np.sqrt((other[f"{part}_error"] ** 2).mean())
                found["reference_distance"][i, j] = np.sqrt(((other[part] - limit) ** 2).mean())
    variables: dict[str, object] = {
        name: (("part", "step"), found[name], {"units": "1", "description": text})
        for name, text in about.items()
    }
    coefficients = np.full((len(PARTS), 2, 3), np.nan)
    for i, part in enumerate(PARTS):
        if part in errors.fits:
            fit = errors.fits[part][0]
            coefficients[i, :, 0] = fit.coefficients
            coefficients[i, :, 1:] = fit.intervals
    for number, end in enumerate(ENDS):
        variables[f"coefficient{end}"] = (
            ("part", "term"),
            coefficients[..., number],
            {"units": "1", "description": f"a (Euler) and b (sampling) of the bound{end}"},
        )
    return variables


def _trace_variables(errors: Errors) -> dict[str, object]:
    """Return trajectories of the thinnest networks, in the coordinate that learns most."""
    steps = np.arange(errors.section.steps + 1)
    deep = sorted(errors.traces)
    marks = np.unique(np.linspace(0, max(len(deep) - 1, 0), TRACED_DEPTHS).round()).astype(int)
    chosen = [deep[mark] for mark in marks] if deep else []
    by_depth = np.full((len(chosen), TRACED, len(PLACE)), np.nan)
    by_step = np.full((len(chosen), TRACED, len(steps)), np.nan)
    limits = [np.full(len(PLACE), np.nan), np.full(len(steps), np.nan)]
    if errors.limit is not None:
        stream = errors.limit["depth_trace"].transpose("position", "coordinate").to_numpy()
        output = errors.limit["training_trace"].transpose("training_step", ...).to_numpy()
        first = int(np.abs(stream[-1] - stream[0]).argmax())
        second = int(np.abs(output[-1] - output[0]).argmax())
        limits = [stream[:, first], output[:, second]]
        for number, depth in enumerate(chosen):
            own = errors.traces[depth]
            place = own["position"].to_numpy()
            paths = own["depth_trace"].transpose("traced_seed", "position", ...).to_numpy()
            outputs = own["training_trace"].transpose("traced_seed", "training_step", ...)
            for row, path in enumerate(paths[..., first]):
                by_depth[number, row] = np.interp(PLACE, place, path)
            by_step[number, : len(paths)] = outputs.to_numpy()[..., second]
    about = {
        "depth_trace": "a coordinate of the first input's embedding along depth, trained",
        "training_trace": "an output of the first input along training",
    }
    one, two = about.items()
    return {
        "traced_depth": ("trace", np.array(chosen, dtype=np.int64), said("depth L", "layers")),
        "position": ("place", PLACE, said("relative depth s")),
        one[0]: (("trace", "traced_seed", "place"), by_depth, said(one[1])),
        two[0]: (("trace", "traced_seed", "training_step"), by_step, said(two[1])),
        "depth_trace_limit": ("place", limits[0], said(f"{one[1]}, mean ODE")),
        "training_trace_limit": ("training_step", limits[1], said(f"{two[1]}, mean ODE")),
    }
