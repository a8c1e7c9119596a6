"""A certification as one xarray dataset: insertion points × budgets, with units and words."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from widthlab.statistics.alignment.certificates import Certificate
from widthlab.statistics.alignment.mismatch import ABOUT

if TYPE_CHECKING:
    from widthlab.certification.result import Certification

INTERVALS = {
    "signal": ("gradient^2", "m₁·m₂, or |μ|² for equal laws"),
    "train_spread": ("gradient^4", "m₂'Σ₁m₂, or μ'Σμ"),
    "test_spread": ("gradient^4", "m₁'Σ₂m₁, or μ'Σμ"),
    "noise": ("gradient^4", "tr Σ₁Σ₂, or tr Σ²"),
    "train_trace": ("gradient^2", "tr Σ of the training samples' law"),
    "test_trace": ("gradient^2", "tr Σ of the test samples' law"),
    "d_parallel": ("1", "d_∥, squared signal over the larger spread"),
    "d_2": ("1", "d₂, squared signal over tr Σ₁Σ₂"),
    "d_align": ("1", "effective alignment dimension, the smaller of d_∥ and d₂"),
}
"""What has limits, by name: its unit and words."""

BOUNDS = {
    "b_exact": "estimate of Cantelli's bound of Pr(μ_M·g_K ≤ 0) by the exact variance",
    "b_exact_limit": "its upper confidence limit, which is what may be relied on; 1 where nothing "
    "is certified",
    "b_align": "estimate of the bound 1/(1 + n_eff d_align)",
    "b_align_limit": "its upper confidence limit; 1 where nothing is certified",
    "plug_in_b_exact": "b_exact by the published plug-in estimates, which are biased",
    "plug_in_b_align": "b_align by the published plug-in estimates, which are biased",
}

CONTROLS = {
    "control_certified": "share of sign-flipped gradients that are certified: at most error_rate",
    "control_point_estimates": "share of them that point estimates alone would have certified",
    "control_plug_in_d_align": "median of the plug-in d_align on them: what it reports of noise",
}


def dataset_of(found: Certification) -> xr.Dataset:
    """Return the numbers of all points: dimensions point, budget and control.

    Gradients have the unit of the loss over that of the activation. Limits end in `_low` and
    `_high`. Counted mismatches are there where they were asked for.
    """
    certificates = list(found.certificates.values())

    def by_point(get: Callable[[Certificate], Any]) -> np.ndarray[Any, Any]:
        return np.array([get(certificate) for certificate in certificates])

    data: dict[str, tuple[tuple[str, ...], Any, dict[str, Any]]] = {}
    for name, (unit, words) in INTERVALS.items():
        for suffix, what in (("", "value"), ("_low", "low"), ("_high", "high")):
            numbers = by_point(attrgetter(f"{name}.{what}"))
            side = {"low": "lower limit of ", "high": "upper limit of "}.get(what, "")
            data[name + suffix] = (("point",), numbers, _about(unit, side + words))
    for name in ("signal", "d_parallel", "d_2", "d_align"):
        unit, words = INTERVALS[name]
        numbers = np.array([certificate.plug_in[name] for certificate in certificates])
        data[f"plug_in_{name}"] = (("point",), numbers, _about(unit, f"{words}: plug-in, biased"))
    for name, words in BOUNDS.items():
        numbers = by_point(attrgetter(name))
        data[name] = (("point", "budget"), numbers, _about("1", words))
    met = by_point(lambda c: c.meets(found.target))
    data["certified"] = (("point", "budget"), met, _about("1", "b_exact_limit ≤ target"))
    needed = [np.nan if value is None else value for value in found.needed().values()]
    words = "smallest M = K with b_exact_limit ≤ target; NaN where no signal is certified"
    data["needed"] = (("point",), np.array(needed, dtype=np.float64), _about("samples", words))
    words = "p-value of the signal against sign-flipped gradients"
    data["p_value"] = (("point",), by_point(lambda c: c.p_value), _about("1", words))
    words = "why no signal is certified; empty where one is"
    data["reason"] = (("point",), by_point(lambda c: c.reason), _about("1", words))
    for name, words in CONTROLS.items():
        get = attrgetter(name.removeprefix("control_"))
        numbers = np.array([[get(control) for control in c.controls] for c in certificates])
        data[name] = (("point", "control"), numbers, _about("1", words))
    numbers = np.array([[control.plug_in_b_exact for control in c.controls] for c in certificates])
    words = "median of the plug-in b_exact on sign-flipped gradients"
    data["control_plug_in_b_exact"] = (("point", "control", "budget"), numbers, _about("1", words))
    if found.mismatches:
        for name in ABOUT:
            numbers = np.stack([counted[name].values for counted in found.mismatches.values()])
            about = {**next(iter(found.mismatches.values()))[name].attrs}
            data[name] = (("point", "budget"), numbers, about)
    return xr.Dataset(data, coords=_coordinates(found), attrs=_attributes(found))


def _coordinates(found: Certification) -> dict[str, Any]:
    budgets = np.array(found.budgets, dtype=np.int64)
    controls = next(iter(found.certificates.values())).controls
    axes = [-1 if p.axis is None else p.axis for p in found.poolings.values()]
    return {
        "point": ("point", list(found), _about("1", "insertion point, a module's name")),
        "pooling": (
            "point",
            [pooling.how for pooling in found.poolings.values()],
            _about("1", "how gradients are pooled over positions"),
        ),
        "channels_axis": ("point", axes, _about("1", "axis of the channels; -1 by default")),
        "train_samples": ("budget", budgets[:, 0], _about("samples", "M, samples of the step")),
        "test_samples": ("budget", budgets[:, 1], _about("samples", "K, samples of the test")),
        "control": (
            "control",
            [control.name for control in controls],
            _about("1", "gradients whose signs are flipped at random, themselves or centred"),
        ),
    }


def _attributes(found: Certification) -> dict[str, Any]:
    first = next(iter(found.certificates.values()))
    return {
        "description": "alignment certificates of insertion points",
        "decision": found.decision,
        "target": found.target,
        "level": found.level,
        "simultaneous": int(found.simultaneous),
        "error_rate": found.error_rate,
        "laws": first.laws,
        "train_pool": first.pools[0],
        "test_pool": first.pools[1],
        "measured_train_samples": first.samples[0],
        "measured_test_samples": first.samples[1],
        "flips": first.flips,
        "interval": "two limits of error rate error_rate each, by the jackknife over samples",
    }


def _about(units: str, description: str) -> dict[str, Any]:
    return {"units": units, "description": description}
