"""Signals and correlations of random networks over draws, beside the recursion of infinite width.

A `Model` is an architecture with its recursion and, where it has one, its phase; the `Draws` of
one width hang on it. What is fitted to them is in `decays`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.depth_scale import decays
from widthlab.experiments.depth_scale.decays import Phase
from widthlab.experiments.shared.resampling import (
    Resampled,
    combine,
    resampled_means,
    resampled_variances,
)
from widthlab.specs import Perceptron, ResidualMLP
from widthlab.statistics.moments import log_ratio

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

RESOLUTION = {"weightfree": 1e-12, "dense": 1e-4}
"""Smallest 1 − c that the arithmetic of an engine resolves to a percent (float64, float32)."""
OFF = 0.1
"""Finite width is felt where the typical 1 − c is this share off the recursion."""
LEVEL = 0.999
"""Confidence of every interval here: a study has some twenty such claims, and of studies in which
all hold, one in fifty then says of one that it fails."""


@dataclass
class Model:
    """One architecture: its recursion from the inputs' correlations, and its draws by width."""

    label: str
    phase: Phase | None
    order: Array
    """Size of effects of finite width by layer, times N, (L + 1,): each layer adds about 1, a
    residual block its branch's share of the variance, and a random embedding 1."""
    signal: Array
    """q at infinite width, (L + 1,); NaN where there is no recursion."""
    correlation: Array
    """c at infinite width, (L + 1, pairs)."""
    cells: list[Draws] = field(default_factory=list)

    @classmethod
    def of(cls, label: str, architecture: Perceptron, start: Array, depth: int) -> Model:
        """Return a model whose pairs of inputs have correlations `start` (pairs,)."""
        law = decays.pair_law(architecture, start, depth) if np.isfinite(start).all() else None
        phase = decays.phase_of(architecture)
        order = np.arange(depth + 1.0)
        if isinstance(architecture, ResidualMLP):
            share = architecture.branch_scale(depth) ** 2 * (architecture.weight_variance or 1.0)
            order = 1 + order * min(1.0, share)
        if law is None:
            nothing = np.full((depth + 1, len(start)), np.nan)
            return cls(label, phase, order, nothing.mean(axis=-1), nothing)
        return cls(label, phase, order, law.first.mean(axis=-1), law.correlation)

    @property
    def log_decorrelation(self) -> Array:
        """log(1 − c) at infinite width, (L + 1, pairs)."""
        return _log_rest(self.correlation, RESOLUTION["weightfree"])

    @property
    def falling(self) -> str:
        """What falls as a power of depth at criticality: signal, decorrelation, or nothing."""
        if self.phase is None or self.phase.name != "critical":
            return ""
        if self.phase.variance == 0:
            return "signal"
        # Linear networks keep all angles.
        turning = np.isnan(self.phase.variance) and not np.allclose(
            self.correlation, self.correlation[0]
        )
        return "decorrelation" if turning else ""

    def curves(self) -> dict[str, Array | float]:
        """Return the curves of infinite width, averaged over pairs, and the limits of theory."""
        found: dict[str, Array | float] = {
            "infinite_signal": self.signal,
            "infinite_correlation": self.correlation.mean(axis=-1),
            "infinite_log_decorrelation": self.log_decorrelation.mean(axis=-1),
        }
        law = np.concatenate([self.signal[:, None], self.correlation], axis=-1)
        for of in ("signal", "correlation"):
            found[f"infinite_{of}_distance"] = self.distance(law, of)
            found[f"infinite_{of}_survival"] = float(self.survival(law, of))
        if self.phase is not None:
            found |= {
                "limit_signal": self.phase.variance,
                "limit_correlation": self.phase.correlation,
                "theory_variance_scale": self.phase.variance_scale,
                "theory_correlation_scale": self.phase.correlation_scale,
            }
        return found

    def distance(self, means: Array, of: str) -> Array:
        """How far means (…, L + 1, 1 + pairs) of q and every c are from where they go, (…, L + 1).

        |q − q*|, or the root mean square over pairs of c − c*; q itself and 1 − c where theory has
        no limit.
        """
        if of == "signal":
            limit = self.phase.variance if self.phase else np.nan
            return np.asarray(np.abs(means[..., 0] - np.nan_to_num(limit)))
        limit = self.phase.correlation if self.phase else 1.0
        return np.asarray(np.sqrt(((means[..., 1:] - limit) ** 2).mean(axis=-1)))

    def survival(self, means: Array, of: str) -> Array:
        """Layer at which a `distance` has fallen to 1/e of its first value, shape (…)."""
        distance = self.distance(means, of)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = distance / distance[..., :1]
        return decays.crossing(-np.nan_to_num(share, nan=1e300, posinf=1e300), -np.exp(-1.0))


