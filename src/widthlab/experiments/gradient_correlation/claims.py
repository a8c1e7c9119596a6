"""Claims of gradients at initialisation: correlations, sizes, and the imbalance of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.backward_laws import exact_backwards, sign_symmetric
from widthlab.specs import Perceptron

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.experiments.gradient_correlation import Section
    from widthlab.scaling import PowerLaw

Array = NDArray[np.float64]
Samples = dict[tuple[str, int], tuple[Array, Array]]
"""By model and width: m22 and m2 below the last layer (draws, inputs, 2), and |g_l|² from the last
layer backwards (draws, layers, inputs)."""

SMALL = 0.1
"""Largest k/N at which moments are compared: beyond, heavy tails hide them."""
LEADING = 0.25
"""Largest L/N at which the leading order in 1/N is judged by an exponent."""
NEXT = 5.0
"""What 1/N is multiplied by in corrections to one layer's fluctuation: ReLU's own constant."""


def fits(section: Section, samples: Samples) -> dict[str, PowerLaw]:
    """Fit Var log(|g_1|²/|g_L|²) as a power of the width where L/N ≤ LEADING, by model."""
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.moments import log_ratio

    laws = {}
    for label in section.models:
        widths = [
            width
            for width in section.width
            if (label, width) in samples and section.depth <= LEADING * width
        ]
        logs = [log_ratio(samples[label, width][1], section.depth - 1) for width in widths]
        laws[label] = fit_power_law(widths, logs, statistic=_variance, seed=0)
    return laws


def slopes(section: Section, laws: dict[str, PowerLaw]) -> xr.Dataset:
    """Return the exponents of the imbalance's variance by model, with their intervals."""
    import xarray as xr

    texts = {
        "slope": ("exponent", "exponent in N of Var log(|g_1|²/|g_L|²)"),
        "slope_low": ("low", "lower end of the 95 % interval of slope"),
        "slope_high": ("high", "upper end of the 95 % interval of slope"),
    }
    return xr.Dataset(
        {
            name: (
                "model",
                [float(getattr(law, of)) for law in laws.values()],
                {"units": "1", "description": text},
            )
            for name, (of, text) in texts.items()
        },
        coords={"model": list(section.models)},
    )


def claims(
    section: Section, dataset: xr.Dataset, samples: Samples, laws: dict[str, PowerLaw]
) -> list[Claim]:
    """Judge correlations, sizes and imbalance of every model by the laws that it has."""
    made: list[Claim] = []
    for label, architecture in section.models.items():
        present = [width for width in section.width if (label, width) in samples]
        if not present:
            continue
        own = dataset.sel(model=label, width=present)
        draws = int(own["draws"].min())
        exact = exact_backwards(architecture)
        if exact:
            made.append(_exact_claim(label, own, draws))
        elif np.isfinite(own["leading"]).all():
            made.append(_leading_claim(label, own, draws))
        made.append(_exponent_claim(label, present, samples))
        made.append(_signed_claim(label, architecture, own, draws))
        if np.isfinite(own["backward_law"]).all():
            made.append(_norm_claim(label, own, draws, exact=exact))
        if section.depth < 2:
            continue
        if exact:
            made.extend(_imbalance_claims(label, own, draws))
        made.append(_imbalance_exponent(label, section, laws[label]))
    return [_explained(claim, section.models[claim.id.split(".")[1]]) for claim in made]


def _explained(claim: Claim, architecture: Perceptron) -> Claim:
    """Add to what fails why a critical point that is stable from below only makes it fail."""
    if claim.verdict != "fails" or architecture.activation not in ("gelu", "silu"):
        return claim
    why = (
        f"the critical point of {architecture.activation} is stable from below only: a signal "
        "whose variance has strayed above it runs away along the layers, and with it the gradient, "
        "so that orders in 1/N end at a smaller L/N than elsewhere"
    )
    return claim.model_copy(update={"reason": f"{claim.reason}; {why}"})


def _points(own: xr.Dataset, names: tuple[str, ...], largest: float) -> pd.DataFrame:
    """Return hidden layers with k = 1, 2, 4, … layers above and k/N small enough, as a table.

    Neighbouring layers know much of one another, and every comparison more widens the band.
    """
    own = own.sel(layer=own["layer"] > 0)
    data = own[[*names, "layers_above"]].to_dataframe().reset_index()
    small = data["layers_above"] <= np.maximum(largest * data["width"], 1)
    return data[small & data["layers_above"].isin(2 ** np.arange(31))]


