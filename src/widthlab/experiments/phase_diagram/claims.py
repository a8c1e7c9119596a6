"""Claims of the phase diagram: how its boundaries scale, and what happens on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.phase_diagram.phases import DOUBLED, VALID
from widthlab.experiments.shared.boundaries import widened
from widthlab.experiments.shared.deep_runs import forward_law
from widthlab.experiments.shared.resampling import Resampled, combine
from widthlab.theory.deep_limits import LAZY_BOUND, LOCAL_UPDATE_SCALE

if TYPE_CHECKING:
    from widthlab.claims import Claim
    from widthlab.experiments.phase_diagram import Section
    from widthlab.experiments.phase_diagram.phases import Maps
    from widthlab.scaling import PowerLaw

Array = NDArray[np.float64]

SOURCE = "Chizat (2025), phase diagram of two-layer perceptron blocks"
ALL_LINEAR = (
    "a linear regime of the whole network, for comparison; the lazy ODE of Chizat (2025), whose "
    "stream moves, does not predict it"
)
LAZY_FROM = 3.0
"""Smallest σ_v/√D at which the lazy law is judged: its next order, D/σ_v², is then a tenth."""
NEXT = LAZY_FROM**-2 + VALID**2
"""Next orders of that law: D/σ_v² at the lower end, σ_v²/(ML) at the upper."""
TOO_FEW = f"fewer than two σ_v lie between {LAZY_FROM:g} √D and ½√(ML)"
AT_SCALE = 2.0
"""Factor from √D within which a σ_v of the grid stands for σ_v = √D."""


def claims(section: Section, maps: Maps) -> list[Claim]:
    """Return the claims of every kind of blocks."""
    found: list[Claim] = []
    for label in section.models:
        found += [*_lazy_boundary(label, maps), _decay(label, maps), _at_scale(label, maps)]
        found += _linearity(label, maps)
        if _reaches_explosion(label, section):
            found += _exploding(label, maps)
    return found


def _lazy_boundary(label: str, maps: Maps) -> list[Claim]:
    section = maps.section
    depth, width = section.depth[-1], section.width[0]
    return [
        _exponent(
            f"phase_diagram.{label}.lazy_width",
            f"{label}: local updates are half of their maximum at σ_v ∝ √D (L = {depth}), as at "
            "first order at these rates",
            LOCAL_UPDATE_SCALE,
            [0.0, 1.0],
            section.width,
            [maps.resampled["lazy_boundary"].get((label, depth, w)) for w in section.width],
            1 / section.width[0],
            "no boundary inside σ_v ≤ ½√(ML); take a larger hidden, or a wider grid of sigma_v",
        ),
        _exponent(
            f"phase_diagram.{label}.lazy_depth",
            f"{label}: the σ_v at which local updates are half of their maximum does not move with "
            f"depth (D = {width})",
            0.0,
            [0.5, -0.5],
            section.depth,
            [maps.resampled["lazy_boundary"].get((label, d, width)) for d in section.depth],
            1 / section.depth[0],
            "no boundary inside σ_v ≤ ½√(ML); take a larger hidden, or a wider grid of sigma_v",
        ),
    ]


def _reaches_explosion(label: str, section: Section) -> bool:
    """Whether the grid's largest σ_v doubles the forward pass at infinite width, at all depths.

    By the block law: with small σ_u much larger σ_v are needed.
    """
    blocks, depth = section.models[label], section.depth[-1]
    scale = section.sigma_v[-1] * np.sqrt(section.width[0] / section.hidden) / depth
    return forward_law(depth, blocks.activation, blocks.sigma_u, float(scale)) > DOUBLED


def _exploding(label: str, maps: Maps) -> list[Claim]:
    section = maps.section
    depth, width = section.depth[-1], section.width[-1]
    missing = "no σ_v of the grid at which either pass doubles; take larger ones"
    return [
        _exponent(
            f"phase_diagram.{label}.exploding_depth",
            f"{label}: forward or backward pass doubles at σ_v ∝ √(ML), that is ∝ √L at fixed M "
            f"(D = {width})",
            0.5,
            [0.0, 1.0],
            section.depth,
            [maps.resampled["exploding_boundary"].get((label, d, width)) for d in section.depth],
            1 / section.depth[0],
            missing,
        ),
        _exponent(
            f"phase_diagram.{label}.exploding_width",
            f"{label}: the σ_v at which forward or backward pass doubles does not depend on D (L = "
            f"{depth})",
            0.0,
            [0.5, -0.5],
            section.width,
            [maps.resampled["exploding_boundary"].get((label, depth, w)) for w in section.width],
            1 / section.width[0],
            missing,
        ),
    ]


def _at_scale(label: str, maps: Maps) -> Claim:
    """Judge that units learn as much at every D where σ_v is √D."""
    section, depth = maps.section, maps.section.depth[-1]
    at = int(np.argmin(np.abs(np.log(maps.sigma))))
    near = 1 / AT_SCALE <= maps.sigma[at] <= AT_SCALE
    updates = [maps.resampled["local_update"].get((label, depth, w)) for w in section.width]
    parts = [None if u is None else combine(lambda m: np.exp(m[..., at]), u) for u in updates]
    return _exponent(
        f"phase_diagram.{label}.mlu",
        f"{label}: at σ_v = {maps.sigma[at]:.3g} √D local updates are of the same size at every D "
        f"(L = {depth})",
        0.0,
        [0.5, -0.5],
        section.width,
        [widened(p, section.draws) if p is not None and near else None for p in parts],
        1 / section.width[0],
        f"σ_v = {maps.sigma[at]:.3g} √D is not near √D, or beyond ½√(ML)",
    )


def _decay(label: str, maps: Maps) -> Claim:
    """Judge the fall of local updates beyond √D, where it is seen over the widest range."""
    x, parts = _beyond(label, maps, "local_update")
    return _exponent(
        f"phase_diagram.{label}.lazy_decay",
        f"{label}: beyond their maximum local updates fall as √D/σ_v, as at first order at these "
        f"rates ({_where(maps)})",
        -1.0,
        [0.0, -0.5],
        x,
        parts,
        NEXT,
        TOO_FEW,
    )


def _linearity(label: str, maps: Maps) -> list[Claim]:
    """Judge whether small updates make networks lazy by each of the other measures.

    These hold against the network what a regime that is linear as a whole would show, where also
    pre-activations and the distance to the tangent network would vanish. Chizat (2025) does not
    say so: in the lazy ODE the stream moves by O(1), and its blocks alone are linear in weights.
    """
    found = []
    for name, words in (
        ("preactivation_change", "the relative change of pre-activations falls"),
        ("distance", "the distance to the linearised (tangent) network falls"),
    ):
        x, parts = _beyond(label, maps, name)
        found.append(
            _exponent(
                f"phase_diagram.{label}.lazy_{'tangent' if name == 'distance' else 'stream'}",
                f"{label}: beyond the largest local update {words} as √D/σ_v, as local updates do "
                f"({_where(maps)})",
                -1.0,
                [0.0, -0.5],
                x,
                parts,
                NEXT,
                TOO_FEW,
                source=ALL_LINEAR,
            )
        )
    return [*found, _blocks(label, maps)]


def _blocks(label: str, maps: Maps) -> Claim:
    """Judge that networks tend to their block-linearised ones, at least as fast as the bound."""
    from widthlab.claims import Claim, judge_below

    x, parts = _beyond(label, maps, "distance_lazy")
    law, allowed, left = _law(x, parts, NEXT, TOO_FEW)
    bound = -LAZY_BOUND + allowed
    verdict, reason = judge_below(bound, law.exponent, law.low, law.high)
    words = [reason, f"{allowed:.2g} allowed for the next order", law.reason, left]
    return Claim(
        id=f"phase_diagram.{label}.lazy_blocks",
        experiment="phase_diagram",
        statement=f"{label}: beyond the largest local update the distance to the network with "
        f"linearised blocks falls at least as √D/σ_v ({_where(maps)})",
        source="Chizat (2025), theorem on the lazy regime, with σ_v/√D in the place of α",
        predicted=-LAZY_BOUND,
        measured=law.exponent,
        low=law.low,
        high=law.high,
        verdict=verdict,
        reason="; ".join(word for word in words if word),
    )


def _beyond(label: str, maps: Maps, name: str) -> tuple[Array, list[Resampled | None]]:
    """Return σ_v/√D of the domain of the lazy law, and a quantity there, largest L, least D."""
    depth, width = maps.section.depth[-1], maps.section.width[0]
    logs = maps.resampled[name].get((label, depth, width))
    chosen = np.flatnonzero(maps.valid(depth, width) & (maps.sigma >= LAZY_FROM))
    parts: list[Resampled | None] = []
    if logs is not None:
        # Draws have the same normal numbers at every σ_v: one joint set of resamples.
        parts = [
            widened(combine(lambda m, at=at: np.exp(m[..., at]), logs), maps.section.draws)
            for at in chosen
        ]
    return maps.sigma[chosen], parts


def _where(maps: Maps) -> str:
    section = maps.section
    return f"D = {section.width[0]}, L = {section.depth[-1]}, {LAZY_FROM:g} √D ≤ σ_v ≤ ½√(ML)"


def _exponent(
    identifier: str,
    statement: str,
    predicted: float,
    rivals: list[float],
    x: Sequence[float] | Array,
    parts: Sequence[Resampled | None],
    order: float,
    missing: str,
    *,
    source: str = SOURCE,
) -> Claim:
    """Judge an exponent from estimates with their resamples, holes left out.

    `order` is the size of the next order's relative correction at one end, which changes the
    exponent by itself over the logarithm of the range.
    """
    from widthlab.experiments.shared.verdicts import exponent_claim

    law, allowed, left = _law(x, parts, order, missing)
    claim = exponent_claim(identifier, statement, source, law, predicted, rivals, tolerance=allowed)
    return claim.model_copy(update={"reason": f"{claim.reason}; {left}"}) if left else claim


def _law(
    x: Sequence[float] | Array, parts: Sequence[Resampled | None], order: float, missing: str
) -> tuple[PowerLaw, float, str]:
    """Return the fit, the exponent's change by the next order, and in words what is left out."""
    from widthlab.scaling import fit_estimates

    known = [
        (float(at), part)
        for at, part in zip(x, parts, strict=False)
        if part is not None and np.isfinite(part.value)
    ]
    places = [at for at, _ in known]
    law = fit_estimates(
        places, [float(part.value) for _, part in known], [part.resamples for _, part in known]
    )
    reach = float(np.log(places[-1] / places[0])) if len(places) > 1 else 1.0
    left = len(x) - len(known)
    words = ""
    if left or len(x) == 1:
        words = f"{left} of {len(x)} points left out: {missing}" if left else "one point only"
    return law, order / reach, words if len(x) else missing