@dataclass(frozen=True)
class Draws:
    """The networks of one width: signals and correlations over draws."""

    model: Model
    width: int
    signals: Array
    """q, (draws, L + 1, inputs)."""
    correlations: Array
    """c, (draws, L + 1, pairs)."""
    engine: str

    @classmethod
    def of(cls, statistics: xr.Dataset, width: int, model: Model) -> Draws:
        """Read the statistics of a cell."""
        q = statistics["signal_variance"].transpose("draw", "layer", "input").to_numpy()
        c = statistics["correlation"].transpose("draw", "layer", "pair").to_numpy()
        return cls(model, width, q, c, str(statistics.attrs.get("engine", "dense")))

    @property
    def count(self) -> int:
        """Number of draws."""
        return len(self.signals)

    @property
    def alive(self) -> float:
        """Share of draws whose signals are all finite and not zero at the last layer."""
        last = self.signals[:, -1]
        return float((np.isfinite(last) & (last > 0)).all(axis=1).mean())

    @cached_property
    def log_decorrelations(self) -> Array:
        """log(1 − c) averaged over pairs, (draws, L + 1); NaN in draws that have died.

        And NaN in all draws of a layer where one is not resolved, so that nothing is selected.
        """
        alive = np.asarray(np.isfinite(self.correlations).all(axis=(1, 2)))
        logs = _log_rest(self.correlations, RESOLUTION[self.engine]).mean(axis=-1)
        lost = np.isnan(logs[alive]).any(axis=0)
        return np.where(lost | ~alive[:, None], np.nan, logs)

    @property
    def departure(self) -> Array:
        """log(1 − c) less that of the recursion, averaged over pairs, (draws, L + 1)."""
        return np.asarray(self.log_decorrelations - self.model.log_decorrelation.mean(axis=-1))

    @cached_property
    def means(self) -> Resampled:
        """Means over draws of q (over inputs too) and of every pair's c, (L + 1, 1 + pairs)."""
        q = self.signals.mean(axis=-1, keepdims=True)
        return resampled_means(np.concatenate([q, self.correlations], axis=-1), [self.width, 1])

    @property
    def pair_means(self) -> Array:
        """Means over draws of every pair's c, (L + 1, pairs)."""
        return self.means.value[:, 1:]

    @property
    def signal(self) -> Resampled:
        """E q by layer, (L + 1,)."""
        return combine(lambda m: m[..., 0], self.means)

    @property
    def correlation(self) -> Resampled:
        """E c by layer, averaged over pairs, (L + 1,)."""
        return combine(lambda m: m[..., 1:].mean(axis=-1), self.means)

    @cached_property
    def log_variance(self) -> Resampled:
        """Var log(q_l/q_0) over draws by layer, averaged over inputs, (L + 1,)."""
        layers = range(self.signals.shape[1])
        logs = np.stack([log_ratio(self.signals, layer) for layer in layers], axis=1)
        each = resampled_variances(logs, [self.width, 2])
        return combine(lambda v: v.mean(axis=-1), each)

    @cached_property
    def correlation_variance(self) -> Resampled:
        """Var c over draws by layer, averaged over pairs, (L + 1,)."""
        each = resampled_variances(self.correlations, [self.width, 3])
        return combine(lambda v: v.mean(axis=-1), each)

    def scale(self, of: str) -> Fit | None:
        """Fit ξ_q (`signal`) or ξ_c (`correlation`); None where theory has no finite scale."""
        phase = self.model.phase
        if phase is None or phase.name == "critical":
            return None
        signal = of == "signal"
        limit = phase.variance if signal else phase.correlation
        scale = phase.variance_scale if signal else phase.correlation_scale
        if not (np.isfinite(scale) and scale > 0):
            return None
        columns = [0] if signal else list(range(1, self.means.value.shape[1]))
        curves = self.model.signal[:, None] if signal else self.model.correlation
        parts, allowances = [], []
        for column, curve in zip(columns, (curves - limit).T, strict=True):
            floor = 1 / self.width + self.means.error[:, column]
            layers = decays.window(curve, 1 / scale, floor)
            if layers is None:
                continue
            parts.append((column, layers))
            allowances.append(decays.allowance(curve, 1 / scale, layers, 1 / self.width))
        if not parts:
            return Fit(scale, None, 0.0, 0, len(columns))

        def rates(means: Array) -> Array:
            each = [decays.rate(means[..., column] - limit, layers) for column, layers in parts]
            return np.asarray(np.mean(each, axis=0))

        allowed = float(np.mean(allowances))
        return Fit(scale, combine(rates, self.means), allowed, len(parts), len(columns))

    def summary(self) -> dict[str, Array | float]:
        """Return what the sweep keeps of these draws."""
        typical = resampled_means(self.log_decorrelations, [self.width, 4])
        found: dict[str, Array | float] = {
            "signal": self.signal.value,
            "signal_error": self.signal.error,
            "log_variance": self.log_variance.value,
            "correlation": self.correlation.value,
            "correlation_error": self.correlation.error,
            "correlation_spread": np.sqrt(self.correlation_variance.value),
            "log_decorrelation": typical.value,
            "log_decorrelation_error": typical.error,
        }
        for name, of in (("variance_scale", "signal"), ("correlation_scale", "correlation")):
            fit = self.scale(of)
            if fit is not None:
                found |= _ends(name, *fit.ends(self.count))
        for of in ("signal", "correlation"):
            distance = combine(lambda m, of=of: self.model.distance(m, of), self.means)
            found[f"{of}_distance"] = distance.value
            found[f"{of}_distance_error"] = distance.error
            survival = combine(lambda m, of=of: self.model.survival(m, of), self.means)
            low, high = survival.interval(LEVEL, self.count)
            found |= _ends(f"{of}_survival", survival.value, low, high)
        departure = resampled_means(self.departure, [self.width, 5])
        felt = combine(felt_at, departure)
        low, high = felt.interval(LEVEL, self.count)
        return found | _ends("felt", felt.value, low, high)