def _named(data: pd.DataFrame) -> list[str]:
    return [f"N = {n}, k = {k}" for n, k in zip(data["width"], data["layers_above"], strict=True)]


# ── correlations ────────────────────────────────────────────────────────────────────────────


def _exact_claim(label: str, own: xr.Dataset, draws: int) -> Claim:
    from widthlab.experiments.shared.verdicts import band_claim, errors_of_variances

    data = _points(own, ("exact", "squared", "squared_error"), SMALL)
    law, measured = data["exact"].to_numpy(), data["squared"].to_numpy()
    return band_claim(
        f"gradient_correlation.{label}.exact",
        f"{label}: squared gradients of two neurons are correlated by (1 + c/N)ᵏ − 1 with k "
        f"layers above (c = 5 for ReLU, 2 for linear), at k up to {SMALL:g} N",
        "Hanin (2018); Hanin & Nica (2020)",
        law,
        measured,
        errors_of_variances(law, measured, data["squared_error"].to_numpy()),
        labels=_named(data),
        draws=draws,
        rival=np.zeros(len(data)),
    )


def _leading_claim(label: str, own: xr.Dataset, draws: int) -> Claim:
    """Judge the law of leading order that any activation has.

    The rival is the law of ReLU or of linear layers, whichever is further from it.
    """
    from widthlab.experiments.shared.verdicts import band_claim, errors_of_variances
    from widthlab.theory.finite_width import fluctuation

    data = _points(own, ("leading", "squared", "squared_error"), SMALL)
    law, measured = data["leading"].to_numpy(), data["squared"].to_numpy()
    width = data["width"].to_numpy()
    relu, linear = (
        np.expm1(data["layers_above"].to_numpy() * np.log1p(fluctuation(name) / width))
        for name in ("relu", "linear")
    )
    return band_claim(
        f"gradient_correlation.{label}.leading",
        f"{label}: the correlation of two neurons' squared gradients is that of leading order in "
        f"1/N, up to its own square and 1/N of it, at k up to {SMALL:g} N",
        "perturbation theory in 1/N, as Roberts, Yaida & Hanin (2022)",
        law,
        measured,
        errors_of_variances(law, measured, data["squared_error"].to_numpy()),
        labels=_named(data),
        draws=draws,
        rival=np.where(np.abs(law - relu) > np.abs(law - linear), relu, linear),
        tolerance=law**2 + NEXT * law / width,
    )


def _exponent_claim(label: str, widths: list[int], samples: Samples) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim
    from widthlab.scaling import fit_power_law

    law = fit_power_law(
        widths, [samples[label, width][0] for width in widths], statistic=_squared, seed=0
    )
    return exponent_claim(
        f"gradient_correlation.{label}.exponent",
        f"{label}: the correlation of squared gradients through one layer (k = 1) falls as 1/N",
        "Hanin (2018): gradient fluctuations are of order L/N",
        law,
        -1.0,
        (-0.5, -2.0),
    )


def _squared(values: Array) -> Array:
    """E[m22]/(E m2)² − 1 from (batch, draws, inputs, 2), averaged over inputs."""
    mean = values.mean(axis=1)
    return np.asarray((mean[..., 0] / mean[..., 1] ** 2 - 1).mean(axis=1))


def _signed_claim(label: str, architecture: Perceptron, own: xr.Dataset, draws: int) -> Claim:
    from widthlab.experiments.shared.verdicts import band_claim

    data = _points(own, ("signed", "signed_error", "signed_law", "sampling_floor"), SMALL)
    width = data["width"].to_numpy()
    # Products of neurons are as skewed as χ² with one degree of freedom: few draws can agree by
    # chance, so that the error that is known beforehand is the least.
    errors = np.fmax(data["signed_error"].to_numpy(), data["sampling_floor"].to_numpy())
    law, tolerance = data["signed_law"].to_numpy(), np.zeros(len(data))
    if sign_symmetric(architecture):
        words, rival = "is zero at every width", 1 / width
        source = "symmetry of the weights; its sampling floor is √(2(1+ρ)/(N(N−1)·draws))"
    elif np.isfinite(law).all():
        depth = int(own["layer"][-1])
        words, rival = "is that of leading order in 1/N, up to the next order", 0 * width
        # The next order is L/N of the leading one, or 1/N² where that vanishes.
        order = np.abs(law) * depth / width
        tolerance = np.where(np.abs(law) * width > 1e-9, order, width**-2.0)
        source = "conditioning of the weights on the forward pass; zero by symmetry is the rival"
    else:
        words, rival = "is of order 1/N and not 1/√N", width**-0.5
        law, tolerance = np.zeros(len(data)), 1 / width
        source = "no symmetry makes it zero: the backward pass uses the weights of the forward one"
    return band_claim(
        f"gradient_correlation.{label}.signed",
        f"{label}: the signed correlation of two neurons' gradients {words} (k up to {SMALL:g} N)",
        source,
        law,
        data["signed"].to_numpy(),
        errors,
        rival=rival,
        labels=_named(data),
        draws=draws,
        tolerance=tolerance,
    )


