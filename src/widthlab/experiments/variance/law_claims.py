"""Claims of the variance experiment: laws of the signal variance by layer, for one model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.claims import Claim
from widthlab.experiments.shared.verdicts import band_claim
from widthlab.specs import Perceptron

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

SMALL = 0.1
"""Largest l/N at which means of q and q² are compared: beyond, heavy tails hide them."""


LIVING = 8
"""Fewest living draws from which a logarithm's mean and variance are judged."""


def law_claims(label: str, architecture: Perceptron, own: xr.Dataset, draws: int) -> list[Claim]:
    """Judge the block law, the corrections to it and the exact laws that the model has.

    `own` is the sweep at this model and at the widths that were measured.
    """
    depth = int(own["layer"][-1])
    laws = {str(name) for name in own.data_vars if np.isfinite(own[name]).all()}
    made: list[Claim] = []
    shallow = _shallow(own)
    if "block_law" in laws and shallow is not None:
        made.append(_mean_claim(label, shallow, draws, exact="exact_square" in laws))
    if "exact_square" in laws and shallow is not None:
        made.append(_square_claim(label, architecture, shallow, draws))
    for theory in ("corrected", "small_branch"):
        if f"{theory}_shift" in laws and shallow is not None:
            made.extend(_correction_claims(label, theory, own, shallow, draws))
    last = own.sel(layer=depth)
    living = np.floor(last["alive"].to_numpy() * draws + 1e-9)
    last = last.where(last["alive"] * draws >= LIVING)
    fewest = int(living[living >= LIVING].min(initial=draws))
    widths = own["width"].to_numpy()
    # What would be the case if nothing drifted, and if fluctuations fell as 1/√N only.
    slow = np.sqrt(widths[-1] / widths)
    rivals = {
        "log_mean": np.zeros(len(widths)),
        "log_variance": last["exact_log_variance"].to_numpy()[-1] * slow,
    }
    for name, text in (("log_mean", "mean"), ("log_variance", "variance")):
        if f"exact_{name}" in laws:
            made.append(
                _band(
                    f"variance.{label}.{name}",
                    f"{label}: the {text} of log(q/q₀) over draws follows its exact law in N",
                    "Hanin & Nica (2020): sums of ψ and ψ' over layers",
                    last.stack(point=["width"]),
                    (f"exact_{name}", name),
                    rivals[name],
                    fewest,
                    labels=[f"N = {width}, l = {depth}" for width in widths],
                )
            )
    return made


def _shallow(own: xr.Dataset) -> xr.Dataset | None:
    """Return, for every width, the deepest layer with l/N small enough for moments of q."""
    widths = own["width"].to_numpy()
    layers = np.floor(SMALL * widths).astype(int).clip(max=int(own["layer"][-1]))
    few = np.flatnonzero(layers >= 1)
    return None if len(few) == 0 else at_points(own, widths[few], layers[few])


def at_points(own: xr.Dataset, widths: Array, layers: Array) -> xr.Dataset:
    """Return the variables at pairs of a width and a layer, along the dimension `point`."""
    import xarray as xr

    return own.sel(
        width=xr.DataArray(widths, dims="point"), layer=xr.DataArray(layers, dims="point")
    )


def _band(
    identifier: str,
    statement: str,
    source: str,
    points: xr.Dataset,
    names: tuple[str, str],
    rival: Array,
    draws: int,
    *,
    labels: list[str] | None = None,
    tolerance: Array | float = 0.0,
    times: Array | float = 1.0,
) -> Claim:
    """Judge the law names[0] of the measured names[1] at points of (width, layer).

    All numbers are multiplied by `times`, the width where what is judged is a coefficient of 1/N.
    """
    law, measured = names
    if labels is None:
        pairs = zip(points["width"].to_numpy(), points["layer"].to_numpy(), strict=True)
        labels = [f"N = {width}, l = {layer}" for width, layer in pairs]
    return band_claim(
        identifier,
        statement,
        source,
        points[law].to_numpy() * times,
        points[measured].to_numpy() * times,
        points[f"{measured}_error"].to_numpy() * times,
        rival=rival * times,
        labels=labels,
        draws=draws,
        tolerance=tolerance * times,
    )


