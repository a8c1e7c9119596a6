"""Claims of the variance experiment across widths: distribution, scaling and collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp, kstest, kstwobign, norm

from widthlab.claims import Claim, Verdict
from widthlab.experiments.shared.laws import scale_free, signal_corrections
from widthlab.experiments.shared.verdicts import SIGNIFICANCE, band_claim, exponent_claim
from widthlab.experiments.variance.law_claims import at_points
from widthlab.specs import Perceptron

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.variance.comparison import Comparison

Array = NDArray[np.float64]

LEADING = 0.25
"""Largest L/N at which the leading order in 1/N is judged by an exponent."""
LARGEST = 5.0
"""N times the relative variance that a layer adds: ReLU's, the largest of the usual ones."""


def distribution_claim(label: str, cells: Mapping[int, Comparison]) -> Claim | None:
    """Judge the distribution of q_L of one input by Kolmogorov–Smirnov tests at all widths.

    The rival is what infinite-width thinking would expect: a Gaussian with the mean and variance of
    order 1/N. None without an exact law.
    """
    known = {width: one for width, one in cells.items() if len(one.exact) and one.corrected}
    if not known:
        return None
    tests = {width: ks_2samp(one.last, one.exact) for width, one in known.items()}
    worst = min(tests, key=lambda width: tests[width].pvalue)
    p = min(1.0, len(tests) * float(tests[worst].pvalue))
    gaussian = min(
        1.0,
        len(tests)
        * min(
            float(kstest(one.last, norm(one.corrected[0], one.corrected[1] ** 0.5).cdf).pvalue)
            for one in known.values()
            if one.corrected
        ),
    )
    reason = (
        f"the least likely of {len(tests)} widths is N = {worst}, p = {p:.2g} after correction; "
        f"the Gaussian of the same mean and variance to order 1/N has p = {gaussian:.2g}"
    )
    verdict: Verdict = "holds"
    if p < SIGNIFICANCE:
        verdict = "fails"
    elif gaussian >= SIGNIFICANCE:
        verdict, reason = "undecided", f"{reason}, so the draws do not tell the two apart"
    own = known[worst]
    effective = len(own.last) * len(own.exact) / (len(own.last) + len(own.exact))
    reach = float(kstwobign.isf(SIGNIFICANCE / len(tests)) / effective**0.5)
    distance = float(tests[worst].statistic)
    return Claim(
        id=f"variance.{label}.distribution",
        experiment="variance",
        statement=f"{label}: q at the last layer has its exact distribution at every width "
        "(largest distance between distribution functions)",
        source="exact law of independent layers (Hanin & Nica 2020), or the residual chain of q",
        predicted=0.0,
        measured=distance,
        low=max(0.0, distance - reach),
        high=distance + reach,
        verdict=verdict,
        reason=reason,
    )


def scaling_layer(architecture: Perceptron, section_widths: Sequence[int], depth: int) -> int:
    """Return the layer at which scaling with width is judged: L, or where the order 1/N leads.

    The deepest at which three widths, or all, are in the domain of the claim.
    """
    third = sorted(section_widths)[-3:][0]
    inside = np.flatnonzero(_parameter(architecture, depth)[1:] <= LEADING * third)
    return 1 + int(inside[-1]) if len(inside) else 1


def _parameter(architecture: Perceptron, depth: int) -> Array:
    """Return N times the expansion's parameter by layer, (depth + 1,), in ascending order.

    It is l/N, or the relative variance of q where that is larger; where layers multiply q by
    independent factors, log q is a sum and l/N is all that there is.
    """
    layer = np.arange(depth + 1.0)
    corrections = None if scale_free(architecture) else signal_corrections(architecture, depth)
    if corrections is None:
        return layer
    v = corrections.variance / corrections.block_law**2
    return np.maximum.accumulate(np.maximum(layer, v))