@dataclass(frozen=True)
class Fit:
    """A fitted rate 1/ξ beside the scale ξ of theory; no rate where no window was wide enough."""

    theory: float
    rate: Resampled | None
    allowance: float
    """How far the rate may be off in the window: transient, and a shift of order 1/N."""
    used: int
    """Curves (pairs) that had a window, of `asked`."""
    asked: int

    def ends(self, draws: int) -> tuple[float, float, float]:
        """ξ with the ends of its interval, allowance included; NaN where there is no rate."""
        if self.rate is None:
            return np.nan, np.nan, np.nan
        low, high = self.rate.interval(LEVEL, draws)
        slow, fast = float(low) - self.allowance, float(high) + self.allowance
        return float(1 / self.rate.value), 1 / fast, 1 / slow if slow > 0 else np.inf


def felt_at(departure: Array) -> Array:
    """Return the layer at which mean departures (…, L + 1) of log(1 − c) reach 10 %."""
    return decays.crossing(np.nan_to_num(np.abs(departure), nan=0.0), np.log1p(OFF))


def _log_rest(correlation: Array, resolution: float) -> Array:
    rest = 1 - correlation
    known = np.isfinite(rest) & (rest >= resolution)
    return np.where(known, np.log(np.where(known, rest, 1.0)), np.nan)


def _ends(
    name: str, value: Array | float, low: Array | float, high: Array | float
) -> dict[str, float]:
    return {
        name: float(value),
        f"{name}_low": float(low),
        f"{name}_high": float(high),
    }
