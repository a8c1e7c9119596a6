"""Maps over the grid: geometric means over draws, the phase of every point, and the boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from widthlab.experiments.shared.boundaries import fall_from_peak, first_above, widened
from widthlab.experiments.shared.deep_runs import CHANGES, RATE
from widthlab.experiments.shared.resampling import Resampled, combine, resampled_means

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.phase_diagram import Section
    from widthlab.experiments.shared.base import Measured

Array = NDArray[np.float64]
Place = tuple[str, int, int]
"""Label, depth and width."""

PHASES = ("MLU", "lazy", "exploding", "nothing learned", "small updates")
"""By number; −1 where nothing is measured."""
VALID = 0.5
"""Largest σ_v/√(ML) of the domain of the lazy law, which asks for much less than 1."""
LAZY = 0.5
"""Local update over its maximum below which a network of a larger σ_v has small updates."""
LINEAR = 0.1
"""Distance to the block-linearised network below which one of small updates is lazy."""
KEPT = 1.0
"""Relative change of pre-activations below which it is: else training replaced what units see."""
DOUBLED = 2.0
"""Gain of the forward or of the backward pass above which a network is exploding."""
LEARNED = 0.9
"""Loss reached over the loss before above which nothing is learned; above 1 it is exploding."""
MAPPED = {**CHANGES, "learning_rate": RATE}
LAZINESS = ("local_update", "preactivation_change", "distance", "distance_lazy")
"""Measures of laziness: all are small in a network that is lazy in every sense."""
BOUNDARIES = {
    "lazy_boundary": "σ_v where the local update is half of its maximum over σ_v",
    "exploding_boundary": "σ_v where the forward or the backward pass doubles before training",
}


class Maps:
    """What was measured, by label, depth and width; holes stay NaN."""

    def __init__(self, section: Section, measured: list[Measured]) -> None:
        self.section = section
        self.labels = list(section.models)
        self.sigma = np.array(section.sigma_v)
        shape = len(self.labels), len(section.depth), len(section.width), len(self.sigma)
        self.found = {
            f"{name}{end}": np.full(shape, np.nan) for name in MAPPED for end in ("", *_ENDS)
        }
        self.finite, self.diverged = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.phase = np.full(shape, -1)
        self.boundary = {
            f"{name}{end}": np.full(shape[:3], np.nan)
            for name in BOUNDARIES
            for end in ("", *_ENDS)
        }
        self.resampled: dict[str, dict[Place, Resampled]] = {
            name: {} for name in (*BOUNDARIES, *LAZINESS)
        }
        for one in measured:
            self._fill(one)

    def valid(self, depth: int, width: int) -> NDArray[np.bool_]:
        """Whether σ_v, in units of √D, is in the domain of the lazy law."""
        return np.asarray(self.sigma <= self.valid_end(depth) / np.sqrt(width))

    def valid_end(self, depth: int) -> float:
        """σ_v at which that domain ends."""
        return float(VALID * np.sqrt(depth * self.section.hidden))

    def _fill(self, one: Measured) -> None:
        section, cell = self.section, one.cell
        place = one.label, cell.depth, cell.width
        at = (
            self.labels.index(one.label),
            section.depth.index(cell.depth),
            section.width.index(cell.width),
        )
        logs = {}
        for name in MAPPED:
            values = one.statistics[name].transpose("draw", "sigma_v").to_numpy()
            with np.errstate(divide="ignore", invalid="ignore"):
                log = np.log(values)
            logs[name] = np.where(np.isfinite(log), log, np.nan)
            mean, half = _mean(logs[name])
            self.found[name][at] = np.exp(mean)
            self.found[f"{name}_low"][at] = np.exp(mean - half)
            self.found[f"{name}_high"][at] = np.exp(mean + half)
        gone = one.statistics["diverged"].transpose("draw", "sigma_v").to_numpy() >= 0
        self.finite[at], self.diverged[at] = (~gone).sum(0), gone.sum(0)
        names = (*LAZINESS, "forward_gain", "backward_gain")
        # Draws have the same embedding and readout at every depth, and are resampled together.
        root = [at[0], cell.width]
        joint = resampled_means(np.stack([logs[n] for n in names], axis=1), root)
        valid = self.valid(cell.depth, cell.width)
        for number, name in enumerate(LAZINESS):
            self.resampled[name][place] = combine(
                lambda m, number=number: np.where(valid, m[..., number, :], np.nan), joint
            )
        update = self.resampled["local_update"][place]
        scale = float(np.sqrt(cell.width))
        lazy = combine(lambda m: scale * fall_from_peak(self.sigma, m, LAZY), update)
        gain = combine(lambda m: np.fmax(m[..., -2, :], m[..., -1, :]), joint)
        # What bends least between points, so that a boundary between them is where it should be.
        blocks = cell.blocks.activation
        excess = combine(lambda m: growth(m, blocks), gain)
        double = growth(np.log(DOUBLED), blocks).item()
        bursts = combine(lambda m: scale * first_above(self.sigma, m, double), excess)
        for name, edge in (("lazy_boundary", lazy), ("exploding_boundary", bursts)):
            wide = widened(edge, cell.draws)
            self.resampled[name][place] = wide
            self.boundary[name][at] = wide.value
            if np.isfinite(wide.resamples).all():
                ends = np.quantile(wide.resamples, (0.025, 0.975))
                for end, value in zip(_ENDS, ends, strict=True):
                    self.boundary[f"{name}{end}"][at] = value
        self.phase[at] = self._phases(at, valid)

    def _phases(self, at: tuple[int, int, int], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        own = {name: self.found[name][at] for name in MAPPED}
        update = np.where(valid & np.isfinite(own["local_update"]), own["local_update"], -np.inf)
        top = int(np.argmax(update))
        beyond = np.arange(len(self.sigma)) > top
        exploding = self.diverged[at] > self.finite[at]
        for gain in ("forward_gain", "backward_gain"):
            exploding |= ~(own[gain] <= DOUBLED)
        exploding |= ~(own["loss_ratio"] <= 1.0)
        linear = (own["distance_lazy"] < LINEAR) & (own["preactivation_change"] < KEPT)
        phase = np.where(
            beyond & (own["local_update"] < LAZY * update[top]), np.where(linear, 1, 4), 0
        )
        phase = np.where(own["loss_ratio"] > LEARNED, 3, phase)
        return np.asarray(np.where(exploding, 2, phase))

    def dataset(self) -> xr.Dataset:
        """Return maps, phases and boundaries as one dataset, σ_v in units of √D."""
        import xarray as xr

        section, dims = self.section, ("model", "depth", "width", "sigma_v")
        texts = {
            **MAPPED,
            **{
                f"{n}_{e}": f"{e} end of the 95 % interval of {n}"
                for n in MAPPED
                for e in ("low", "high")
            },
        }
        edges = {
            **BOUNDARIES,
            **{
                f"{n}_{e}": f"{e} end of the 95 % interval of {n}"
                for n in BOUNDARIES
                for e in ("low", "high")
            },
        }
        variables: dict[str, object] = {
            name: (dims, self.found[name], {"units": "1", "description": text})
            for name, text in texts.items()
        }
        variables |= {
            name: (dims[:3], self.boundary[name], {"units": "1", "description": text})
            for name, text in edges.items()
        }
        counts = {
            "finite": (self.finite, "networks", "networks that did not diverge"),
            "diverged": (self.diverged, "networks", "networks that diverged"),
            "phase": (self.phase, "1", f"number in {', '.join(PHASES)}; −1 where unmeasured"),
        }
        variables |= {
            name: (dims, values, {"units": unit, "description": text})
            for name, (values, unit, text) in counts.items()
        }
        end = [self.valid_end(depth) for depth in section.depth]
        about = {"units": "1", "description": "σ_v at which the domain of the lazy law ends"}
        variables["valid_end"] = ("depth", end, about)
        return xr.Dataset(
            variables,
            {
                "model": self.labels,
                "depth": section.depth,
                "width": section.width,
                "sigma_v": ("sigma_v", self.sigma, {"units": "sqrt(D)"}),
                "activation": ("model", [b.activation for b in section.models.values()]),
                "sigma_u": (
                    "model",
                    [b.sigma_u for b in section.models.values()],
                    {"units": "sqrt(D)"},
                ),
            },
            {
                "experiment": "phase_diagram",
                "draws": section.draws,
                "hidden": section.hidden,
                "steps": section.steps,
                "share": section.share,
                "largest_rate": section.learning_rate,
            },
        )


_ENDS = ("_low", "_high")


def growth(log_gain: Array | float, activation: str) -> Array:
    """Return the logarithm of what is about ∝ σ_v² in a gain of random blocks; −∞ below gain 1.

    Bounded blocks add to the mean square of the signal: gain² − 1. Homogeneous ones multiply it:
    log gain².
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_square = 2 * np.maximum(log_gain, 0.0)
        return np.asarray(np.log(log_square if activation == "relu" else np.expm1(log_square)))


def _mean(logs: Array) -> tuple[Array, Array]:
    """Return means over draws (draws, points), and half of Student's 95 % intervals."""
    count = np.isfinite(logs).sum(0)
    filled = np.where(np.isfinite(logs), logs, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(count > 0, filled.sum(0) / count, np.nan)
        square = np.where(np.isfinite(logs), (logs - mean) ** 2, 0.0).sum(0) / (count - 1)
        half = student.ppf(0.975, np.maximum(count - 1, 1)) * np.sqrt(square / count)
    return mean, np.where(count > 1, half, np.nan)
