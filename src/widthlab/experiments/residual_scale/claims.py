"""Claims of the residual scales, and the table that they are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.claims import Claim, judge_below, judge_sign
from widthlab.experiments.shared.deep_runs import CHANGES, forward_law
from widthlab.scaling import PowerLaw, bootstrap_interval, fit_power_law
from widthlab.theory.deep_limits import LAZY_BOUND, SAMPLING

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.residual_scale import Section
    from widthlab.experiments.shared.base import Measured

Array = NDArray[np.float64]

CHIZAT = "Chizat (2025), theorem on the mean ODE limit"
YANG = "Yang, Yu, Zhu & Hayou (2023); Chizat (2025), on the residual scale"
NAMES = {1.0: "inverse", 0.5: "root", 0.0: "constant"}
"""Names in claims of the exponents that theory speaks of."""
MEASURED = {
    **{name: f"{text}; median over seeds" for name, text in CHANGES.items()},
    "spread_initial": "root of the variance over seeds of h_L before training, per coordinate",
    "spread": "the same after training",
}


def title(exponent: float) -> str:
    """Return the words for a residual scale in figures and claims."""
    if exponent == 0:
        return "constant"
    return {1.0: "1/L", 0.5: "1/√L"}.get(exponent, f"1/L^{exponent:g}")


def spread(embeddings: Array) -> Array:
    """Return the root of the variance over seeds, from (batch, seeds, …) to (batch,)."""
    variance = embeddings.var(axis=1, ddof=1)
    return np.asarray(np.sqrt(variance.reshape(len(variance), -1).mean(axis=1)))


def median(values: Array) -> Array:
    """Return medians over seeds, from (batch, seeds) to (batch,)."""
    return np.asarray(np.median(values, axis=1))


class Table:
    """What was measured, by exponent and depth; holes stay NaN."""

    def __init__(self, section: Section, measured: list[Measured]) -> None:
        self.section = section
        shape = len(section.exponent), len(section.depth)
        self.samples: dict[str, dict[tuple[float, int], Array]] = {n: {} for n in MEASURED}
        self.diverged, self.finite = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.initial = np.nan
        for one in measured:
            cell, statistics = one.cell, one.statistics
            place = cell.exponent, cell.depth
            at = section.exponent.index(place[0]), section.depth.index(place[1])
            for name in CHANGES:
                self.samples[name][place] = statistics[name].to_numpy()
            h = statistics["embedding"].transpose("seed", "step", "input", "coordinate").to_numpy()
            self.samples["spread_initial"][place] = h[:, 0]
            self.samples["spread"][place] = h[:, -1]
            gone = statistics["diverged"].to_numpy() >= 0
            self.diverged[at], self.finite[at] = gone.sum(), (~gone).sum()
            self.initial = float(np.mean(statistics["input_embedding"].to_numpy() ** 2))

    def fit(self, name: str, exponent: float) -> PowerLaw:
        """Fit a power law in depth; seeds that are not finite are left out, and said so."""
        own = [(d, self.samples[name].get((exponent, d))) for d in self.section.depth]
        known = [(depth, values) for depth, values in own if values is not None]
        return fit_power_law(
            [depth for depth, _ in known],
            [values for _, values in known],
            statistic=spread if name.startswith("spread") else median,
        )

    def forward_law(self, exponent: float) -> Array:
        """Return the forward gain at infinite width, by depth: that of the block law."""
        section = self.section
        gains = []
        for depth in section.depth:
            # A block adds the mean of M independent terms, scaled by L^−p.
            alpha = depth**-exponent * section.sigma_v * np.sqrt(section.width / section.hidden)
            args = section.activation, section.sigma_u, float(alpha), self.initial
            gains.append(forward_law(depth, *args))
        return np.array(gains)

    def dataset(self) -> xr.Dataset:
        """Return medians, spreads and their intervals as one dataset."""
        import xarray as xr

        section, dims = self.section, ("exponent", "depth")
        shape = len(section.exponent), len(section.depth)
        variables: dict[str, object] = {}
        for name, text in MEASURED.items():
            found = np.full((3, *shape), np.nan)
            for (exponent, depth), values in self.samples[name].items():
                at = section.exponent.index(exponent), section.depth.index(depth)
                statistic = spread if name.startswith("spread") else median
                if np.isfinite(values.reshape(len(values), -1)).all(1).sum() >= 2:
                    interval = bootstrap_interval(values, statistic)
                    found[:, at[0], at[1]] = interval.value, interval.low, interval.high
            words = ("", text), ("_low", f"low end of the 95 % interval of {name}")
            for (end, about), values in zip(
                (*words, ("_high", f"high end of the 95 % interval of {name}")), found, strict=True
            ):
                variables[f"{name}{end}"] = (dims, values, {"units": "1", "description": about})
        law = np.full(shape, np.nan)
        if np.isfinite(self.initial):
            law = np.stack([self.forward_law(exponent) for exponent in section.exponent])
        about = "forward gain at infinite width, by the block law of the signal variance"
        variables["theory_forward_gain"] = (dims, law, {"units": "1", "description": about})
        for name, counts in (("finite", self.finite), ("diverged", self.diverged)):
            about = f"networks that did{' not' if name == 'finite' else ''} diverge"
            variables[name] = (dims, counts, {"units": "networks", "description": about})
        return xr.Dataset(
            variables,
            {"exponent": section.exponent, "depth": section.depth},
            {
                "experiment": "residual_scale",
                "seeds": section.seeds,
                "width": section.width,
                "hidden": section.hidden,
                "activation": section.activation,
                "steps": section.steps,
                "learning_rate": section.learning_rate,
            },
        )


def claims(section: Section, table: Table) -> list[Claim]:
    """Return the claims of the exponents that theory speaks of."""
    found: list[Claim] = []
    for exponent in section.exponent:
        if exponent == 1.0:
            found += [
                _exponent(
                    table,
                    "spread",
                    exponent,
                    "limit",
                    "the spread over seeds after training vanishes as 1/√L, also at this M: there "
                    "is a deterministic limit",
                    SAMPLING.depth,
                    [0.0, -1.0],
                    CHIZAT,
                ),
                _exponent(
                    table,
                    "local_update",
                    exponent,
                    "features",
                    "local feature updates keep their size as depth grows: every unit learns",
                    0.0,
                    [-0.5, 0.5],
                    CHIZAT,
                ),
            ]
        elif exponent == 0.5:
            found += [
                _exponent(
                    table,
                    "spread",
                    exponent,
                    "random",
                    "the spread over seeds stays as depth grows: networks remain random",
                    0.0,
                    [-0.5, 0.5],
                    YANG,
                ),
                _exponent(
                    table,
                    "local_update",
                    exponent,
                    "lazy",
                    "local feature updates vanish as 1/√L",
                    -0.5,
                    [0.0, -1.0],
                    YANG,
                ),
                _linear(table),
            ]
        elif exponent == 0.0:
            found.append(_explodes(table))
    return found


def _exponent(
    table: Table,
    quantity: str,
    exponent: float,
    name: str,
    words: str,
    predicted: float,
    rivals: list[float],
    source: str,
) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim

    section = table.section
    law = table.fit(quantity, exponent)
    return exponent_claim(
        f"residual_scale.{NAMES[exponent]}.{name}",
        f"{title(exponent)}: {words} (M = {section.hidden}, D = {section.width})",
        source,
        law,
        predicted,
        rivals,
        tolerance=_allowed(section, exponent),
    )


def _linear(table: Table) -> Claim:
    """Judge that layers become lazy at p = ½, where α = √L, by the bound in α."""
    law, section = table.fit("distance_lazy", 0.5), table.section
    allowed = _allowed(section, 0.5)
    bound = -LAZY_BOUND / 2
    verdict, reason = judge_below(bound + allowed, law.exponent, law.low, law.high)
    words = f"exponent in depth: {reason}; {allowed:.2g} allowed for the next order"
    return Claim(
        id="residual_scale.root.blocks",
        experiment="residual_scale",
        statement="1/√L: the distance to the network with linearised blocks falls at least as "
        f"1/√L: layers become lazy (M = {section.hidden}, D = {section.width})",
        source="Chizat (2025), theorem on the lazy regime, at α = √L",
        predicted=bound,
        measured=law.exponent,
        low=law.low,
        high=law.high,
        verdict=verdict,
        reason=f"{words}; {law.reason}" if law.reason else words,
    )


def _allowed(section: Section, exponent: float) -> float:
    """Return by how much next orders at the smallest depth change an exponent.

    They are 1/L of the Euler scheme, and for p = 1 the square of the sampling error.
    """
    first, last = section.depth[0], section.depth[-1]
    order = 1 / first + (section.width / (first * section.hidden) if exponent == 1.0 else 0.0)
    return float(order / np.log(last / first)) if last > first else 0.0


def _explodes(table: Table) -> Claim:
    """Judge that the forward pass grows with depth, where branches are not scaled."""
    law = table.fit("forward_gain", 0.0)
    verdict, reason = judge_sign(1, law.exponent, law.low, law.high)
    gone, all_ = int(table.diverged.sum(1)[-1]), table.section.seeds * len(table.section.depth)
    words = f"exponent of the rms of h_L before training: {reason}"
    words += f"; {gone} of {all_} networks diverged in training"
    return Claim(
        id="residual_scale.constant.explodes",
        experiment="residual_scale",
        statement="constant: the signal grows with depth without bound",
        source=YANG,
        predicted=None,
        measured=law.exponent,
        low=law.low,
        high=law.high,
        verdict=verdict,
        reason=f"{words}; {law.reason}" if law.reason else words,
    )
