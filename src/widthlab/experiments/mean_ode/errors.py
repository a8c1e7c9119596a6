"""Errors of the networks of a grid: spread over seeds, bias of their mean, and both together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.mean_ode import TRACED
from widthlab.experiments.mean_ode.measuring import PLACE
from widthlab.experiments.shared.deep_networks import NEXT_ORDER, recorded
from widthlab.experiments.shared.shifts import stands_out

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.mean_ode import Section
    from widthlab.experiments.shared.base import Measured
    from widthlab.experiments.shared.sums import SumFit

Array = NDArray[np.float64]
Size = tuple[int, int]
"""(depth, hidden)."""

PARTS = ("embedding", "output")
TRACED_DEPTHS = 4
"""Depths of the thinnest networks of which trajectories are drawn, at most."""

SCALARS = {
    "sampling": "spread over seeds: root of the mean variance over inputs and coordinates",
    "sampling_low": "two standard errors below sampling",
    "sampling_high": "two standard errors above sampling",
    "bias": "distance of the mean over seeds from the limit, without the noise of that mean",
    "bias_low": "lower end of the 95 % interval of bias",
    "bias_high": "upper end of the 95 % interval of bias",
    "noise": "standard error of the mean over seeds, and of the limit",
    "total": "root mean square over seeds of the distance to the limit",
    "total_low": "two standard errors below total",
    "total_high": "two standard errors above total",
}


@dataclass
class Point:
    """One network size and one part (embedding or output)."""

    spread: dict[int, Array] = field(default_factory=dict)
    """By step: squared distances from the seeds' mean, whose mean is the variance."""
    total: dict[int, Array] = field(default_factory=dict)
    """By step: squared distances from the limit (seeds,)."""
    halves: Array = field(default_factory=lambda: np.empty((0, 2, 1)))
    """Means of halves of blocks of seeds, less the limit, after the last step (blocks, 2, k)."""
    seeds: int = 0
    finite: int = 0


