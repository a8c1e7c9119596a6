"""Claims about validity windows: how the depth at which order 1/N fails grows with width.

An expansion in l/N is off at a fixed l/N, so l* ∝ N. Two cases are known to be different. Where
layers multiply q by independent factors, log q is off by a part of order 1/N² for every layer, so
l* ∝ N². And a theory of leading order in a residual branch is off by a part that depends on the
branch and the depth alone, so l* is the same at every width where l/N is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from widthlab.claims import Claim
from widthlab.experiments.shared.laws import (
    scale_free,
    signal_corrections,
    small_branch_corrections,
)
from widthlab.experiments.shared.verdicts import exponent_claim
from widthlab.experiments.variance import windows
from widthlab.experiments.variance.law_claims import growth
from widthlab.specs import Perceptron

if TYPE_CHECKING:
    from widthlab.experiments.variance.comparison import Comparison

FEWEST_LAYERS = 10
"""Fewest layers, by the lower end of its interval, in a window whose scaling is judged."""
SHARE = 0.2
"""Part of the departure at a small branch's window that the order l/N may have."""


def window_claims(
    label: str, architecture: Perceptron, depth: int, cells: Mapping[int, Comparison]
) -> list[Claim]:
    """Judge how the validity windows of one model grow with width.

    A quantity that stays within 5 % at all widths and layers has no claim, nor has a perceptron
    with layer normalisation, whose layers forget.
    """
    if architecture.name == "mlp" and architecture.normalisation == "layer":
        return []
    ends = {width: one.windows for width, one in cells.items()}
    made = []
    for quantity in windows.QUANTITIES:
        own = _of(ends, "complete", quantity)
        if all(np.isinf(one.value) for one in own.values()):
            continue
        claim = _complete_claim(label, architecture, depth, quantity, own)
        if quantity == "mean":
            corrections = signal_corrections(architecture, depth)
            if corrections is not None:
                words = growth(corrections.mean / corrections.block_law)
                claim = claim.model_copy(update={"reason": f"{claim.reason}; {words}"})
        made.append(claim)
    made.extend(
        _small_branch_claim(label, architecture, depth, _of(ends, "small_branch", "variance"))
    )
    return made


def _of(
    ends: Mapping[int, Mapping[tuple[str, str], windows.Window]], theory: str, quantity: str
) -> dict[int, windows.Window]:
    return {
        width: one[theory, quantity] for width, one in ends.items() if (theory, quantity) in one
    }


def _complete_claim(
    label: str,
    architecture: Perceptron,
    depth: int,
    quantity: str,
    own: Mapping[int, windows.Window],
) -> Claim:
    factors = scale_free(architecture) and (
        architecture.name == "mlp"
        or architecture.branch == "two_layer"
        or architecture.activation == "linear"
    )
    squared = factors and quantity == "typical"
    used = _judged(own, own)
    used = [
        width
        for width in used
        if own[width].low >= 2 * _offset(architecture, depth, own[width].value)
    ]
    tolerance = 0.0
    if len(used) > 1:
        narrowest = own[used[0]].value
        left = narrowest - _offset(architecture, depth, narrowest)
        tolerance = float(np.log(narrowest / left) / np.log(used[-1] / used[0]))
    return _claim(
        f"variance.{label}.window_{quantity}",
        f"{label}: the depth l* at which the prediction of order 1/N of the "
        f"{windows.QUANTITIES[quantity]} is {windows.LIMIT:.0%} off is a fixed "
        f"{'l/N², as a sum of independent layers has it' if squared else 'l/N'} "
        "(exponent of l* in N)",
        "expansion in L/N (Roberts, Yaida & Hanin 2022), against the exact law or draws",
        own,
        used,
        (2.0, 1.0) if squared else (1.0, 0.0),
        tolerance,
    )


def _offset(architecture: Perceptron, depth: int, layer: float) -> float:
    """Return how many layers the l of l/N is uncertain by at a layer; l* is to be twice as many.

    One for where counting begins; as many as the embedding's own fluctuation is worth, by the
    theory of order 1/N; and ln l where a signal has to come near its fixed point first, as the
    variance of a critical tanh does, 1/(2l) (1 + O(ln l / l)) (Roberts, Yaida & Hanin 2022).
    """
    approach = 0.0 if scale_free(architecture) else float(np.log(layer))
    corrections = signal_corrections(architecture, depth)
    if corrections is None:
        return 1.0 + approach
    v = corrections.variance / corrections.block_law**2
    return 1.0 + approach + (float(v[0] / (v[1] - v[0])) if v[1] > v[0] else 0.0)


def _small_branch_claim(
    label: str, architecture: Perceptron, depth: int, own: Mapping[int, windows.Window]
) -> list[Claim]:
    """Judge the published theory of small branches where l/N adds little to its own error.

    The complete theory says at which layer the published variance is 5 % off as N → ∞, and from
    which width on the order l/N, a relative error of about v/2, is at most SHARE of that. There,
    l* may be off by the same share. No claim where it is within 5 % at all depths.
    """
    published = small_branch_corrections(architecture, depth)
    complete = signal_corrections(architecture, depth)
    if published is None or complete is None:
        return []
    (end,) = windows.crossing((published.variance / complete.variance - 1)[None])
    if not np.isfinite(end):
        return []
    v = (complete.variance / complete.block_law**2)[int(end)]
    used = _judged(own, [width for width in own if v / width <= 2 * SHARE * windows.LIMIT])
    claim = _claim(
        f"variance.{label}.small_branch_window_variance",
        f"{label}: the depth l* at which the published variance of order 1/N in a small branch is "
        f"{windows.LIMIT:.0%} off is the same at every width where l/N is small (exponent of l* in "
        "N)",
        "Kawase & Ota (2026): leading order in the branch, so the error is one of its size",
        own,
        used,
        (0.0, 1.0),
        SHARE / np.log(used[-1] / used[0]) if len(used) > 1 else 0.0,
    )
    words = f"{claim.reason}; the complete theory of order 1/N says {end:.3g} for N → ∞"
    return [claim.model_copy(update={"reason": words})]


def _judged(own: Mapping[int, windows.Window], widths: Iterable[int]) -> list[int]:
    return [
        width for width in sorted(widths) if own[width].known and own[width].low >= FEWEST_LAYERS
    ]


def _claim(
    identifier: str,
    statement: str,
    source: str,
    own: Mapping[int, windows.Window],
    used: list[int],
    exponents: tuple[float, float],
    tolerance: float,
) -> Claim:
    """Judge the exponent of l* in N at the widths in `used`: predicted and rival."""
    from widthlab.scaling import fit_estimates

    predicted, rival = exponents
    law = fit_estimates(
        used, [own[width].value for width in used], [own[width].resampled for width in used]
    )
    claim = exponent_claim(
        identifier, statement, source, law, predicted, (rival,), tolerance=tolerance
    )
    reason = f"{claim.reason}; fitted at N = {', '.join(map(str, used))}"
    if len(used) < 2:
        reason = (
            "fewer than two widths have an l* in the law's domain that these draws and this depth "
            f"can tell, of at least {FEWEST_LAYERS} layers"
        )
    told = ", ".join(f"N = {width}: {_told(one)}" for width, one in own.items())
    return claim.model_copy(update={"reason": f"{reason}; l* at {told}"})


def _told(one: windows.Window) -> str:
    if not np.isfinite(one.value):
        return one.note
    if one.low == one.high:
        return f"{one.value:.3g}"
    return f"{one.value:.3g} [{one.low:.3g}, {one.high:.3g}]"
