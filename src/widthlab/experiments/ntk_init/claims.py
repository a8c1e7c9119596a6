"""Claims of the tangent kernel at initialisation: its mean, its variance and their scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from widthlab.experiments.shared.backward_laws import exact_backwards
from widthlab.experiments.shared.shifts import FLOORS, stands_out
from widthlab.specs import MLP, Perceptron

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.experiments.ntk_init import Section
    from widthlab.scaling import PowerLaw

Array = NDArray[np.float64]
Samples = dict[tuple[str, int, int], tuple[Array, Array]]
"""By model, depth and width: squared fluctuations (blocks,) and halves (blocks, 2, k) of means."""
Fits = dict[str, dict[str, tuple[int, "PowerLaw"]]]
"""By quantity (fluctuation, shift) and model: the depth of the fit, and the fit."""

SMALL = 0.1
"""Largest L/N at which moments are compared: beyond, heavy tails hide them."""
LEADING = 0.25
"""Largest L/N at which the leading order in 1/N is judged by an exponent."""


def fits(section: Section, samples: Samples) -> Fits:
    """Fit power laws in the width, at one depth for each model.

    The fluctuation is taken at the shallowest depth, where the next order, in L/N, is smallest.
    For the shift, widths at which that of the narrowest network, falling as 1/N, would not stand
    out of the noise of the mean are left out (the data at a width do not choose it), and the depth
    is that with most widths left; of several the deepest, since the shift grows with L/N.
    """
    from widthlab.scaling import fit_power_law
    from widthlab.statistics.kernel_moments import distance, root

    found: Fits = {"fluctuation": {}, "shift": {}}
    for label in section.models:
        at = {
            depth: [
                width
                for width in section.width
                if (label, depth, width) in samples and depth <= LEADING * width
            ]
            for depth in section.depth
        }
        shallow = next((depth for depth in section.depth if at[depth]), section.depth[0])
        own = [samples[label, shallow, width][0] for width in at[shallow]]
        law = fit_power_law(at[shallow], own, statistic=root)
        found["fluctuation"][label] = shallow, law
        seen = {
            depth: stands_out({n: samples[label, depth, n][1] for n in at[depth]}, -1.0)
            for depth in section.depth
        }
        deep = max(section.depth, key=lambda d: (len(seen[d]), len(at[d]) >= 3, d))
        means = [samples[label, deep, width][1] for width in seen[deep]]
        found["shift"][label] = deep, fit_power_law(seen[deep], means, statistic=distance)
    return found


def slopes(section: Section, found: Fits) -> xr.Dataset:
    """Return the exponents of all fits by quantity and model, with intervals and depths."""
    import xarray as xr

    texts = {
        "slope": "exponent in N of the quantity",
        "slope_low": "lower end of the 95 % interval of slope",
        "slope_high": "upper end of the 95 % interval of slope",
        "slope_depth": "depth L at which the slope is fitted",
    }
    values = np.array(
        [
            [(law.exponent, law.low, law.high, float(depth)) for depth, law in each.values()]
            for each in found.values()
        ]
    )
    return xr.Dataset(
        {
            name: (("quantity", "model"), values[..., i], {"units": "1", "description": text})
            for i, (name, text) in enumerate(texts.items())
        },
        coords={"quantity": list(found), "model": list(section.models)},
    )


def claims(section: Section, dataset: xr.Dataset, found: Fits) -> list[Claim]:
    """Judge the mean, the variance, its collapse in L/N and the two exponents, by model."""
    made: list[Claim] = []
    for label, architecture in section.models.items():
        data = dataset.drop_vars(["row", "column"], errors="ignore").sel(model=label)
        scalars = data[[n for n in data.data_vars if data[n].dims == ("depth", "width")]]
        table = scalars.assign(infinite_mean=data["infinite_mean"]).to_dataframe().reset_index()
        table = table[table["finite"] >= 2]
        if table.empty:
            continue
        small = table[table["depth"] <= SMALL * table["width"]]
        made.append(_mean_claim(label, architecture, small))
        if np.isfinite(table["leading_variance"]).all():
            made.append(_variance_claim(label, architecture, small))
        collapse = _collapse_claim(label, architecture, table)
        if collapse is not None:
            made.append(collapse)
        made.append(_fluctuation_claim(label, section, found))
        if not _linear(architecture) and np.isfinite(table["infinite_mean"]).all():
            made.append(_shift_claim(label, section, found))
    return made


def _linear(architecture: Perceptron) -> bool:
    """Say whether the mean kernel is exactly that of infinite width, in all entries."""
    return architecture.activation == "linear" and exact_backwards(architecture)


def _named(data: pd.DataFrame) -> list[str]:
    return [f"N = {n}, L = {k}" for n, k in zip(data["width"], data["depth"], strict=True)]


def _draws(data: pd.DataFrame) -> int:
    return int(data["finite"].min()) if len(data) else 2


def _mean_claim(label: str, architecture: Perceptron, data: pd.DataFrame) -> Claim:
    from widthlab.experiments.shared.verdicts import band_claim

    law = data["infinite_mean"].to_numpy()
    order = law * (data["depth"] / data["width"]).to_numpy()
    if exact_backwards(architecture):
        words, tolerance, rival = "at every width, without any shift of order L/N", 0.0, law - order
    else:
        words, tolerance = "up to corrections of order L/N", order
        # What would be the case if every layer added to the kernel as much as the first matrix.
        matrices = data["depth"].to_numpy() + 1.0
        rival = matrices if isinstance(architecture, MLP) else np.full(len(data), 2.0)
    return band_claim(
        f"ntk_init.{label}.mean",
        f"{label}: the mean of Θ(x, x) is that of infinite width {words} (L up to {SMALL:g} N)",
        "Jacot et al. (2018); Hanin & Nica (2020) for ReLU, where it is L + 1",
        law,
        data["mean"].to_numpy(),
        data["mean_error"].to_numpy(),
        rival=np.asarray(rival),
        labels=_named(data),
        draws=_draws(data),
        tolerance=tolerance,
    )


def _variance_claim(label: str, architecture: Perceptron, data: pd.DataFrame) -> Claim:
    from widthlab.experiments.shared.verdicts import band_claim, errors_of_variances
    from widthlab.theory.finite_width import fluctuation

    depth, width = data["depth"].to_numpy(), data["width"].to_numpy()
    if exact_backwards(architecture):
        law, tolerance = data["exact_variance"].to_numpy(), np.zeros(len(data))
        words = "follows its exact law in L and N"
        if architecture.activation == "relu":
            words += ", which is L(11L + 7)/(3(L + 1)N) to leading order"
        source = "Hanin & Nica (2020) for the leading order; exact by a recursion over layers"
        # The rival: the kernel fluctuates as the output's variance does.
        rival = np.expm1(depth * np.log1p(fluctuation(architecture.activation) / width))
    else:
        law = data["leading_variance"].to_numpy()
        # Independent factors give (1 + v) − 1 with a next order of relative size v.
        tolerance = law**2
        words = "follows its leading order in 1/N, up to its own square"
        source = "perturbation theory in 1/N, as Roberts, Yaida & Hanin (2022)"
        # The rival: the law of ReLU or of linear layers, whichever is further from it.
        relu = depth * (11 * depth + 7) / (3 * (depth + 1) * width)
        linear = 2 * depth * (2 * depth + 1) / (3 * (depth + 1) * width)
        rival = np.where(np.abs(law - relu) > np.abs(law - linear), relu, linear)
    measured = data["relative_variance"].to_numpy()
    return band_claim(
        f"ntk_init.{label}.variance",
        f"{label}: the relative variance of Θ(x, x) {words} (L up to {SMALL:g} N)",
        source,
        law,
        measured,
        errors_of_variances(law, measured, data["relative_variance_error"].to_numpy()),
        rival=rival,
        labels=_named(data),
        draws=_draws(data),
        tolerance=tolerance,
    )


def _collapse_claim(label: str, architecture: Perceptron, data: pd.DataFrame) -> Claim | None:
    """Judge that networks of equal L/N fluctuate alike, by the deepest of each group.

    Readout and first matrix fluctuate whatever the depth: by as much as a layer of a perceptron,
    or as 1/α² blocks of a residual network, does. Hence a relative correction of order 1/(α² L),
    and nothing to judge where no network has α² L > 1.
    """
    from widthlab.experiments.shared.verdicts import band_claim, errors_of_variances

    if isinstance(architecture, MLP):
        counted, order = list(data["depth"]), "1/L"
    else:
        counted = [d * architecture.branch_scale(int(d)) ** 2 for d in data["depth"]]
        order = "1/(α² L), α being the branches' scale"
    data = data.assign(ratio=(data["depth"] / data["width"]).round(12), counted=counted)
    data = data[data["counted"] > 1 + 1e-9].sort_values("depth")
    deepest = data.groupby("ratio", as_index=False).last()
    both = data.merge(deepest, on="ratio", suffixes=("", "_deep"))
    both = both[both["depth"] < both["depth_deep"]]
    if both.empty:
        return None
    law, spread = both["log_variance_deep"].to_numpy(), both["log_variance"].to_numpy()
    error = np.hypot(
        errors_of_variances(law, spread, both["log_variance_error"].to_numpy()),
        both["log_variance_error_deep"].to_numpy(),
    )
    share = both["width_deep"].to_numpy() / both["width"].to_numpy()
    names = zip(_named(both), both["depth_deep"], strict=True)
    claim = band_claim(
        f"ntk_init.{label}.collapse",
        f"{label}: the spread of log Θ(x, x) is the same for networks of equal L/N, up to "
        f"corrections of relative order {order}",
        "Hanin & Nica (2020): the kernel's fluctuation is governed by L/N",
        law,
        spread,
        error,
        # The rival: width alone governs, whatever the depth.
        rival=law * share,
        labels=[f"{name} (against L = {deep})" for name, deep in names],
        draws=_draws(both),
        tolerance=law / both["counted"].to_numpy(),
    )
    if claim.verdict != "fails":
        return claim
    why = (
        "L/N alone governs where all layers count alike, at criticality and a stable fixed point; "
        "elsewhere the kernel's size, and with it the weight of a layer, changes along the network"
    )
    return claim.model_copy(update={"reason": f"{claim.reason}; {why}"})


def _fluctuation_claim(label: str, section: Section, found: Fits) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim

    depth, law = found["fluctuation"][label]
    # The next order multiplies the variance by 1 + O(v), v being the variance itself.
    variance = law.y[0] ** 2 if law.y else 0.0
    return exponent_claim(
        f"ntk_init.{label}.fluctuation",
        f"{label}: the kernel fluctuates about its mean by an amount that falls as N^-½ (L = "
        f"{depth}, L/N ≤ {LEADING:g})",
        "Jacot et al. (2018): the limit is deterministic; Hanin & Nica (2020)",
        law,
        -0.5,
        (-1.0, 0.0),
        tolerance=_tolerance(law, variance / 2),
    )


def _shift_claim(label: str, section: Section, found: Fits) -> Claim:
    from widthlab.experiments.shared.verdicts import exponent_claim

    depth, law = found["shift"][label]
    hidden = ""
    if len(law.x) < 3:
        hidden = (
            f"at {len(law.x)} widths only is the shift, falling as 1/N, {FLOORS:g} times the noise "
            f"of the mean of {section.draws:,} draws; take more draws"
        )
        law = replace(law, reason=hidden)
    return exponent_claim(
        f"ntk_init.{label}.shift",
        f"{label}: the mean of the kernel differs from the kernel of infinite width by an amount "
        f"that falls as 1/N (L = {depth}, L/N ≤ {LEADING:g})",
        "Hanin & Nica (2020); Roberts, Yaida & Hanin (2022)",
        law,
        -1.0,
        (-0.5, -2.0),
        # The next order is of relative order L/N.
        tolerance=0.0 if hidden else _tolerance(law, depth / law.x[0]),
        caveat="the noise of the mean hides the shift" if hidden else "",
    )


def _tolerance(law: PowerLaw, order: float) -> float:
    """Return what a relative correction of this order, at the narrowest, does to the exponent."""
    reach = np.log(law.x[-1] / law.x[0]) if len(law.x) > 1 else 1.0
    return float(order / reach)
