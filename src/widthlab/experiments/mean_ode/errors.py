"""Errors of the networks of a grid: spread over seeds, bias of their mean, and both together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
    lesser: dict[str, dict[str, SumFit]] = field(default_factory=dict)
    """The same without one term, by that term."""

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
                point.halves = moments.halves(away) - self.limit_halves(part).mean(1)
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
        return max(self.section.width_sweep.inputs, self.outputs)

    def _fit(self) -> None:
        from widthlab.experiments.shared.sums import fit_sums_of_seeds
        from widthlab.theory.deep_limits import error_bound

        last, width = self.section.steps, self.section.width
        for part in PARTS:
            sizes = [
                size
                for size, point in sorted(self.points[part].items())
                if last in point.total
                and point.total[last].mean() > 0
                and self.domain(*size)
                and NEXT_ORDER * size[0] >= 1
            ]
            if len(sizes) < 3:
                continue
            depth, hidden = np.array(sizes, dtype=np.float64).T
            euler = error_bound(depth, hidden, width, euler=1.0, sampling=0.0)
            sampling = error_bound(depth, hidden, width, euler=0.0, sampling=1.0)
            forms = {
                "both": np.stack([euler, sampling], 1),
                "1/L": sampling[:, None],
                "√(D/(ML))": euler[:, None],
            }
            squares = [self.points[part][size].total[last] for size in sizes]
            found = fit_sums_of_seeds(forms, squares)
            self.fits[part] = found.pop("both"), sizes
            self.lesser[part] = found

    def limit_halves(self, part: str) -> Array:
        """Return two halves of the solutions of the limit, less their mean (2, solutions, k).

        After the last step. A half of the seeds is compared with a half of the solutions, so that
        the error of the limit does not add to a product of the two.
        """
        assert self.limit is not None
        each = self.limit[f"{part}_replicates"].sel(step=self.section.steps)
        values = each.transpose("replicate", ...).to_numpy()
        flat = values.reshape(2, len(values) // 2, -1)
        return np.asarray((flat - flat.mean((0, 1))) / np.sqrt(flat.shape[-1]))

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