# ── sizes ───────────────────────────────────────────────────────────────────────────────────


def _norm_claim(label: str, own: xr.Dataset, draws: int, *, exact: bool) -> Claim:
    """Judge the backward law: exact at every width, or up to order L/N."""
    from widthlab.experiments.shared.verdicts import band_claim

    depth = int(own["layer"][-1])
    names = ("backward_law", "mean", "mean_error", "exact_log_mean")
    data = _points(own, names, np.inf)
    data = data[depth <= np.maximum(SMALL * data["width"], 1)]
    law = data["backward_law"].to_numpy()
    order = law * depth / data["width"].to_numpy()
    if exact:
        words, tolerance = "at every width, without any shift", 0.0 * law
        # The rival: the mean drifts as the typical value does.
        rival = law * np.exp(data["exact_log_mean"].to_numpy())
    else:
        # The rival: the gradient neither grows nor vanishes.
        words, tolerance, rival = "up to corrections of order L/N", order, np.ones_like(law)
    return band_claim(
        f"gradient_correlation.{label}.norm",
        f"{label}: the mean of |g|² follows the backward law of infinite width, a factor "
        f"C_W⟨s'²⟩ for every layer, {words} (L up to {SMALL:g} N)",
        "Schoenholz et al. (2017); exact for ReLU and linear layers: Hanin & Nica (2020)",
        law,
        data["mean"].to_numpy(),
        data["mean_error"].to_numpy(),
        labels=_named(data),
        draws=draws,
        rival=rival,
        tolerance=tolerance,
    )


def _imbalance_claims(label: str, own: xr.Dataset, draws: int) -> list[Claim]:
    """Judge mean and variance of log(|g_1|²/|g_L|²) by their exact laws, at all widths."""
    from widthlab.experiments.shared.verdicts import band_claim, errors_of_variances

    first, depth = own.sel(layer=1), int(own["layer"][-1])
    widths = first["width"].to_numpy()
    widest = first["exact_log_variance"].to_numpy()[-1]
    # What would be the case if nothing drifted, and if fluctuations fell as 1/√N only.
    rivals = {
        "log_mean": np.zeros(len(widths)),
        "log_variance": widest * np.sqrt(widths[-1] / widths),
    }
    spread, law = first["log_variance"].to_numpy(), first["exact_log_variance"].to_numpy()
    errors = {
        "log_mean": first["log_mean_error"].to_numpy(),
        "log_variance": errors_of_variances(law, spread, first["log_variance_error"].to_numpy()),
    }
    made = []
    for name, word in (("log_mean", "mean"), ("log_variance", "variance")):
        made.append(
            band_claim(
                f"gradient_correlation.{label}.imbalance_{word}",
                f"{label}: the {word} of log(|g₁|²/|g_L|²), first layer over last, follows its "
                f"exact law in N: {depth - 1} layers, each with an independent factor",
                "Hanin (2018); Hanin & Nica (2020): sums of ψ and ψ' over layers",
                first[f"exact_{name}"].to_numpy(),
                first[name].to_numpy(),
                errors[name],
                labels=[f"N = {width}, L = {depth}" for width in widths],
                draws=draws,
                rival=rivals[name],
            )
        )
    return made


def _imbalance_exponent(label: str, section: Section, law: PowerLaw) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim

    reach = np.log(law.x[-1] / law.x[0]) if len(law.x) > 1 else 1.0
    return exponent_claim(
        f"gradient_correlation.{label}.imbalance",
        f"{label}: the imbalance of first and last layer, Var log(|g₁|²/|g_L|²), falls as 1/N at "
        f"fixed depth, where L/N ≤ {LEADING:g}",
        "Hanin (2018): gradient fluctuations are of order L/N",
        law,
        -1.0,
        (-0.5, -2.0),
        tolerance=NEXT / law.x[0] / reach if law.x else 0.0,
    )


def _variance(values: Array) -> Array:
    """Variance over draws of each input, averaged: (batch, draws, inputs) → (batch,)."""
    return np.asarray(values.var(axis=1, ddof=1).mean(axis=-1))