@dataclass
class Errors:
    """All that the sweep has, by part and size."""

    section: Section
    points: dict[str, dict[Size, Point]]
    widths: dict[str, dict[int, Array]]
    """By part and D: the variance over seeds, by draw of W_E and W_U (draws,)."""
    width_diverged: int
    outputs: int
    limit: xr.Dataset | None
    reference: xr.Dataset | None
    traces: dict[int, xr.Dataset]
    """Trajectories of the thinnest networks, by depth."""
    fits: dict[str, tuple[SumFit, list[Size]]] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        """The recorded steps."""
        return recorded(self.section.steps)

    @classmethod
    def of(cls, section: Section, measured: list[Measured]) -> Errors:
        """Collect the cells; cells that are missing are missing."""
        kinds: dict[str, list[Measured]] = {}
        for one in measured:
            kinds.setdefault(one.cell.kind, []).append(one)
        only = {kind: kinds[kind][0].statistics for kind in ("limit", "reference") if kind in kinds}
        errors = cls(
            section,
            {part: {} for part in PARTS},
            {part: {} for part in PARTS},
            0,
            0,
            only.get("limit"),
            only.get("reference"),
            {},
        )
        for one in kinds.get("network", []):
            cell, found = one.cell, one.statistics
            for part in PARTS:
                point = errors._point(part, found)
                errors.points[part][cell.depth, cell.hidden] = point
            if "depth_trace" in found:
                errors.traces[cell.depth] = found
        for one in kinds.get("width", []):
            errors.outputs = int(one.statistics.attrs["outputs"])
            errors.width_diverged += int(one.statistics["diverged"])
            for part in PARTS:
                values = one.statistics[f"{part}_variance"].to_numpy()
                errors.widths[part][one.cell.width] = values
        errors._fit()
        return errors

    def _point(self, part: str, found: xr.Dataset) -> Point:
        from widthlab.statistics import kernel_moments as moments

        values = found[part].transpose("seed", "step", ...).to_numpy()
        values = values.reshape(*values.shape[:2], -1)
        values = values / np.sqrt(values.shape[-1])  # so that a norm is a root mean square
        finite = np.isfinite(values).all((1, 2))
        point = Point(seeds=len(values), finite=int(finite.sum()))
        values = values[finite]
        if len(values) < 2:
            return point
        for number, step in enumerate(found["step"].to_numpy().tolist()):
            own = values[:, number]
            point.spread[step] = moments.squares(own)
            if self.limit is None:
                continue
            truth = self.limit[part].sel(step=step).to_numpy().reshape(-1)
            away = own - truth / np.sqrt(own.shape[1])
            point.total[step] = (away**2).sum(1)
            if step == self.section.steps:
                point.halves = moments.halves(away)
        return point

    def domain(self, depth: int, hidden: int) -> bool:
        """Say whether leading order in D/(ML) can be judged there."""
        return self.section.width <= NEXT_ORDER * depth * hidden

    def widths_in_domain(self, part: str) -> list[int]:
        """Return the widths at which leading order in D/(ML) and in 1/D can be judged.

        Inputs and outputs are vectors in D dimensions, orthogonal up to corrections of relative
        order n/D and outputs/D.
        """
        sweep = self.section.width_sweep
        return [
            width
            for width in sorted(self.widths[part])
            if width <= NEXT_ORDER * sweep.depth * sweep.hidden and self.crowd <= NEXT_ORDER * width
        ]

    @property
    def crowd(self) -> int:
        """The number of inputs or of outputs, whichever is larger."""
        return max(self.section.inputs, self.outputs)

    def _fit(self) -> None:
        from widthlab.experiments.shared.sums import fit_sum_of_seeds
        from widthlab.theory.deep_limits import sampling_scale

        last, width = self.section.steps, self.section.width
        for part in PARTS:
            sizes = [
                size
                for size, point in sorted(self.points[part].items())
                if last in point.total and self.domain(*size) and NEXT_ORDER * size[0] >= 1
            ]
            if len(sizes) < 3:
                continue
            depth, hidden = np.array(sizes, dtype=np.float64).T
            terms = np.stack([1 / depth, sampling_scale(depth, hidden, width)], 1)
            squares = [self.points[part][size].total[last] for size in sizes]
            self.fits[part] = fit_sum_of_seeds(terms, squares), sizes

    def bias_sizes(self, part: str, hidden: int) -> list[Size]:
        """Return the sizes of one hidden width at which a bias that falls as 1/L is seen.

        1/L is at most a quarter, and the bias of the shallowest, falling as 1/L, stands out of the
        noise: the data at a depth do not choose it.
        """
        own = {
            at: self.points[part][at, of].halves
            for at, of in self.points[part]
            if of == hidden and NEXT_ORDER * at >= 1 and self.domain(at, of)
        }
        error = self.limit_error(part, self.section.steps)
        return [(at, hidden) for at in stands_out(own, -1.0, floor=error)]

    def limit_error(self, part: str, step: int) -> float:
        """Return the standard error of the limit, rms over inputs and coordinates."""
        if self.limit is None:
            return np.nan
        return float(np.sqrt((self.limit[f"{part}_error"].sel(step=step) ** 2).mean()))

    # ── the dataset ─────────────────────────────────────────────────────────────────────────

    def dataset(self) -> xr.Dataset:
        """Return all errors and fits, without claims."""
        import xarray as xr

        from widthlab.scaling import bootstrap_interval
        from widthlab.statistics.kernel_moments import distance

        section, steps = self.section, self.steps
        depths, hiddens = section.depth, section.hidden
        shape = (len(PARTS), len(depths), len(hiddens))
        found = {name: np.full(shape, np.nan) for name in (*SCALARS, "bound")}
        along = {
            name: np.full((*shape, len(steps)), np.nan) for name in ("step_sampling", "step_total")
        }
        counts = {name: np.zeros(shape[1:], dtype=np.int64) for name in ("seeds", "finite")}
        every = list(self.points.values())
        for i, part in enumerate(PARTS):
            for (depth, hidden), point in self.points[part].items():
                at = i, depths.index(depth), hiddens.index(hidden)
                counts["seeds"][at[1:]] = point.seeds
                counts["finite"][at[1:]] = min(own[depth, hidden].finite for own in every)
                for name, own in (("sampling", point.spread), ("total", point.total)):
                    for number, step in enumerate(steps):
                        if step in own:
                            along[f"step_{name}"][(*at, number)] = np.sqrt(own[step].mean())
                    if section.steps in own:
                        for end, value in zip(_ENDS, _ends(own[section.steps]), strict=True):
                            found[f"{name}{end}"][at] = value
                if len(point.halves):
                    noise = float(np.sqrt(point.spread[section.steps].mean() / point.finite))
                    found["noise"][at] = np.hypot(noise, self.limit_error(part, section.steps))
                    bias = bootstrap_interval(point.halves, distance)
                    for end in ("", "_low", "_high"):
                        value = bias.value if not end else getattr(bias, end[1:])
                        found[f"bias{end}"][at] = value
            if part in self.fits:
                fit, sizes = self.fits[part]
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
        variables |= self._width_variables() | self._limit_variables() | self._trace_variables()
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
                "width_diverged": self.width_diverged,
                "reference_units": section.reference.depth * section.reference.hidden,
            },
        )
        return dataset

    def _width_variables(self) -> dict[str, object]:
        widths = self.section.width_sweep.width
        found = np.full((3, len(PARTS), len(widths)), np.nan)
        for i, part in enumerate(PARTS):
            for width, values in self.widths[part].items():
                known = values[np.isfinite(values)]
                if len(known) > 1:
                    found[:, i, widths.index(width)] = _ends(known)
        return {
            f"width_sampling{end}": (
                ("part", "width"),
                found[number],
                {
                    "units": "1",
                    "description": f"{SCALARS['sampling' + end]}, and draws of W_E, W_U",
                },
            )
            for number, end in enumerate(("", "_low", "_high"))
        }

    def _limit_variables(self) -> dict[str, object]:
        about = {
            "limit_error": "standard error of the solution of the mean ODE, rms",
            "reference_error": "standard error of the large networks' mean, extrapolated, rms",
            "reference_distance": "rms distance of the two",
            "moved": "rms distance of the limit from its initialisation",
        }
        found = {name: np.full((len(PARTS), len(self.steps)), np.nan) for name in about}
        for i, part in enumerate(PARTS):
            for j, step in enumerate(self.steps):
                if self.limit is None:
                    continue
                found["limit_error"][i, j] = self.limit_error(part, step)
                limit = self.limit[part].sel(step=step)
                start = self.limit[part].sel(step=0)
                found["moved"][i, j] = np.sqrt(((limit - start) ** 2).mean())
                if self.reference is not None:
                    other = self.reference.sel(step=step)
                    found["reference_error"][i, j] = np.sqrt((other[f"{part}_error"] ** 2).mean())
                    found["reference_distance"][i, j] = np.sqrt(((other[part] - limit) ** 2).mean())
        variables: dict[str, object] = {
            name: (("part", "step"), found[name], {"units": "1", "description": text})
            for name, text in about.items()
        }
        coefficients = np.full((len(PARTS), 2, 3), np.nan)
        for i, part in enumerate(PARTS):
            if part in self.fits:
                fit = self.fits[part][0]
                coefficients[i, :, 0] = fit.coefficients
                coefficients[i, :, 1:] = fit.intervals
        for number, end in enumerate(("", "_low", "_high")):
            variables[f"coefficient{end}"] = (
                ("part", "term"),
                coefficients[..., number],
                {"units": "1", "description": f"a (Euler) and b (sampling) of the bound{end}"},
            )
        return variables

    def _trace_variables(self) -> dict[str, object]:
        """Return trajectories of the thinnest networks, in the coordinate that learns most."""
        steps = np.arange(self.section.steps + 1)
        deep = sorted(self.traces)
        marks = np.unique(np.linspace(0, max(len(deep) - 1, 0), TRACED_DEPTHS).round()).astype(int)
        chosen = [deep[mark] for mark in marks] if deep else []
        by_depth = np.full((len(chosen), TRACED, len(PLACE)), np.nan)
        by_step = np.full((len(chosen), TRACED, len(steps)), np.nan)
        limits = [np.full(len(PLACE), np.nan), np.full(len(steps), np.nan)]
        if self.limit is not None:
            stream = self.limit["depth_trace"].transpose("position", "coordinate").to_numpy()
            output = self.limit["training_trace"].transpose("training_step", ...).to_numpy()
            first = int(np.abs(stream[-1] - stream[0]).argmax())
            second = int(np.abs(output[-1] - output[0]).argmax())
            limits = [stream[:, first], output[:, second]]
            for number, depth in enumerate(chosen):
                own = self.traces[depth]
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
            "traced_depth": ("trace", np.array(chosen, dtype=np.int64), _said("depth L", "layers")),
            "position": ("place", PLACE, _said("relative depth s")),
            one[0]: (("trace", "traced_seed", "place"), by_depth, _said(one[1])),
            two[0]: (("trace", "traced_seed", "training_step"), by_step, _said(two[1])),
            "depth_trace_limit": ("place", limits[0], _said(f"{one[1]}, mean ODE")),
            "training_trace_limit": ("training_step", limits[1], _said(f"{two[1]}, mean ODE")),
        }


_ENDS = ("", "_low", "_high")


def _said(text: str, units: str = "1") -> dict[str, str]:
    return {"units": units, "description": text}


def _ends(squares: Array) -> tuple[float, float, float]:
    """Return the root of the mean of squares (seeds,), two standard errors below, and above."""
    mean = float(squares.mean())
    error = float(squares.std(ddof=1) / np.sqrt(len(squares)))
    return (
        float(np.sqrt(mean)),
        float(np.sqrt(max(mean - 2 * error, 0.0))),
        float(np.sqrt(mean + 2 * error)),
    )
