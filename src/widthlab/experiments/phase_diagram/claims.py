"""Claims of the phase diagram: how its boundaries scale, and what happens on either side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.phase_diagram.phases import DOUBLED, VALID
from widthlab.experiments.shared.boundaries import widened
from widthlab.experiments.shared.resampling import Resampled, combine
from widthlab.theory.block_law import residual_variance

if TYPE_CHECKING:
    from widthlab.claims import Claim
    from widthlab.experiments.phase_diagram import Section
    from widthlab.experiments.phase_diagram.phases import Maps

Array = NDArray[np.float64]

SOURCE = "Chizat (2025), phase diagram of two-layer perceptron blocks"
LAZY_FROM = 3.0
"""Smallest σ_v/√D at which the lazy law is judged: its next order, D/σ_v², is then a tenth."""
AT_SCALE = 2.0
"""Factor from √D within which a σ_v of the grid stands for σ_v = √D."""


def claims(section: Section, maps: Maps) -> list[Claim]:
    """Return the claims of every kind of blocks."""
    found: list[Claim] = []
    for label in section.models:
        found += [*_lazy_boundary(label, maps), _decay(label, maps), _at_scale(label, maps)]
        if _reaches_explosion(label, section):
            found += _exploding(label, maps)
    return found


def _lazy_boundary(label: str, maps: Maps) -> list[Claim]:
    section = maps.section
    depth, width = section.depth[-1], section.width[0]
    return [
        _exponent(
            f"phase_diagram.{label}.lazy_width",
            f"{label}: the boundary of the lazy phase lies at σ_v ∝ √D (L = {depth})",
            0.5,
            [0.0, 1.0],
            section.width,
            [maps.resampled["lazy_boundary"].get((label, depth, w)) for w in section.width],
            1 / section.width[0],
            "no boundary inside σ_v ≤ ½√(ML); take a larger hidden, or a wider grid of sigma_v",
        ),
        _exponent(
            f"phase_diagram.{label}.lazy_depth",
            f"{label}: the boundary of the lazy phase does not move with depth (D = {width})",
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
    law = residual_variance(
        1.0,
        depth,
        blocks.activation,
        1.0,
        0.0,
        alpha=float(scale),
        inner_variance=blocks.sigma_u**2,
    )
    return bool(law[-1] > DOUBLED**2)


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
    """Judge the fall of local updates in the lazy phase, where it is seen over the widest range."""
    section, depth, width = maps.section, maps.section.depth[-1], maps.section.width[0]
    update = maps.resampled["local_update"].get((label, depth, width))
    chosen = np.flatnonzero(maps.valid(depth, width) & (maps.sigma >= LAZY_FROM))
    parts: list[Resampled | None] = []
    if update is not None:
        # Draws have the same normal numbers at every σ_v: one joint set of resamples.
        parts = [
            widened(combine(lambda m, at=at: np.exp(m[..., at]), update), section.draws)
            for at in chosen
        ]
    # Next orders: D/σ_v² at the lower end, σ_v²/(ML) at the upper.
    order = LAZY_FROM**-2 + VALID**2
    return _exponent(
        f"phase_diagram.{label}.lazy_decay",
        f"{label}: in the lazy phase local updates fall as √D/σ_v (D = {width}, L = {depth}, "
        f"{LAZY_FROM:g} √D ≤ σ_v ≤ ½√(ML))",
        -1.0,
        [0.0, -0.5],
        maps.sigma[chosen],
        parts,
        order,
        f"fewer than two σ_v lie between {LAZY_FROM:g} √D and ½√(ML)",
    )


def _exponent(
    identifier: str,
    statement: str,
    predicted: float,
    rivals: list[float],
    x: Sequence[float] | Array,
    parts: Sequence[Resampled | None],
    order: float,
    missing: str,
) -> Claim:
    """Judge an exponent from estimates with their resamples, holes left out.

    `order` is the size of the next order's relative correction at one end, which changes the
    exponent by itself over the logarithm of the range.
    """
    from widthlab.experiments.shared.verdicts import exponent_claim
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
    claim = exponent_claim(
        identifier, statement, SOURCE, law, predicted, rivals, tolerance=order / reach
    )
    left = len(x) - len(known)
    if not left and len(x) > 1:
        return claim
    words = f"{left} of {len(x)} points left out: {missing}" if left else "the grid has one point"
    if not len(x):
        words = missing
    return claim.model_copy(update={"reason": f"{claim.reason}; {words}"})
