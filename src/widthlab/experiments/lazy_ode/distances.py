"""Distances of networks to the lazy ODE, by size and branch scale, and what is fitted to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.lazy_ode import LARGE, Size

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.lazy_ode import Section
    from widthlab.experiments.shared.base import Measured
    from widthlab.experiments.shared.sums import SumFit

Array = NDArray[np.float64]
Key = tuple[int, float]
"""(L·M, α)."""

PARTS = ("embedding", "output")
POWERS = (1.0, 2.0)
"""Powers of 1/α in the bound, and where the law of the weights is symmetric."""
RESAMPLES = 400

SCALARS = {
    "distance": "root mean square over seeds of the distance to the lazy ODE",
    "spread": "spread over seeds: root of the mean variance over inputs and coordinates",
}


@dataclass
class Point:
    """Networks of one size and α: squares over seeds, (seeds,), by part."""

    distance: dict[str, Array] = field(default_factory=dict)
    spread: dict[str, Array] = field(default_factory=dict)
    blocks: Array = field(default_factory=lambda: np.empty(0))
    """Squared distances of h_L to networks of linear blocks."""
    seeds: int = 0
    finite: int = 0


@dataclass
class Distances:
    """All that the sweep has."""

    section: Section
    points: dict[Key, Point]
    mean: xr.Dataset | None
    lazy: xr.Dataset | None
    best: dict[tuple[str, int], tuple[float, Array]] = field(default_factory=dict)
    """By part and L·M: the best α and its resamples; NaN at an end of the grid."""
    fits: dict[tuple[str, float], tuple[SumFit, list[Key]]] = field(default_factory=dict)
    """By part and power of 1/α."""

    @classmethod
    def of(cls, section: Section, measured: list[Measured]) -> Distances:
        """Collect the cells; cells that are missing are missing."""
        only = {m.cell.kind: m.statistics for m in measured if m.cell.kind != "network"}
        own = cls(section, {}, only.get("mean"), only.get("lazy"))
        for one in measured:
            if one.cell.kind == "network":
                for number, alpha in enumerate(one.cell.alphas):
                    key = one.cell.depth * one.cell.hidden, alpha
                    own.points[key] = own._point(one.statistics.isel(alpha=number))
        own._best()
        own._fit()
        return own

    def _point(self, found: xr.Dataset) -> Point:
        from widthlab.statistics import kernel_moments as moments

        blocks = found["block_square"].to_numpy()
        flat = {
            part: found[part].transpose("seed", ...).to_numpy().reshape(len(blocks), -1)
            for part in PARTS
        }
        finite = np.all([np.isfinite(values).all(1) for values in flat.values()], axis=0)
        point = Point(seeds=len(finite), finite=int(finite.sum()))
        point.blocks = blocks[np.isfinite(blocks)]
        if point.finite < 2:
            return point
        for part, values in flat.items():
            scaled = values[finite] / np.sqrt(values.shape[1])
            point.spread[part] = moments.squares(scaled)
            if self.lazy is not None:
                truth = self.lazy[part].isel(step=-1).to_numpy().reshape(-1)
                away = scaled - truth / np.sqrt(len(truth))
                point.distance[part] = (away**2).sum(1)
        return point

    @property
    def sizes(self) -> list[Size]:
        """Sizes that are measured, by L·M."""
        known = {units for units, _ in self.points}
        return [size for size in self.section.sizes if size.units in known]

    def largest_alpha(self, units: int) -> float:
        """Return √(ML/D), which α must be small against."""
        return float(np.sqrt(units / self.section.width))

    def domain(self, units: int, large: float = LARGE) -> list[float]:
        """Return the α with 1 ≪ α ≪ √(ML/D), or of all between the two with `large` = 1."""
        most = self.largest_alpha(units) / large
        return [alpha for alpha in self.section.alpha if large <= alpha <= most]

    # ── the best α ──────────────────────────────────────────────────────────────────────────

    def _best(self) -> None:
        for part in PARTS:
            for number, size in enumerate(self.sizes):
                own = {
                    alpha: self.points[size.units, alpha].distance[part]
                    for alpha in self.section.alpha
                    if part in self.points[size.units, alpha].distance
                }
                if len(own) < 3:
                    continue
                alphas = np.array(list(own))
                generator = np.random.default_rng(np.random.SeedSequence([number, len(part)]))
                rows = [
                    values[generator.integers(0, len(values), (RESAMPLES, len(values)))].mean(1)
                    for values in own.values()
                ]
                here = lowest(alphas, np.array([values.mean() for values in own.values()]))
                resampled = np.array([lowest(alphas, row) for row in np.stack(rows, 1)])
                self.best[part, size.units] = here, resampled

    # ── the form of the bound ───────────────────────────────────────────────────────────────

    def _fit(self) -> None:
        from widthlab.experiments.shared.sums import fit_sum_of_seeds

        for part in PARTS:
            keys = [
                (size.units, alpha)
                for size in self.sizes
                for alpha in self.domain(size.units, 1.0)
                if part in self.points[size.units, alpha].distance
            ]
            if len(keys) < 4:
                continue
            depths = {size.units: size.depth for size in self.sizes}
            squares = [self.points[key].distance[part] for key in keys]
            for power in POWERS:
                terms = np.array([self.terms(depths[key[0]], *key, power) for key in keys])
                self.fits[part, power] = fit_sum_of_seeds(terms, squares), keys

    @staticmethod
    def terms(depth: int, units: int, alpha: float, power: float) -> tuple[float, float, float]:
        """Return 1/α^p, 1/L and α/√(ML)."""
        return alpha**-power, 1 / depth, alpha / np.sqrt(units)

    # ── the dataset ─────────────────────────────────────────────────────────────────────────

    def dataset(self) -> xr.Dataset:
        """Return all distances and fits, without claims."""
        import xarray as xr

        sizes, alphas = self.section.sizes, self.section.alpha
        shape = len(PARTS), len(sizes), len(alphas)
        ends = ("", "_low", "_high")
        found = {f"{name}{end}": np.full(shape, np.nan) for name in SCALARS for end in ends}
        blocks = np.full((3, *shape[1:]), np.nan)
        counts = np.zeros((2, *shape[1:]), dtype=np.int64)
        inside = np.zeros(shape[1:], dtype=np.int64)
        for i, size in enumerate(sizes):
            for j, alpha in enumerate(alphas):
                inside[i, j] = alpha in self.domain(size.units)
                point = self.points.get((size.units, alpha))
                if point is None:
                    continue
                counts[:, i, j] = point.seeds, point.finite
                if len(point.blocks) > 1:
                    blocks[:, i, j] = _ends(point.blocks)
                for name, own in (("distance", point.distance), ("spread", point.spread)):
                    for k, part in enumerate(PARTS):
                        if part in own:
                            for end, value in zip(ends, _ends(own[part]), strict=True):
                                found[f"{name}{end}"][k, i, j] = value
        grid = ("part", "size", "alpha")
        variables: dict[str, object] = {
            f"{name}{end}": (grid, found[f"{name}{end}"], _said(f"{text}{_END[end]}"))
            for name, text in SCALARS.items()
            for end in ends
        }
        text = "rms distance of h_L to the same network with blocks linearised"
        for number, end in enumerate(ends):
            variables[f"blocks{end}"] = (grid[1:], blocks[number], _said(f"{text}{_END[end]}"))
        variables["seeds"] = (grid[1:], counts[0], _said("networks trained", "networks"))
        variables["finite"] = (grid[1:], counts[1], _said("networks not diverged", "networks"))
        variables["valid"] = (grid[1:], inside, _said("1 where 1 ≪ α ≪ √(ML/D)"))
        variables |= self._best_variables() | self._fit_variables() | self._limit_variables()
        return xr.Dataset(
            variables,
            coords={
                "part": list(PARTS),
                "alpha": alphas,
                "units": ("size", [size.units for size in sizes], _said("M·L", "units")),
                "depth": ("size", [size.depth for size in sizes], _said("L", "layers")),
                "hidden": ("size", [size.hidden for size in sizes], _said("M", "units")),
                "power": list(POWERS),
                "term": ["lazy", "euler", "sampling"],
            },
            attrs={"experiment": "lazy_ode", "embedding_width": self.section.width},
        )

    def _best_variables(self) -> dict[str, object]:
        values = np.full((3, len(PARTS), len(self.section.sizes)), np.nan)
        for (part, units), (best, resampled) in self.best.items():
            at = PARTS.index(part), [size.units for size in self.section.sizes].index(units)
            values[0][at] = best
            known = resampled[np.isfinite(resampled)]
            # An interval counts where nearly all resamples have their minimum inside the grid.
            if np.isfinite(best) and len(known) >= 0.975 * len(resampled):
                values[1][at], values[2][at] = np.quantile(known, [0.025, 0.975])
        return {
            f"best_alpha{end}": (
                ("part", "size"),
                values[number],
                _said(f"α at which the distance to the lazy ODE is smallest{_END[end]}"),
            )
            for number, end in enumerate(("", "_low", "_high"))
        }

    def _fit_variables(self) -> dict[str, object]:
        sizes, alphas = self.section.sizes, self.section.alpha
        units = [size.units for size in sizes]
        shape = len(PARTS), len(POWERS)
        bound = np.full((*shape, len(sizes), len(alphas)), np.nan)
        coefficients, factors = np.full((*shape, 3), np.nan), np.full((3, *shape), np.nan)
        for (part, power), (fit, keys) in self.fits.items():
            at = PARTS.index(part), POWERS.index(power)
            coefficients[at] = fit.coefficients
            factors[(slice(None), *at)] = fit.factor, fit.low, fit.high
            for key, ratio in zip(keys, fit.ratios, strict=True):
                distance = np.sqrt(self.points[key].distance[part].mean())
                place = (*at, units.index(key[0]), alphas.index(key[1]))
                bound[place] = distance / ratio
        dims = ("part", "power")
        return {
            "bound": ((*dims, "size", "alpha"), bound, _said("c/α^p + a/L + b·α/√(ML), fitted")),
            "coefficient": ((*dims, "term"), coefficients, _said("c, a and b")),
            **{
                f"factor{end}": (dims, factors[n], _said(f"factor within which it fits{_END[end]}"))
                for n, end in enumerate(("", "_low", "_high"))
            },
        }

    def of_mean(self, part: str, alpha: float) -> Array:
        """Return squared distances of the mean ODE to itself at the largest α, by pair (pairs,)."""
        if self.mean is None or not np.isin(alpha, self.mean["alpha"]):
            return np.empty(0)
        here, last = (self.mean[part].sel(alpha=a) for a in (alpha, self.section.alpha[-1]))
        squares = ((here - last) ** 2).transpose("pair", ...).to_numpy()
        found = squares.reshape(len(squares), -1).mean(1)
        return np.asarray(found[np.isfinite(found)])

    def _limit_variables(self) -> dict[str, object]:
        """Return the distance of the mean ODE to itself at the largest α, and what is learned."""
        alphas = self.section.alpha
        away, moved = np.full((3, len(PARTS), len(alphas)), np.nan), np.full(len(PARTS), np.nan)
        for i, part in enumerate(PARTS):
            if self.lazy is not None:
                first, last = (self.lazy[part].isel(step=at) for at in (0, -1))
                moved[i] = np.sqrt(((last - first) ** 2).mean())
            for j, alpha in enumerate(alphas[:-1]):
                squares = self.of_mean(part, alpha)
                if len(squares) > 1:
                    away[:, i, j] = _ends(squares)
        text = "rms distance of the mean ODE to itself at the largest α"
        return {
            **{
                f"mean_distance{end}": (("part", "alpha"), away[n], _said(f"{text}{_END[end]}"))
                for n, end in enumerate(("", "_low", "_high"))
            },
            "moved": ("part", moved, _said("rms distance of the lazy ODE from its initialisation")),
        }


_END = {"": "", "_low": ", lower end", "_high": ", upper end"}


def _said(text: str, units: str = "1") -> dict[str, str]:
    return {"units": units, "description": text}


def lowest(alphas: Array, squares: Array) -> float:
    """Return the α of the minimum of a parabola through the lowest point and its neighbours.

    In log–log; NaN where the lowest point is at an end.
    """
    at = int(np.argmin(squares))
    if at in (0, len(alphas) - 1):
        return float("nan")
    x, y = np.log(alphas[at - 1 : at + 2]), np.log(squares[at - 1 : at + 2])
    curve = np.polyfit(x - x[1], y, 2)
    return float(np.exp(x[1] - curve[1] / (2 * curve[0])))


def _ends(squares: Array) -> tuple[float, float, float]:
    """Return the root of the mean of squares (seeds,), two standard errors below, and above."""
    mean = float(squares.mean())
    error = float(squares.std(ddof=1) / np.sqrt(len(squares)))
    return (
        float(np.sqrt(mean)),
        float(np.sqrt(max(mean - 2 * error, 0.0))),
        float(np.sqrt(mean + 2 * error)),
    )
