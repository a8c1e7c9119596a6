"""Distances of networks to the lazy ODE, by size and branch scale, and what is fitted to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.lazy_ode import LARGE, Size
from widthlab.theory.deep_limits import lazy_error

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
TERMS: dict[float, tuple[str, str, str]] = {
    1.0: ("1/α", "1/L", "α/√(ML)"),
    2.0: ("1/α²", "1/L", "α/√(ML)"),
}
"""The terms of the form, by power."""
COEFFICIENTS = ("nonlinear", "euler", "sampling")
RESAMPLES = 400


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
    lesser: dict[tuple[str, float], dict[str, SumFit]] = field(default_factory=dict)
    """The same without one term, by that term; of the same resamples for all of a part."""

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
        from widthlab.experiments.shared.sums import fit_sums_of_seeds

        for part in PARTS:
            keys = [
                (size.units, alpha)
                for size in self.sizes
                for alpha in self.domain(size.units, 1.0)
                if self._is_off(part, (size.units, alpha))
            ]
            if len(keys) < 4:
                continue
            forms = {}
            for power in POWERS:
                full = self._terms(keys, power)
                forms[f"{power:g}"] = full
                for number, term in enumerate(TERMS[power]):
                    forms[f"{power:g} {term}"] = np.delete(full, number, axis=1)
            found = fit_sums_of_seeds(forms, [self.points[key].distance[part] for key in keys])
            for power in POWERS:
                self.fits[part, power] = found[f"{power:g}"], keys
                self.lesser[part, power] = {
                    term: found[f"{power:g} {term}"] for term in TERMS[power]
                }

    def _is_off(self, part: str, key: Key) -> bool:
        """Say whether there is a distance of which a logarithm can be fitted."""
        own = self.points[key].distance.get(part)
        return own is not None and bool(own.mean() > 0)

    def _terms(self, keys: list[Key], power: float) -> Array:
        """Return 1/α^p, 1/L and α/√(ML) (keys, 3)."""
        depths = {size.units: size.depth for size in self.sizes}
        units, alpha = np.array(keys, dtype=np.float64).T
        depth = np.array([depths[own] for own, _ in keys], dtype=np.float64)
        return np.stack(
            [
                lazy_error(
                    alpha,
                    depth,
                    units / depth,
                    power=power,
                    **{name: float(name == own) for name in COEFFICIENTS},
                )
                for own in COEFFICIENTS
            ],
            axis=1,
        )

    # ── the mean ODE ────────────────────────────────────────────────────────────────────────

    def of_mean(self, part: str, alphas: list[float]) -> Array:
        """Return squared distances of the mean ODE to itself at the largest α (pairs, alphas).

        A pair of replicates has the same particles at every α. NaN where it is not solved.
        """
        if self.mean is None:
            return np.full((0, len(alphas)), np.nan)
        known = self.mean[part].transpose("alpha", "pair", ...)
        last = known.reindex(alpha=[self.section.alpha[-1]]).isel(alpha=0)
        squares = (known.reindex(alpha=alphas) - last) ** 2
        found = squares.to_numpy().reshape(len(alphas), squares.sizes["pair"], -1).mean(-1)
        return np.asarray(found.T)


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
