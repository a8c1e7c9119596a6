"""Claims on how deep signals and correlations survive, off and at criticality."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from widthlab.claims import Claim, Verdict, judge_value
from widthlab.experiments.depth_scale import decays
from widthlab.experiments.depth_scale.correlations import LEVEL, OFF, Draws, Model, felt_at
from widthlab.experiments.shared.resampling import Resampled, combine
from widthlab.experiments.shared.verdicts import SIGNIFICANCE, band_claim, exponent_claim
from widthlab.scaling import fit_power_law

Array = NDArray[np.float64]

SMALL = 0.1
"""Largest l/N at which means are held against infinite width with l/N as the next order."""
SETTLED = 3.0
"""Depth scales after which fluctuations have settled: what is left falls as exp(−2l/ξ)."""
FIRST = 3.0
"""Smallest layer at which finite width may be felt to count: below, layers are too coarse. The
largest is half of those that are resolved, so that resampled draws get there too."""

SCHOENHOLZ = "Schoenholz et al. (2017): ξ_q = −1/ln χ_∥, ξ_c from the slope at c*"
ROBERTS = "Roberts, Yaida & Hanin (2022)"


def claims(models: list[Model]) -> list[Claim]:
    """Judge every model that has draws, by what theory knows of it."""
    made: list[Claim] = []
    for model in models:
        cells = model.cells
        if not cells:
            continue
        if np.isfinite(model.correlation).all():
            made.append(_mean_claim(model))
        made.extend(_scale_claims(model, cells[-1]))
        if model.falling:
            made.extend(_power_claims(model, cells[-1]))
        phase = model.phase.name if model.phase else ""
        if phase in ("ordered", "chaotic"):
            made.append(_bounded_claim(model, "signal"))
        if phase == "chaotic":
            made.append(_bounded_claim(model, "correlation"))
        # Where correlations stay as they are, there is nothing to feel.
        moves = model.correlation.size and abs(model.correlation[-1] - model.correlation[0]).min()
        if phase in ("ordered", "critical") and moves > 1e-9:
            made.append(_felt_claim(model))
    return made


# ── the recursion ───────────────────────────────────────────────────────────────────────────


def _mean_claim(model: Model) -> Claim:
    """Judge the mean correlation by layer at every width, with l/N for the next order."""
    points = [
        (cell, layer)
        for cell in model.cells
        for layer in np.flatnonzero(model.order <= SMALL * cell.width)
        if layer > 0
    ]
    law = model.correlation.mean(axis=-1)
    layers = np.array([layer for _, layer in points], dtype=int)
    widths = np.array([cell.width for cell, _ in points])
    whole = {id(cell): cell.correlation for cell in model.cells}
    return band_claim(
        f"depth_scale.{model.label}.mean",
        f"{model.label}: the mean correlation of two inputs follows the recursion of infinite "
        f"width up to order l/N (depths up to {SMALL:g} N)",
        "Poole et al. (2016); Schoenholz et al. (2017)",
        law[layers],
        np.array([whole[id(cell)].value[layer] for cell, layer in points]),
        np.array([whole[id(cell)].error[layer] for cell, layer in points]),
        # The rival: inputs keep the correlation that they came with.
        rival=np.full(len(points), law[0]),
        labels=[f"N = {cell.width}, l = {layer}" for cell, layer in points],
        draws=min(cell.count for cell in model.cells),
        tolerance=model.order[layers] / np.maximum(widths, 1),
    )


# ── off criticality ─────────────────────────────────────────────────────────────────────────


def _scale_claims(model: Model, cell: Draws) -> list[Claim]:
    """Judge ξ_q and ξ_c at the largest width, wherever theory has a finite one."""
    made = []
    phase = model.phase
    for name, of, words in (
        ("xi_q", "signal", "the signal variance goes to q* with the depth scale ξ_q"),
        ("xi_c", "correlation", "correlations go to c* with the depth scale ξ_c"),
    ):
        fit = cell.scale(of)
        if phase is None or fit is None:
            continue
        rivals = [fit.theory / 2, 2 * fit.theory]
        other = phase.correlation_scale if of == "signal" else phase.variance_scale
        # The other quantity's scale, and that of the other phase, by the slope at c = 1.
        rivals += [other] if np.isfinite(other) and not np.isclose(other, fit.theory) else []
        if of == "correlation" and phase.name == "chaotic":
            rivals.append(float(1 / np.abs(np.log(phase.perpendicular))))
        value, low, high = fit.ends(cell.count)
        verdict, reason = judge_value(fit.theory, value, low, high, rivals)
        more = (
            f"{fit.allowance:.2g} allowed in 1/ξ for the transient and a shift of 1/N"
            if fit.rate is not None
            else "no three layers lie between the transient and the noise floor, "
            "so it takes more width and draws"
        )
        curves = "" if of == "signal" else f"; {fit.used} of {fit.asked} pairs have such layers"
        made.append(
            Claim(
                id=f"depth_scale.{model.label}.{name}",
                experiment="depth_scale",
                statement=f"{model.label} ({phase.name}): {words} of theory, in layers",
                source=SCHOENHOLZ,
                predicted=fit.theory,
                measured=value,
                low=low,
                high=high,
                verdict=verdict,
                reason=f"{reason}; N = {cell.width}; {more}{curves}",
            )
        )
    return made


def _bounded_claim(model: Model, of: str) -> Claim:
    """Judge whether fluctuations have stopped to grow with depth, over all widths together."""
    signal = of == "signal"
    half = (len(model.signal) - 1) // 2

    def growth(cell: Draws) -> Resampled:
        whole = cell.log_variance if signal else cell.correlation_variance
        return combine(lambda v: np.log(v[..., -1] / v[..., half]), whole)

    parts = [growth(cell) for cell in model.cells]
    whole = combine(lambda *values: np.mean(values, axis=0), *parts)
    low, high = whole.interval(LEVEL, min(cell.count for cell in model.cells))
    ends = [float(np.exp(v)) for v in (whole.value, low, high)]
    scale = 0.0
    if model.phase is not None:
        scale = model.phase.variance_scale if signal else model.phase.correlation_scale
    caveat = ""
    if half < SETTLED * scale:
        caveat = f"L/2 = {half} is less than {SETTLED:g} depth scales of {scale:.3g} layers"
    verdict, reason = judge_value(1.0, ends[0], ends[1], ends[2], [2.0], caveat=caveat)
    what = "log q" if signal else "the correlation of two inputs"
    return _claim(
        model,
        f"{of}_bounded",
        f"the variance over draws of {what} stops to grow with depth (layer L against L/2)",
        f"{ROBERTS}: below criticality layers forget; a sum over layers would double",
        1.0,
        ends,
        verdict,
        f"{reason}; mean over {len(parts)} widths",
    )


# ── at criticality ──────────────────────────────────────────────────────────────────────────


def _power_claims(model: Model, cell: Draws) -> list[Claim]:
    """Judge the power law of what falls at criticality, at the largest width."""
    signal = model.falling == "signal"
    depth = min(len(model.signal) - 1, int(SMALL * cell.width))
    law = model.signal if signal else 1 - model.correlation.mean(axis=-1)
    mean = cell.signal if signal else combine(lambda c: 1 - c, cell.correlation)
    law, mean = law[: depth + 1], combine(lambda m: m[..., : depth + 1], mean)
    asymptotic = -1.0 if signal else -2.0
    what = "the signal variance" if signal else "1 − c of two inputs"
    caveat = "" if depth >= 8 else f"L = {depth} is too shallow; take larger widths"
    if depth < 4:
        return []
    predicted = decays.quarters(law)
    # What a departure of l/N from the recursion would change.
    shift = np.arange(depth + 1) / cell.width
    allowed = np.max(
        [np.abs(decays.quarters(law * np.exp(sign * shift)) - predicted) for sign in (-1, 1)],
        axis=0,
    )
    found = combine(decays.quarters, mean)
    low, high = found.interval(LEVEL, cell.count)
    made = []
    for at, name, text, rivals in (
        (
            0,
            "exponent",
            f"{what} falls as the power of depth that the recursion has between L/4 and L "
            f"({asymptotic:g} in the end)",
            [0.0, asymptotic / 2, 2 * asymptotic],
        ),
        (
            1,
            "no_scale",
            f"{what} loses as much from L/4 to L/2 as from L/2 to L, in logarithms: a power law "
            "has no depth scale (an exponential would lose twice as much)",
            [2.0],
        ),
    ):
        value = float(found.value[at])
        ends = float(low[at] - allowed[at]), float(high[at] + allowed[at])
        verdict, reason = judge_value(float(predicted[at]), value, *ends, rivals, caveat=caveat)
        more = f"N = {cell.width}, L = {depth} ≤ {SMALL:g} N; {allowed[at]:.2g} allowed for l/N"
        made.append(
            _claim(
                model,
                name,
                text,
                f"{ROBERTS}, ch. 5; Schoenholz et al. (2017)",
                float(predicted[at]),
                [value, *ends],
                verdict,
                f"{reason}; {more}",
            )
        )
    return made


# ── finite width ────────────────────────────────────────────────────────────────────────────


def _felt_claim(model: Model) -> Claim:
    """Judge how the depth at which a pair feels finite width grows with width."""
    depth = len(model.signal) - 1
    resolved = int(np.isfinite(model.log_decorrelation.mean(axis=-1)).sum()) - 1
    widths, samples, layers = [], [], []
    for cell in model.cells:
        departure = cell.departure
        rows = departure[np.isfinite(departure[:, 0])]
        known = np.asarray(np.isfinite(rows).all(axis=0))
        end = len(known) if known.all() else int(np.argmin(known))
        at = float(felt_at(rows[:, :end].mean(axis=0))) if len(rows) and end > 1 else np.nan
        if FIRST <= at <= (end - 1) / 2:
            widths.append(cell.width)
            samples.append(rows[:, :end])
            layers.append(at)
    law = fit_power_law(widths, samples, statistic=_felt, seed=0, level=1 - SIGNIFICANCE)
    # A layer more or less, which the first ones may lack or have, against the smallest depth.
    reach = np.log(widths[-1] / widths[0]) if len(widths) > 1 else 1.0
    tolerance = 1 / layers[0] / reach if layers else 0.0
    left = len(model.cells) - len(widths)
    caveat = ""
    if left and len(widths) < 2:
        caveat = f"L = {depth} ({resolved} resolved) is too shallow or too deep for {left} widths"
    claim = exponent_claim(
        f"depth_scale.{model.label}.felt",
        f"{model.label}: the depth at which finite width is felt by a pair of inputs (typical "
        f"1 − c {100 * OFF:g} % off the recursion) grows in proportion to N",
        f"{ROBERTS}: what controls finite width is L/N",
        law,
        1.0,
        (0.0, 0.5),
        tolerance=tolerance,
        caveat=caveat,
    )
    words = f"{len(widths)} of {len(model.cells)} widths cross between layers {FIRST:g} and L/2"
    return claim.model_copy(update={"reason": f"{claim.reason}; {words}"})


def _felt(departure: Array) -> Array:
    """From (batch, draws, L + 1) to the layer where the mean over draws is felt, (batch,).

    L, the least that it can be, where it is not felt at all.
    """
    return np.nan_to_num(felt_at(departure.mean(axis=1)), nan=departure.shape[-1] - 1)


def _claim(
    model: Model,
    name: str,
    statement: str,
    source: str,
    predicted: float,
    ends: list[float],
    verdict: Verdict,
    reason: str,
) -> Claim:
    phase = f" ({model.phase.name})" if model.phase else ""
    return Claim(
        id=f"depth_scale.{model.label}.{name}",
        experiment="depth_scale",
        statement=f"{model.label}{phase}: {statement}",
        source=source,
        predicted=predicted,
        measured=ends[0],
        low=ends[1],
        high=ends[2],
        verdict=verdict,
        reason=reason,
    )
