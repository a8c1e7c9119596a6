"""Claims of the lazy-ODE experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from widthlab.experiments.lazy_ode import LARGE
from widthlab.experiments.lazy_ode.distances import PARTS, POWERS, TERMS
from widthlab.experiments.shared.deep_tables import WORDS
from widthlab.theory import deep_limits

if TYPE_CHECKING:
    from widthlab.claims import Claim
    from widthlab.experiments.lazy_ode import Size
    from widthlab.experiments.lazy_ode.distances import Distances
    from widthlab.scaling import PowerLaw

Array = NDArray[np.float64]

RESAMPLES = 1000
"""Resamples of the pairs of solutions of the mean ODE."""
SOURCE = "Chizat, The Hidden Width of Deep ResNets (2025): the lazy regime"
SYMMETRIC = (
    "the project's theory: the first order in 1/α is odd under a change of sign of the block's "
    "output, under which Gaussian weights are symmetric"
)
SLOWER = -0.5
"""Exponent in α of the rival to the bound 1/α: a slower decay."""


def claims(distances: Distances) -> list[Claim]:
    """Judge what there are cells for."""
    made: list[Claim] = []
    if not distances.points:
        return made
    made.append(_blocks(distances))
    for part in PARTS:
        if distances.mean is not None:
            made.append(_order(distances, part))
            if distances.lazy is not None:
                made.append(_limit(distances, part))
        made.append(_spread(distances, part))
        if distances.lazy is not None:
            made += [_best(distances, part, power) for power in POWERS]
            made += [_form(distances, part, power) for power in POWERS]
    return made


def _valid(units: int, alphas: list[float]) -> str:
    ends = f"{alphas[0]:g} ≤ α ≤ {alphas[-1]:g}" if alphas else "at no α"
    return f"M·L = {units:,}, {ends}"


def _next_orders(alphas: list[float], order: float) -> float:
    """Return by how much 1/α² at the smallest α and a relative `order` may bend an exponent."""
    if len(set(alphas)) < 2:
        return 0.0
    return float((min(alphas) ** -2 + order) / np.log(max(alphas) / min(alphas)))


def _blocks(distances: Distances) -> Claim:
    """Judge how fast blocks become linear in their weights, at the largest M·L.

    The statement is a bound, C/α: the exponent is at most −1, up to the next orders.
    """
    from widthlab.claims import Claim, judge_below
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    units = distances.sizes[-1].units
    alphas = distances.domain(units)
    samples = [distances.points[units, alpha].blocks for alpha in alphas]
    law = fit_power_law(alphas, samples, statistic=root)
    few = _few(law)
    tolerance = _next_orders(alphas, 1 / LARGE)
    bound = -deep_limits.LAZY_BOUND
    low, high = law.low - tolerance, law.high + tolerance
    # It holds where −1 is allowed for at the upper end, and any slower decay is excluded.
    verdict, reason = judge_below(bound, law.exponent, low, law.high - tolerance)
    if verdict == "holds" and high >= SLOWER:
        verdict = "undecided"
        reason = f"{reason}, but an exponent of {SLOWER:g} is not excluded (up to {high:.3g})"
    reason = f"{reason}; {tolerance:.2g} allowed for the next order"
    return Claim(
        id="lazy_ode.blocks.bound",
        experiment="lazy_ode",
        statement="the distance of a network to the one with blocks linearised about its own "
        f"initial weights is bounded by C/α: its exponent is −1 or less ({_valid(units, alphas)})",
        source=SOURCE,
        predicted=bound,
        measured=law.exponent,
        low=low,
        high=high,
        verdict="undecided" if few else verdict,
        reason=f"{reason}, but {few}" if few else reason,
    )


def _order(distances: Distances, part: str) -> Claim:
    """Judge the order in 1/α of the mean ODE, which has no sampling, against the largest α."""
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_estimates

    largest = distances.section.alpha[-1]
    alphas = [a for a in distances.section.alpha if LARGE <= a <= largest / LARGE]
    squares = distances.of_mean(part, alphas)
    solved = np.flatnonzero(np.isfinite(squares).all(axis=0))
    alphas, squares = [alphas[at] for at in solved], squares[:, solved]
    few = ""
    if len(alphas) < 3:
        few = (
            f"{len(alphas)} of the scales α lie between {LARGE:g} and {1 / LARGE:g} of the largest"
            "; take a larger one or more of them"
        )
    drawn = resampled_together(squares) if len(squares) > 1 else np.full((len(alphas), 1), np.nan)
    y = np.sqrt(squares.mean(0)) if len(squares) else np.full(len(alphas), np.nan)
    law = fit_estimates(alphas, y, list(drawn))
    # Next orders: 1/α², and what is left at the largest α.
    left = (alphas[-1] / largest) ** 2 if alphas else 0.0
    return exponent_claim(
        f"lazy_ode.{part}.symmetric",
        f"the {WORDS[part]} of the mean ODE tends to its limit of large α as 1/α², faster than "
        f"the bound 1/α (against α = {largest:g}, α from {LARGE:g} to {largest / LARGE:g})",
        SYMMETRIC,
        law,
        -deep_limits.LAZY_SYMMETRIC,
        (-deep_limits.LAZY_BOUND,),
        tolerance=0.0 if few else _next_orders(alphas, left),
        caveat=few,
    )


def resampled_together(squares: Array) -> Array:
    """Return roots of means of resampled pairs (alphas, resamples) of squares (pairs, alphas).

    A pair has the same particles at every α, so that all α share the resamples. Deviations of
    logarithms are stretched for few pairs, as in `scaling`: by √(n/(n − 1)), and by Student's
    percentile over the normal one.
    """
    count = len(squares)
    generator = np.random.default_rng(np.random.SeedSequence(0))
    rows = generator.integers(0, count, (RESAMPLES, count))
    stretch = np.sqrt(count / (count - 1)) * student.ppf(0.975, count - 1) / norm.ppf(0.975)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn, y = (0.5 * np.log(own) for own in (squares[rows].mean(1), squares.mean(0)))
        values = np.exp(y + stretch * (drawn - y))
    return np.asarray(values.T)


def _limit(distances: Distances, part: str) -> Claim:
    """Judge the mean ODE at the largest α by the lazy ODE; the rival is the tangent ODE."""
    from widthlab.experiments.shared.verdicts import band_claim

    assert distances.mean is not None
    assert distances.lazy is not None
    section = distances.section
    largest = section.alpha[-1]
    known = distances.mean[part].transpose("alpha", "pair", ...).reindex(alpha=[largest])
    values = known.to_numpy()[0]
    values = values.reshape(len(values), -1)
    first, last = (distances.lazy[part].isel(step=at).to_numpy().reshape(-1) for at in (0, -1))
    # Relative next orders of the limit and of a cubature by P particles.
    order = largest**-2 + section.width / section.particles
    moved = float(np.sqrt(((last - first) ** 2).mean()))
    return band_claim(
        f"lazy_ode.{part}.limit",
        f"the {WORDS[part]} of the mean ODE, solved with particles at α = {largest:g}, is that of "
        "the lazy ODE, and not that of the tangent ODE",
        f"{SOURCE}; the lazy ODE from its kernel",
        last,
        values.mean(0),
        values.std(0, ddof=1) / np.sqrt(len(values)),
        rival=distances.lazy[f"{part}_tangent"].isel(step=-1).to_numpy().reshape(-1),
        labels=[f"coordinate {number}" for number in range(len(last))],
        draws=len(values),
        tolerance=order * moved,
    )


def _few(law: PowerLaw) -> str:
    """Say why a law of α is undecided; empty where it is not."""
    count = sum(law.used)
    if count >= 3:
        return ""
    return f"{count} of the scales α lie in 1 ≪ α ≪ √(ML/D); take a larger L·M or more of them"


def _deep(distances: Distances) -> list[Size]:
    """Return the sizes at which 1/L is at most what 1/α² is at the smallest large α."""
    return [size for size in distances.sizes if size.depth >= LARGE**2]


def _spread(distances: Distances, part: str) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    deep = _deep(distances)
    keys = [
        (size.units, alpha)
        for size in deep
        for alpha in distances.domain(size.units)
        if part in distances.points[size.units, alpha].spread
    ]
    x = [alpha / np.sqrt(units) for units, alpha in keys]
    law = fit_power_law(x, [distances.points[key].spread[part] for key in keys], statistic=root)
    few = _few(law)
    tolerance = 0.0
    if not few:
        # Next orders: 1/α² and α√(D/(ML)) as before, and 1/L, which is at most as large as 1/α².
        shallow = min(size.depth for size in deep)
        order = min(a for _, a in keys) ** -2 + 1 / LARGE + 1 / shallow
        tolerance = float(order / np.log(max(x) / min(x)))
    return exponent_claim(
        f"lazy_ode.{part}.sampling",
        f"the {WORDS[part]} varies over seeds by an amount that grows as α/√(ML), at all sizes "
        f"({LARGE:g} ≤ α ≤ √(ML/D)/{LARGE:g}, L ≥ {LARGE**2:g})",
        SOURCE,
        law,
        1.0,
        (0.5, 2.0, 0.0),
        tolerance=tolerance,
        caveat=few,
    )


def _best(distances: Distances, part: str, power: float) -> Claim:
    """Judge the exponent in M·L of the best α."""
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_estimates

    found = {
        size.units: distances.best[part, size.units]
        for size in _deep(distances)
        if np.isfinite(distances.best.get((part, size.units), (np.nan,))[0])
    }
    caveat, tolerance = "", 0.0
    large = {units: own for units, own in found.items() if own[0] >= LARGE}
    if len(large) >= 3:  # the law is one of 1 ≪ α
        found = large
        # A relative next order 1/α² of c/α^p, at the smallest best α.
        least = min(best for best, _ in found.values())
        tolerance = float(least**-2 / np.log(max(found) / min(found)))
    elif found:
        values = [best for best, _ in found.values()]
        caveat = (
            f"the best α, from {min(values):.3g} to {max(values):.3g}, is large against 1 (at "
            f"least {LARGE:g}) at {len(large)} sizes only; take larger L·M"
        )
    law = fit_estimates(
        list(found), [best for best, _ in found.values()], [own for _, own in found.values()]
    )
    slopes = {p: deep_limits.best_alpha_slope(p) for p in POWERS}
    rivals = (*(slope for p, slope in slopes.items() if p != power), 0.0, 0.5)
    words = "¼" if power == deep_limits.LAZY_BOUND else "1/6"
    order = "1/α" if power == deep_limits.LAZY_BOUND else "1/α²"
    name = "best_alpha" if power == deep_limits.LAZY_BOUND else "best_alpha_symmetric"
    return exponent_claim(
        f"lazy_ode.{part}.{name}",
        f"the α at which the {WORDS[part]} is nearest to the lazy ODE grows as (M·L)^{words}, "
        f"which balances α/√(ML) with {order} (1 ≪ α, L ≥ {LARGE**2:g})",
        SOURCE if power == deep_limits.LAZY_BOUND else SYMMETRIC,
        law,
        slopes[power],
        rivals,
        tolerance=tolerance,
        caveat=caveat,
    )


def _form(distances: Distances, part: str, power: float) -> Claim:
    """Judge the form of the bound; the form with the other power of 1/α is its rival."""
    from widthlab.claims import Claim
    from widthlab.experiments.shared.sums import judge_form

    plain = power == deep_limits.LAZY_BOUND
    form = "{} + a/L + b·α/√(ML)"
    leeway = float(np.sqrt(3))
    common: dict[str, Any] = {
        "id": f"lazy_ode.{part}.{'form' if plain else 'form_symmetric'}",
        "experiment": "lazy_ode",
        "statement": f"{form.format(f'c{TERMS[power][0][1:]}')} describes the distance of the "
        f"{WORDS[part]} to the lazy ODE within a factor of √3, which is what a sum leaves open of "
        "parts that add in quadrature, and nothing less does (1 ≤ α ≤ √(ML/D))",
        "source": SOURCE if plain else SYMMETRIC,
        "predicted": leeway,
    }
    if (part, power) not in distances.fits:
        return Claim(
            **common,
            measured=None,
            low=None,
            high=None,
            verdict="undecided",
            reason="fewer than four points lie in 1 ≤ α ≤ √(ML/D)",
        )
    fit, _ = distances.fits[part, power]
    rivals = {
        f"with {TERMS[p][0]} instead of {TERMS[power][0]}": distances.fits[part, p][0]
        for p in POWERS
        if p != power
    }
    verdict, reason = judge_form(fit, leeway, distances.lesser[part, power], rivals)
    assert fit.intervals is not None
    words = ", ".join(
        f"{name} = {value:.3g} [{low:.3g}, {high:.3g}]"
        for name, value, (low, high) in zip("cab", fit.coefficients, fit.intervals, strict=True)
    )
    return Claim(
        **common,
        measured=fit.factor,
        low=fit.low,
        high=fit.high,
        verdict=verdict,
        reason=f"{reason}; {words}",
    )