def scaling_claim(
    label: str, architecture: Perceptron, depth: int, layer: int, logs: Mapping[int, Array]
) -> Claim:
    """Judge the fall of Var log q with width; `logs` are log(q_l/q_0) (draws, inputs) by width.

    They are those of `layer` in networks of a depth.
    """
    from widthlab.scaling import fit_power_law

    parameter = _parameter(architecture, depth)[layer]
    widths = [width for width in logs if parameter <= LEADING * width]
    law = fit_power_law(widths, [logs[width] for width in widths], statistic=_variance, seed=0)
    # Corrections are of relative order 5/N (ReLU's own constant) where layers are independent, and
    # of the order of the expansion's parameter elsewhere.
    reach = np.log(widths[-1] / widths[0]) if len(widths) > 1 else 1.0
    next_order = LARGEST if scale_free(architecture) else parameter
    tolerance = next_order / widths[0] / reach if widths else 0.0
    claim = exponent_claim(
        f"variance.{label}.exponent",
        f"{label}: the variance of log q over draws falls as 1/N at fixed depth, where l/N"
        f"{' and Var q/q∞²' if parameter > layer else ''} ≤ {LEADING:g}",
        "Roberts, Yaida & Hanin (2022): fluctuations are of order L/N",
        law,
        -1.0,
        (-0.5, -2.0),
        tolerance=tolerance,
    )
    return claim.model_copy(update={"reason": f"{claim.reason}; at layer {layer}"})


def _variance(values: Array) -> Array:
    """Variance over draws of each input, averaged: (batch, draws, inputs) → (batch,)."""
    return np.asarray(values.var(axis=1, ddof=1).mean(axis=-1))


def collapse_claim(label: str, own: xr.Dataset, draws: int) -> Claim | None:
    """Judge whether Var log q at equal l/N is the same at neighbouring widths.

    Compared at the largest common l/N and at half of it. At fixed l/N both 1/N and 1/l are of order
    1/N: what is left open is 5/N (ReLU's own constant) and 1/l, of the narrower network. The rival:
    fluctuations controlled by l/√N. None where no two widths have a layer in common.
    """
    pairs = _common(own["width"].to_numpy().tolist(), int(own["layer"][-1]))
    if not pairs:
        return None
    (n, layer), (wide, deep) = (np.array(side).T for side in zip(*pairs, strict=True))
    narrow, broad = at_points(own, n, layer), at_points(own, wide, deep)
    ratio = (broad["log_variance"] / narrow["log_variance"]).to_numpy()
    errors = [
        (one["log_variance_error"] / one["log_variance"]).to_numpy() for one in (narrow, broad)
    ]
    claim = band_claim(
        f"variance.{label}.collapse",
        f"{label}: Var log q depends on l/N alone (logarithm of its ratio between neighbouring "
        "widths at equal l/N)",
        "Hanin & Nica (2020); Roberts, Yaida & Hanin (2022): L/N controls",
        np.zeros(len(ratio)),
        np.log(ratio),
        np.hypot(*errors),
        rival=np.log(wide / n) / 2,
        labels=[f"N = {a}, l = {b} and N = {c}, l = {d}" for (a, b), (c, d) in pairs],
        draws=draws,
        tolerance=LARGEST / n + 1 / layer,
    )
    words = f"{claim.reason}; {_growth(own)}"
    return claim.model_copy(update={"reason": words})


def _growth(own: xr.Dataset) -> str:
    """Say how Var log q grows with depth at the widest: falling as 1/N, it collapses if as l."""
    depth, widest = int(own["layer"][-1]), own.isel(width=-1)
    half = max(depth // 2, 1)
    last, middle = (float(widest["log_variance"].sel(layer=layer)) for layer in (depth, half))
    if not (last > 0 and middle > 0 and depth > half):
        return "it has no growth with depth to speak of"
    power = np.log(last / middle) / np.log(depth / half)
    return (
        f"at N = {int(widest['width'])} it grows as l^{power:.2g} over the deeper half, and what "
        "falls as 1/N collapses if it grows as l"
    )


def _common(widths: list[int], depth: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return ((N, l), (N', l')) of equal l/N for neighbouring widths, as deep as there are."""
    pairs = []
    for narrow, wide in pairwise(widths):
        step = wide // np.gcd(narrow, wide)
        deepest = depth // step * step
        for deep in sorted({deepest, deepest // 2 // step * step} - {0}):
            pairs.append(((narrow, int(deep * narrow // wide)), (wide, int(deep))))
    return pairs
