"""Claims of the mean-ODE experiment."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from widthlab.experiments.mean_ode.errors import PARTS
from widthlab.experiments.mean_ode.together import (
    QUARTER,
    SOURCE,
    bound,
    collapse,
    limits,
)
from widthlab.experiments.shared.deep_networks import NEXT_ORDER
from widthlab.experiments.shared.deep_tables import WORDS
from widthlab.theory import deep_limits

if TYPE_CHECKING:
    from widthlab.claims import Claim
    from widthlab.experiments.mean_ode.errors import Errors, Size
    from widthlab.scaling import PowerLaw

Array = NDArray[np.float64]

LIMIT_RESAMPLES = 400
"""Resamples of the solutions of the limit: only their spread is used."""


def claims(errors: Errors) -> list[Claim]:
    """Judge what there are cells for."""
    made: list[Claim] = []
    if errors.limit is not None and errors.reference is not None:
        made += [limits(errors, part) for part in PARTS]
    for part in PARTS:
        if not errors.points[part]:
            continue
        made += [_euler(errors, part), _by_depth(errors, part), _by_hidden(errors, part)]
        if errors.widths[part]:
            made.append(_by_width(errors, part))
        made.append(_thin(errors, part))
        found = collapse(errors, part)
        made += [] if found is None else [found]
        made.append(_training(errors, part))
    if "embedding" in errors.fits:
        made.append(bound(errors))
    return made


def _euler(errors: Errors, part: str) -> Claim:
    from widthlab.experiments.shared.shifts import FLOORS
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import distance

    # The hidden width with most depths at which the bias would be seen, of several the largest.
    by_hidden = {of: errors.bias_sizes(part, of) for _, of in errors.points[part]}
    hidden = max(by_hidden, key=lambda of: (len(by_hidden[of]), of))
    sizes = by_hidden[hidden]
    depths = [at for at, _ in sizes]
    law = fit_power_law(
        depths, [errors.points[part][size].halves for size in sizes], statistic=distance
    )
    few = len(depths) < 3
    if not few:
        law = _with_the_limit(law, errors, part, sizes)
    return _exponent(
        f"mean_ode.{part}.euler",
        f"the mean over seeds of the {WORDS[part]} is off the limit by an amount that falls as 1/L "
        f"(Euler error; M = {hidden}, 1/L ≤ {NEXT_ORDER:g})",
        law,
        deep_limits.EULER.depth,
        (-0.5, -2.0),
        1 / depths[0] if depths else 0.0,
        caveat=(
            f"at {len(depths)} depths only is the bias, falling as 1/L, {FLOORS:g} times the noise "
            "of the mean; take more seeds at that hidden width"
            if few
            else ""
        ),
    )


def _with_the_limit(law: PowerLaw, errors: Errors, part: str, sizes: list[Size]) -> PowerLaw:
    """Widen the interval by the limit's own error, which all depths have in common.

    Solutions of the limit are resampled in either half, the same at all depths; Student's interval
    with the degrees of freedom of one half, in quadrature with that over seeds.
    """
    from widthlab.statistics.kernel_moments import distance

    solutions = errors.limit_halves(part)
    count = solutions.shape[1]
    generator = np.random.default_rng(np.random.SeedSequence(0))
    rows = generator.integers(0, count, (LIMIT_RESAMPLES, 2, count))
    drawn = np.take_along_axis(solutions[None], rows[..., None], axis=2).mean(2)
    shifts = drawn - solutions.mean(1)
    means = [errors.points[part][size].halves.mean(0) for size in sizes]
    biases = np.stack([distance((mean - shifts)[:, None]) for mean in means], 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(biases)
    if not np.isfinite(logs).all():
        lost = "the bias vanishes in some resamples of the limit"
        return replace(law, low=float("nan"), high=float("nan"), reason=lost)
    weights = 1 / np.array(law.log_error)
    slopes = np.polyfit(np.log([at for at, _ in sizes]), logs.T, 1, w=weights)[0]
    stretch = student.ppf(0.975, count - 1) * np.sqrt(count / (count - 1))
    half = float(stretch * slopes.std(ddof=1))
    return replace(
        law,
        low=law.exponent - float(np.hypot(law.exponent - law.low, half)),
        high=law.exponent + float(np.hypot(law.high - law.exponent, half)),
    )


def _spread_law(
    errors: Errors, part: str, sizes: list[Size], axis: int, step: int, level: float = 0.95
) -> PowerLaw:
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    x = [size[axis] for size in sizes]
    samples = [errors.points[part][size].spread[step] for size in sizes]
    return fit_power_law(x, samples, statistic=root, level=level)


def _thin_sizes(errors: Errors, part: str, step: int) -> list[Size]:
    """Return the sizes of the smallest M at which the law can be judged, by depth."""
    hidden = min(of for _, of in errors.points[part])
    return [
        (at, of)
        for (at, of), point in sorted(errors.points[part].items())
        if of == hidden and errors.domain(at, of) and step in point.spread
    ]


def _order(errors: Errors, size: Size, *, depth: bool) -> float:
    """Return the size of the next order at a network: D/(ML), and 1/L where depth changes."""
    at, hidden = size
    return errors.section.width / (at * hidden) + (1 / at if depth else 0.0)


def _by_depth(errors: Errors, part: str) -> Claim:
    last = errors.section.steps
    sizes = _thin_sizes(errors, part, last)
    law = _spread_law(errors, part, sizes, 0, last)
    hidden = min(of for _, of in errors.points[part])
    return _exponent(
        f"mean_ode.{part}.sampling_depth",
        f"the {WORDS[part]} varies over seeds by an amount that falls as L^-½ (M = {hidden}, "
        f"{QUARTER})",
        law,
        deep_limits.SAMPLING.depth,
        (-1.0, 0.0),
        _order(errors, sizes[0], depth=True) if sizes else 0.0,
    )


def _by_hidden(errors: Errors, part: str) -> Claim:
    last = errors.section.steps
    by_depth: dict[int, list[Size]] = {}
    for size, point in sorted(errors.points[part].items()):
        if errors.domain(*size) and last in point.spread:
            by_depth.setdefault(size[0], []).append(size)
    # The depth with most hidden widths, of several the deepest: its next order is smallest.
    depth = max(by_depth, key=lambda at: (len(by_depth[at]), at), default=0)
    sizes = by_depth.get(depth, [])
    law = _spread_law(errors, part, sizes, 1, last)
    return _exponent(
        f"mean_ode.{part}.sampling_hidden",
        f"the {WORDS[part]} varies over seeds by an amount that falls as M^-½ (L = {depth}, "
        f"{QUARTER})",
        law,
        deep_limits.SAMPLING.hidden,
        (-1.0, 0.0),
        _order(errors, sizes[0], depth=False) if sizes else 0.0,
    )


def _by_width(errors: Errors, part: str) -> Claim:
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    sweep = errors.section.width_sweep
    widths = errors.widths_in_domain(part)
    law = fit_power_law(widths, [errors.widths[part][w] for w in widths], statistic=root)
    if part == "embedding":
        predicted, rivals = deep_limits.SAMPLING.width, (0.0, 1.0)
        words, source = "grows as D^½", SOURCE
    else:
        # The rival 1 is a companion paper's fit, D/(ML).
        predicted, rivals = deep_limits.SAMPLING_OUTPUT.width, (0.5, 1.0)
        words = "does not depend on D"
        source = (
            "widthlab.theory.deep_limits: the coordinates of the embedding vary independently at "
            "initialisation, and average in the readout; not a published statement"
        )
    return _exponent(
        f"mean_ode.{part}.sampling_width",
        f"the {WORDS[part]} varies over seeds by an amount that {words} (L = {sweep.depth}, M = "
        f"{sweep.hidden}, {QUARTER}, inputs and outputs at most D/4; mean over draws of W_E and "
        "W_U)",
        law,
        predicted,
        rivals,
        # The next order is n/D at the narrowest and D/(ML) at the widest.
        errors.crowd / widths[0] + widths[-1] / (sweep.depth * sweep.hidden) if widths else 0.0,
        source=source,
    )


def _thin(errors: Errors, part: str) -> Claim:
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    last = errors.section.steps
    sizes = [s for s in _thin_sizes(errors, part, last) if last in errors.points[part][s].total]
    hidden = min(of for _, of in errors.points[part])
    samples = [errors.points[part][size].total[last] for size in sizes]
    law = fit_power_law([at for at, _ in sizes], samples, statistic=root)
    return _exponent(
        f"mean_ode.{part}.thin",
        f"networks of hidden width {hidden} tend to the mean ODE as they get deeper: the distance "
        f"of the {WORDS[part]} falls as L^-½ ({QUARTER})",
        law,
        deep_limits.SAMPLING.depth,
        (-1.0, 0.0),
        _order(errors, sizes[0], depth=True) if sizes else 0.0,
    )


def _training(errors: Errors, part: str) -> Claim:
    """Judge the exponent in L of the thinnest networks after every recorded step.

    Each step by the rule for exponents, at a level corrected for their number; the worst verdict
    is that of the claim.
    """

    steps = errors.steps[1:]
    judged: list[Claim] = []
    for step in steps:
        sizes = _thin_sizes(errors, part, step)
        judged.append(
            _exponent(
                f"mean_ode.{part}.training",
                f"the spread over seeds of the {WORDS[part]} falls as L^-½ after every step of "
                f"training, not at initialisation only (exponents; {QUARTER})",
                _spread_law(errors, part, sizes, 0, step, 1 - 0.05 / len(steps)),
                deep_limits.SAMPLING.depth,
                (-1.0, 0.0),
                _order(errors, sizes[0], depth=True) if sizes else 0.0,
                source=f"{SOURCE}: propagation of chaos along training",
            )
        )
    order = ["fails", "undecided", "holds"]
    worst = min(judged, key=lambda claim: order.index(claim.verdict))
    count = ", ".join(
        f"{sum(claim.verdict == word for claim in judged)} {word}" for word in reversed(order)
    )
    step = steps[judged.index(worst)]
    return worst.model_copy(
        update={"reason": f"after step {step}: {worst.reason}; {count} of {len(steps)} steps"}
    )


def _exponent(
    identifier: str,
    statement: str,
    law: PowerLaw,
    predicted: float,
    rivals: tuple[float, ...],
    order: float,
    *,
    caveat: str = "",
    source: str = SOURCE,
) -> Claim:
    """Judge an exponent; `order` is the relative next order at the end where it is largest."""
    from widthlab.experiments.shared.verdicts import exponent_claim

    return exponent_claim(
        identifier,
        statement,
        source,
        law,
        predicted,
        rivals,
        tolerance=0.0 if caveat else _tolerance(law, order),
        caveat=caveat,
    )


def _tolerance(law: PowerLaw, order: float) -> float:
    """Return what a relative correction of this order, at one end, does to the exponent."""
    x = law.x
    return float(order / np.log(max(x) / min(x))) if len(set(x)) > 1 else 0.0
