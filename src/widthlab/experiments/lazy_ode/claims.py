"""Claims of the lazy-ODE experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from widthlab.experiments.lazy_ode import LARGE
from widthlab.experiments.lazy_ode.distances import PARTS, POWERS
from widthlab.theory import deep_limits

if TYPE_CHECKING:
    from widthlab.claims import Claim
    from widthlab.experiments.lazy_ode.distances import Distances
    from widthlab.scaling import PowerLaw

SOURCE = "Chizat, The Hidden Width of Deep ResNets (2025): the lazy regime"
SYMMETRIC = (
    "the project's theory: the first order in 1/α is odd under a change of sign of the block's "
    "output, under which Gaussian weights are symmetric"
)
WORDS = {"embedding": "embedding h_L", "output": "output f"}


def claims(distances: Distances) -> list[Claim]:
    """Judge what there are cells for."""
    made: list[Claim] = []
    if not distances.points:
        return made
    made.append(_blocks(distances))
    for part in PARTS:
        if distances.mean is not None:
            made.append(_limit(distances, part))
        made.append(_spread(distances, part))
        if distances.lazy is not None:
            made += [_best(distances, part, power) for power in POWERS]
            made += [_form(distances, part, power) for power in POWERS]
    return made


def _valid(units: int, alphas: list[float]) -> str:
    ends = f"{alphas[0]:g} ≤ α ≤ {alphas[-1]:g}" if alphas else "at no α"
    return f"M·L = {units:,}, {ends}"


def _blocks(distances: Distances) -> Claim:
    """Judge how fast blocks become linear in their weights, at the largest M·L."""
    from widthlab.claims import Claim, judge_below
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    units = distances.sizes[-1].units
    alphas = distances.domain(units)
    samples = [distances.points[units, alpha].blocks for alpha in alphas]
    law = fit_power_law(alphas, samples, statistic=root)
    few = _few(law)
    verdict, reason = judge_below(-deep_limits.LAZY_BOUND, law.exponent, law.low, law.high)
    return Claim(
        id="lazy_ode.blocks.bound",
        experiment="lazy_ode",
        statement="the distance of a network to the one with blocks linearised about its own "
        f"initial weights falls faster than the bound 1/α ({_valid(units, alphas)})",
        source=SOURCE,
        predicted=-deep_limits.LAZY_BOUND,
        measured=law.exponent,
        low=law.low,
        high=law.high,
        verdict="undecided" if few else verdict,
        reason=f"{reason}, but {few}" if few else reason,
    )


def _limit(distances: Distances, part: str) -> Claim:
    """Judge the order in 1/α of the mean ODE, which has no sampling, against the largest α."""
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    largest = distances.section.alpha[-1]
    alphas = [a for a in distances.section.alpha if LARGE <= a <= largest / LARGE]
    alphas = [alpha for alpha in alphas if len(distances.of_mean(part, alpha)) > 1]
    law = fit_power_law(alphas, [distances.of_mean(part, a) for a in alphas], statistic=root)
    few, tolerance = "", 0.0
    if len(alphas) < 3:
        few = (
            f"{len(alphas)} of the scales α lie between {LARGE:g} and {1 / LARGE:g} of the largest"
            "; take a larger one or more of them"
        )
    else:
        # Next orders: 1/α², and what is left at the largest α.
        order = alphas[0] ** -2 + (alphas[-1] / largest) ** 2
        tolerance = float(order / np.log(alphas[-1] / alphas[0]))
    return exponent_claim(
        f"lazy_ode.{part}.symmetric",
        f"the {WORDS[part]} of the mean ODE tends to its limit of large α as 1/α², faster than "
        f"the bound 1/α (against α = {largest:g}, α from {LARGE:g} to {largest / LARGE:g})",
        SYMMETRIC,
        law,
        -deep_limits.LAZY_SYMMETRIC,
        (-deep_limits.LAZY_BOUND,),
        tolerance=tolerance,
        caveat=few,
    )


def _few(law: PowerLaw) -> str:
    """Say why a law of α is undecided; empty where it is not."""
    count = sum(law.used)
    if count >= 3:
        return ""
    return f"{count} of the scales α lie in 1 ≪ α ≪ √(ML/D); take a larger L·M or more of them"


def _spread(distances: Distances, part: str) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import root

    keys = [
        (size.units, alpha)
        for size in distances.sizes
        for alpha in distances.domain(size.units)
        if part in distances.points[size.units, alpha].spread
    ]
    x = [alpha / np.sqrt(units) for units, alpha in keys]
    law = fit_power_law(x, [distances.points[key].spread[part] for key in keys], statistic=root)
    few = _few(law)
    tolerance = 0.0
    if not few:
        # Next orders: 1/α² and α√(D/(ML)) as before, and 1/L.
        shallow = min(size.depth for size in distances.sizes)
        order = min(a for _, a in keys) ** -2 + 1 / LARGE + 1 / shallow
        tolerance = float(order / np.log(max(x) / min(x)))
    return exponent_claim(
        f"lazy_ode.{part}.sampling",
        f"the {WORDS[part]} varies over seeds by an amount that grows as α/√(ML), at all sizes "
        f"({LARGE:g} ≤ α ≤ √(ML/D)/{LARGE:g})",
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
        for size in distances.sizes
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
        f"which balances α/√(ML) with {order} (1 ≪ α)",
        SOURCE if power == deep_limits.LAZY_BOUND else SYMMETRIC,
        law,
        slopes[power],
        rivals,
        tolerance=tolerance,
        caveat=caveat,
    )


def _form(distances: Distances, part: str, power: float) -> Claim:
    from widthlab.claims import Claim, judge_below

    plain = power == deep_limits.LAZY_BOUND
    form = "c/α + a/L + b·α/√(ML)" if plain else "c/α² + a/L + b·α/√(ML)"
    identifier = f"lazy_ode.{part}.{'form' if plain else 'form_symmetric'}"
    leeway = float(np.sqrt(3))
    statement = (
        f"{form} describes the distance of the {WORDS[part]} to the lazy ODE within a factor of "
        "√3, which is what a sum leaves open of parts that add in quadrature (1 ≤ α ≤ √(ML/D))"
    )
    common: dict[str, Any] = {
        "id": identifier,
        "experiment": "lazy_ode",
        "statement": statement,
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
    verdict, reason = judge_below(leeway, fit.factor, fit.low, fit.high)
    c, a, b = fit.coefficients
    assert fit.intervals is not None
    (c_low, c_high), *_ = fit.intervals
    reason += f"; c = {c:.3g} [{c_low:.3g}, {c_high:.3g}], a = {a:.3g}, b = {b:.3g}"
    if verdict == "holds":
        alone = _without(distances, part, power)
        reason += f"; without the first term it needs a factor of {alone:.3g}"
        if alone <= leeway:
            verdict = "undecided"
            reason += ", so that the data do not show it"
    return Claim(
        **common,
        measured=fit.factor,
        low=fit.low,
        high=fit.high,
        verdict=verdict,
        reason=reason,
    )


def _without(distances: Distances, part: str, power: float) -> float:
    """Return the factor within which the form without its first term describes all points."""
    from widthlab.experiments.shared.sums import fit_sum

    _, keys = distances.fits[part, power]
    depths = {size.units: size.depth for size in distances.sizes}
    terms = np.array([distances.terms(depths[key[0]], *key, power)[1:] for key in keys])
    y = np.array([np.sqrt(distances.points[key].distance[part].mean()) for key in keys])
    return fit_sum(terms, y).factor