def _mean_claim(label: str, points: xr.Dataset, draws: int, *, exact: bool) -> Claim:
    """Judge the block law of the mean: exact at every width, or up to order l/N."""
    law = points["block_law"].to_numpy()
    order = law * (points["layer"] / points["width"]).to_numpy()
    if exact:
        words = f"at every width, without any shift of order l/N (depths up to {SMALL:g} N)"
        # The rival: the mean drifts as the typical value does, or by l/N where that is unknown.
        typical = law * np.exp(points["exact_log_mean"].to_numpy())
        rival = np.where(np.isfinite(typical), typical, law - order)
        tolerance = 0.0 * law
    else:
        words = f"up to corrections of order l/N (depths up to {SMALL:g} N)"
        rival, tolerance = np.ones_like(law), order
    return _band(
        f"variance.{label}.mean",
        f"{label}: the mean signal variance follows the block law {words}",
        "block law; Hanin & Nica (2020)" if exact else "Poole et al. (2016); block law",
        points,
        ("block_law", "mean"),
        rival,
        draws,
        tolerance=tolerance,
    )


def _square_claim(label: str, architecture: Perceptron, points: xr.Dataset, draws: int) -> Claim:
    product = architecture.name == "mlp"
    return _band(
        f"variance.{label}.square",
        f"{label}: E (q/q₀)² follows its exact law in N at depths up to {SMALL:g} N",
        "Hanin & Nica (2020): ∏(1 + 5/N) for ReLU, ∏(1 + 2/N) for linear layers, at criticality"
        if product
        else "exact second moment of residual blocks with Gaussian weights",
        points,
        ("exact_square", "square"),
        points["block_law"].to_numpy() ** 2,
        draws,
    )


def _correction_claims(
    label: str, theory: str, own: xr.Dataset, points: xr.Dataset, draws: int
) -> list[Claim]:
    """Judge the corrections of order 1/N, with the next order as tolerance.

    The expansion is one in the fluctuations of q, whose size is the relative variance v (a
    log-normal q has v + v²/2 in place of v). So v leaves v² open, and so does a shift.
    """
    prefix, small = ("", "") if theory == "corrected" else ("small_branch_", " in a small branch")
    source = (
        "Kawase & Ota (2026), leading order in the branch"
        if small
        else "Roberts, Yaida & Hanin (2022), four-point vertex; its analogue for residual streams"
    )
    width = points["width"].to_numpy().astype(float)
    v = points[f"{theory}_relative_variance"].to_numpy()
    embedding = own[f"{theory}_relative_variance"].sel(layer=0, width=points["width"]).to_numpy()
    made = [
        _band(
            f"variance.{label}.{prefix}relative_variance",
            f"{label}: N Var q/q∞² follows the prediction of order 1/N{small} at depths up to "
            f"{SMALL:g} N",
            source,
            points,
            (f"{theory}_relative_variance", "relative_variance"),
            embedding,
            draws,
            tolerance=v**2,
            times=width,
        )
    ]
    shift = points[f"{theory}_shift"].to_numpy()
    told = np.flatnonzero(np.abs(shift) > v**2)  # elsewhere the next order may be as large
    if len(told):
        claim = _band(
            f"variance.{label}.{prefix}shift",
            f"{label}: N (E q/q∞ − 1), the shift of the mean, follows the prediction of order "
            f"1/N{small} at depths up to {SMALL:g} N",
            source,
            points.isel(point=told),
            (f"{theory}_shift", "shift"),
            np.zeros(len(told)),
            draws,
            tolerance=v[told] ** 2,
            times=width[told],
        )
        words = growth(own[f"{theory}_shift"].isel(width=-1).to_numpy())
        made.append(claim.model_copy(update={"reason": f"{claim.reason}; {words}"}))
    return made


def growth(shift: Array) -> str:
    """Say how fast a predicted shift (depth + 1,) grows; where not as l, l/N does not control."""
    depth = len(shift) - 1
    middle = max(depth // 2, 1)
    if depth == middle or not shift[depth] * shift[middle] > 0:
        return "the predicted shift has no power of depth"
    power = np.log(shift[depth] / shift[middle]) / np.log(depth / middle)
    return f"the predicted shift grows as l^{power:.2g} over the deeper half"
