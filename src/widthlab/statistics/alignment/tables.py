"""A certificate as a dataset: what is stored, collected and plotted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from widthlab.scaling import Interval
from widthlab.statistics.alignment.certificates import Certificate

MOMENTS = {
    "signal": ("gradient^2", "m₁·m₂, or |μ|² of equal laws"),
    "train_spread": ("gradient^4", "m₂'Σ₁m₂, or μ'Σμ"),
    "test_spread": ("gradient^4", "m₁'Σ₂m₁, or μ'Σμ"),
    "noise": ("gradient^4", "tr Σ₁Σ₂, or tr Σ²"),
    "train_trace": ("gradient^2", "tr Σ₁, or tr Σ"),
    "test_trace": ("gradient^2", "tr Σ₂, or tr Σ"),
    "d_parallel": ("1", "d_∥ = |μ|⁴/μ'Σμ"),
    "d_2": ("1", "d₂ = |μ|⁴/tr Σ²"),
    "d_align": ("1", "d_align, the smaller of d_∥ and d₂"),
}
"""Unbiased estimates of a certificate that have an interval: name → unit and meaning."""

BOUNDS = {
    "b_exact": "B_exact by the unbiased estimates",
    "b_exact_limit": "upper confidence limit of B_exact, 1 where there is none",
    "b_align": "B_align by the unbiased estimates",
    "b_align_limit": "upper confidence limit of B_align, 1 where there is none",
    "plug_in_b_exact": "B_exact by the published, biased estimates",
    "plug_in_b_align": "B_align by the published, biased estimates",
}
"""Numbers of a certificate for each budget."""

CONTROLS = {
    "control_certified": "share of sign flips of noise that get a bound below 1",
    "control_limit_alone": "the same by limits alone, not compared with other sign flips",
    "control_point_estimates": "share of sign flips on which all unbiased estimates are positive",
    "control_plug_in_d_align": "median of the plug-in d_align on noise",
}
"""Numbers of a certificate for each noise control."""


def certificate_dataset(certificate: Certificate) -> xr.Dataset:
    """Return a certificate's numbers with dimensions `budget` and `control`.

    `train_samples` and `test_samples` are the M and K of each budget. A moment or dimension x has
    its limits in `x_low` and `x_high`, and the published estimate, where there is one, in
    `plug_in_x`.
    """
    variables: dict[str, tuple[Sequence[str], object, str, str]] = {}
    for name, (unit, words) in MOMENTS.items():
        interval: Interval = getattr(certificate, name)
        variables[name] = ((), interval.value, unit, f"{words}, unbiased estimate")
        variables[f"{name}_low"] = ((), interval.low, unit, f"lower limit of {name}")
        variables[f"{name}_high"] = ((), interval.high, unit, f"upper limit of {name}")
        if name in certificate.plug_in:
            words = f"{words}, published estimate, biased"
            variables[f"plug_in_{name}"] = ((), certificate.plug_in[name], unit, words)
    for name, words in BOUNDS.items():
        variables[name] = (("budget",), getattr(certificate, name), "1", words)
    for name, words in CONTROLS.items():
        found = [
            getattr(control, name.removeprefix("control_")) for control in certificate.controls
        ]
        variables[name] = (("control",), np.array(found), "1", words)
    variables["control_plug_in_b_exact"] = (
        ("control", "budget"),
        np.stack([control.plug_in_b_exact for control in certificate.controls]),
        "1",
        "median of the plug-in B_exact on noise",
    )
    variables["p_value"] = ((), certificate.p_value, "1", "of the signal, against sign flips")
    words = "whether an upper confidence limit of the bound lies below 1"
    variables["has_bound"] = ((), certificate.has_bound, "1", words)
    variables["reason"] = ((), certificate.reason, "", "why there is no bound below 1")
    m, k = np.array(certificate.budgets, dtype=np.int64).T
    return xr.Dataset(
        {
            name: (dims, values, {"units": unit, "description": words})
            for name, (dims, values, unit, words) in variables.items()
        },
        coords={
            "train_samples": ("budget", m, {"units": "samples", "description": "M, of a step"}),
            "test_samples": ("budget", k, {"units": "samples", "description": "K, of a test"}),
            "control": [control.name for control in certificate.controls],
        },
        attrs={
            "description": "alignment certificate of activation gradients",
            "laws": certificate.laws,
            "measured_train_samples": certificate.samples[0],
            "measured_test_samples": certificate.samples[1],
            "level": certificate.level,
            "flips": certificate.flips,
            # An attribute must be JSON, which has no infinity.
            **{
                f"{part}_pool": pool
                for part, pool in zip(("train", "test"), certificate.pools, strict=True)
                if np.isfinite(pool)
            },
        },
    )
