"""Claims of many networks at once: the two limits, the collapse on M·L, the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.deep_networks import NEXT_ORDER
from widthlab.experiments.shared.deep_tables import WORDS
from widthlab.theory import deep_limits

if TYPE_CHECKING:
    from widthlab.claims import Claim
    from widthlab.experiments.mean_ode.errors import Errors, Size

Array = NDArray[np.float64]

SOURCE = "Chizat, The Hidden Width of Deep ResNets (2025)"
QUARTER = f"D/(ML) ≤ {NEXT_ORDER:g}"


def limits(errors: Errors, part: str) -> Claim:
    """Judge that the two limits agree; their rival is the limit one recorded step before."""
    from widthlab.experiments.shared.verdicts import band_claim

    assert errors.limit is not None
    assert errors.reference is not None
    steps = errors.steps
    particles, networks = (d.sel(step=steps[-1]) for d in (errors.limit, errors.reference))
    flat = {
        name: values.to_numpy().reshape(-1)
        for name, values in {
            "particles": particles[part],
            "networks": networks[part],
            "particles_error": particles[f"{part}_error"],
            "networks_error": networks[f"{part}_error"],
        }.items()
    }
    section = errors.section
    return band_claim(
        f"mean_ode.{part}.limits",
        f"the {WORDS[part]} of the mean ODE solved with particles in depth is that of networks of "
        f"L·M = {section.reference.depth * section.reference.hidden:,}, averaged over seeds and "
        f"extrapolated in depth, after {section.steps} steps",
        f"{SOURCE}: the mean ODE is the limit of training",
        flat["particles"],
        flat["networks"],
        np.hypot(flat["particles_error"], flat["networks_error"]),
        rival=errors.limit[part].sel(step=steps[-2]).to_numpy().reshape(-1),
        labels=[f"coordinate {number}" for number in range(len(flat["particles"]))],
        draws=1 + _freedom(flat, section.reference.seeds, section.replicates),
    )


def _freedom(flat: dict[str, Array], seeds: int, replicates: int) -> int:
    """Return the least degrees of freedom of two errors in quadrature, by Satterthwaite."""
    first, second = flat["networks_error"] ** 2, flat["particles_error"] ** 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        parts = first**2 / (seeds - 1) + second**2 / (replicates - 1)
        freedom = (first + second) ** 2 / parts
    # Errors that are zero, or whose squares are, have none: then the least there can be.
    known = freedom[np.isfinite(freedom)]
    return int(known.min()) if len(known) else min(seeds, replicates) - 1


def collapse(errors: Errors, part: str) -> Claim | None:
    """Judge that networks of equal ML vary alike, by the deepest of each group."""
    from widthlab.experiments.shared.verdicts import band_claim

    last = errors.section.steps
    groups: dict[int, list[Size]] = {}
    for size, point in sorted(errors.points[part].items()):
        if errors.domain(*size) and NEXT_ORDER * size[0] >= 1 and last in point.spread:
            groups.setdefault(size[0] * size[1], []).append(size)
    law: list[float] = []
    measured: list[float] = []
    error: list[float] = []
    rival: list[float] = []
    order: list[float] = []
    names: list[str] = []
    seeds: list[int] = []
    for group in groups.values():
        *others, deep = group
        for size in others:
            values = [errors.points[part][s].spread[last] for s in (size, deep)]
            own, truth = (float(np.sqrt(v.mean())) for v in values)
            if min(own, truth) <= 0:
                continue
            errors_of = np.array([0.5 * v.std(ddof=1) / np.sqrt(len(v) * v.mean()) for v in values])
            law.append(truth)
            measured.append(own)
            error.append(float(np.hypot(*errors_of)))
            rival.append(truth * float(np.sqrt(deep[0] / size[0])))
            order.append(1 / size[0])
            names.append(f"M = {size[1]}, L = {size[0]} (against M = {deep[1]}, L = {deep[0]})")
            seeds += [len(v) for v in values]
    if not law:
        return None
    return band_claim(
        f"mean_ode.{part}.collapse",
        f"the spread over seeds of the {WORDS[part]} is the same for networks of equal M·L, up to "
        f"corrections of relative order 1/L ({QUARTER})",
        f"{SOURCE}: the hidden width of a deep network is M·L",
        np.array(law),
        np.array(measured),
        np.array(error),
        # The rival: depth alone governs.
        rival=np.array(rival),
        labels=names,
        draws=min(seeds),
        tolerance=np.array(law) * np.array(order),
    )


def bound(errors: Errors) -> Claim:
    """Judge that a sum of two terms describes all errors, and that neither does alone."""
    from widthlab.claims import Claim
    from widthlab.experiments.shared.sums import judge_form

    fit, _ = errors.fits["embedding"]
    leeway = float(np.sqrt(2))
    verdict, reason = judge_form(fit, leeway, errors.lesser["embedding"], {})
    a, b = fit.coefficients
    assert fit.intervals is not None
    (a_low, a_high), (b_low, b_high) = fit.intervals
    reason += f"; a = {a:.3g} [{a_low:.3g}, {a_high:.3g}], b = {b:.3g} [{b_low:.3g}, {b_high:.3g}]"
    if a > 0 and b > 0:
        crossing = deep_limits.depth_of_crossing(1.0, errors.section.width, euler=a, sampling=b)
        reason += f"; the Euler term is the larger one at L < {crossing:.3g}·M"
    return Claim(
        id="mean_ode.embedding.bound",
        experiment="mean_ode",
        statement="a/L + b·√(D/(ML)) describes all errors of the embedding within a factor of √2, "
        "which is what a sum leaves open of parts that add in quadrature, and neither term does "
        f"alone ({QUARTER}, 1/L ≤ {NEXT_ORDER:g})",
        source=f"{SOURCE}: the error bound of two-layer blocks",
        predicted=leeway,
        measured=fit.factor,
        low=fit.low,
        high=fit.high,
        verdict=verdict,
        reason=reason,
    )
