"""The neural tangent kernel at initialisation, against width and depth.

In the NTK parameterisation the kernel of a random network tends to a deterministic one as width
grows at fixed depth: it fluctuates about its mean by O(N^-½), and the mean is off by O(1/N). How
large that is, is governed by L/N: for ReLU networks Var Θ/(E Θ)² is L(11L + 7)/(3(L + 1)N) to
leading order, so that depth and width together keep the kernel random. Sources: Jacot, Gabriel &
Hongler (2018); Hanin & Nica (2020), "Finite depth and width corrections to the neural tangent
kernel".
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from widthlab.experiments.shared.base import Grid, Inputs, Measured, Request
from widthlab.experiments.shared.random_draws import (
    DrawsCell,
    DrawsSection,
    draws_requests,
    measure_kernels,
    sphere,
)
from widthlab.specs import WHOLE, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.ntk_init.claims import Samples
    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Neural tangent kernel at initialisation"
QUESTION = (
    "How random is the tangent kernel of a network of finite width, and how far is it from the "
    "kernel of infinite width?"
)
METHOD = (
    "At every width and depth, networks are drawn at random in the NTK parameterisation, and their "
    "tangent kernel on a few training inputs, scaled to |x|² = d, is compared with the kernel of "
    "infinite width in Frobenius's norm. Entries Θ(x, x) are averaged over inputs within a draw, "
    "since they share the weights. The distance of the mean kernel is estimated from products of "
    "independent halves of the draws, which the noise of the mean does not add to; that noise is "
    "given as the floor. Kernels that are not finite are counted and left out; dead ones (Θ = 0) "
    "stay, but in logarithms."
)


class Section(DrawsSection):
    """Grid of the tangent-kernel experiment; models are in the NTK parameterisation."""

    depth: Annotated[Grid, Unit("layers")]
    """Depths L to sweep: a network of another depth is another network."""
    draws: Annotated[int, Field(ge=8), WHOLE, Unit("networks")] = 10_000
    """Random networks drawn at every width and depth; shifts of the mean need many."""
    inputs: Annotated[int, Field(ge=1, le=64), WHOLE, Unit("samples")] = 3
    """n, training inputs that run through every network, scaled to |x|² = d; kernels are n × n."""

    @model_validator(mode="after")
    def _tangent(self) -> Self:
        for label, model in self.models.items():
            if model.parameterisation != "ntk":
                raise ValueError(
                    f"models.{label}.parameterisation: is {model.parameterisation!r}, but the "
                    "kernel has a limit of infinite width in the NTK parameterisation only; write "
                    "parameterisation: ntk"
                )
            if model.normalisation == "batch":
                raise ValueError(
                    f"models.{label}.normalisation: is 'batch', under which a kernel depends on "
                    "how statistics are kept; choose none or layer"
                )
        return self


Cell = DrawsCell


def cells(section: Section, seed: int) -> list[Request]:
    """Return one cell for every architecture, width and depth."""
    return draws_requests(section, section.depth, ["ntk"])


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return tangent kernels over draws, and the inputs' Gram matrix from which theory starts."""
    dataset = measure_kernels(cell, inputs)
    x = sphere(cell.inputs, inputs).double()
    gram = (x @ x.mT / x.shape[1]).cpu().numpy()
    about = {"units": "1", "description": "x_a·x_b/d, Gram matrix of the inputs"}
    return dataset.assign(gram=(("row", "column"), gram, about))


# ── the sweep ───────────────────────────────────────────────────────────────────────────────

MEASURED = {
    "mean": "mean over draws of Θ(x, x)",
    "mean_error": "standard error of mean",
    "relative_variance": "Var Θ(x, x)/(E Θ(x, x))²",
    "relative_variance_error": "standard error of relative_variance",
    "log_variance": "variance over draws of log Θ(x, x), of living inputs",
    "log_variance_error": "standard error of log_variance",
    "alive": "share of draws and inputs with Θ(x, x) > 0",
    "fluctuation": "rms over draws of ‖Θ − E Θ‖_F, over ‖Θ_∞‖_F (‖E Θ‖_F where there is no Θ_∞)",
    "shift": "‖E Θ − Θ_∞‖_F/‖Θ_∞‖_F, without the noise of the mean; 0 where that hides it",
    "shift_low": "lower end of the 95 % interval of shift",
    "shift_high": "upper end of the 95 % interval of shift",
    "floor": "noise of the mean kernel, rms of ‖mean Θ − E Θ‖_F/‖Θ_∞‖_F",
    "condition": "median over draws of λ_max/λ_min of the n × n kernel",
    "condition_low": "lower end of the 95 % interval of condition",
    "condition_high": "upper end of the 95 % interval of condition",
}
THEORY = {
    "infinite_mean": "Θ_∞(x, x), mean over inputs",
    "infinite_condition": "λ_max/λ_min of Θ_∞",
    "exact_variance": "exact Var Θ/(E Θ)² at this width and depth, where there is a law",
    "leading_variance": "Var Θ/(E Θ)² to leading order in 1/N, where it is known",
}


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return the kernel's statistics by model, depth and width, with theory beside and claims."""
    import xarray as xr

    from widthlab.claims import to_json
    from widthlab.experiments.ntk_init import claims
    from widthlab.experiments.shared import backward_laws
    from widthlab.statistics.kernel_moments import condition_numbers

    labels, depths, widths = list(section.models), section.depth, section.width
    shape, n = (len(labels), len(depths), len(widths)), section.inputs
    found = {name: np.full(shape, np.nan) for name in (*MEASURED, *THEORY)}
    limits = np.full((*shape[:2], n, n), np.nan)
    means = np.full((*shape, n, n), np.nan)
    finite, there = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    gram = measured[0].statistics["gram"].to_numpy() if measured else np.full((n, n), np.nan)
    for i, architecture in enumerate(section.models.values()):
        for j, depth in enumerate(depths):
            limit = backward_laws.kernel(architecture, depth, gram) if measured else None
            if limit is not None:
                limits[i, j] = limit
                found["infinite_mean"][i, j] = np.diagonal(limit).mean()
                found["infinite_condition"][i, j] = condition_numbers(limit)
            for k, width in enumerate(widths):
                for name, law in backward_laws.kernel_variance(architecture, width, depth).items():
                    found[f"{name}_variance"][i, j, k] = law
    samples: Samples = {}
    for one in measured:
        cell = one.cell
        at = labels.index(one.label), depths.index(cell.depth), widths.index(cell.width)
        kernels = one.statistics["ntk"].transpose("draw", "row", "column").to_numpy()
        kernels = kernels[np.isfinite(kernels).all(axis=(1, 2))]
        finite[at], there[at] = len(kernels), 1
        if len(kernels) < 2:
            continue
        means[at] = kernels.mean(axis=0)
        values, samples[one.label, cell.depth, cell.width] = _statistics(kernels, limits[at[:2]])
        for name, value in values.items():
            found[name][at] = value
    dims = ("model", "depth", "width")
    matrix = ("row", "column")
    dataset = xr.Dataset(
        {
            **{
                name: (dims, found[name], {"units": "1", "description": text})
                for name, text in (MEASURED | THEORY).items()
            },
            "finite": (dims, finite, {"units": "1", "description": "draws with a finite kernel"}),
            "measured": (
                dims,
                there,
                {"units": "1", "description": "1 where the cell is measured"},
            ),
            "mean_kernel": ((*dims, *matrix), means, {"units": "1", "description": "mean Θ"}),
            "infinite_kernel": ((*dims[:2], *matrix), limits, {"units": "1", "description": "Θ_∞"}),
            "gram": (matrix, gram, {"units": "1", "description": "x_a·x_b/d of the inputs"}),
        },
        coords={"model": labels, "depth": depths, "width": widths},
        attrs={"experiment": "ntk_init", "draws": section.draws, "inputs": n},
    )
    fits = claims.fits(section, samples)
    dataset = dataset.assign(claims.slopes(section, fits).variables)
    dataset.attrs["claims"] = to_json(claims.claims(section, dataset, fits))
    return dataset


def _statistics(kernels: Array, limit: Array) -> tuple[dict[str, float], tuple[Array, Array]]:
    """Return the `MEASURED` of finite kernels, and what is resampled: fluctuations and halves."""
    from widthlab.scaling import bootstrap_interval
    from widthlab.statistics import kernel_moments as moments

    known = bool(np.isfinite(limit).all())
    reference = limit if known else kernels.mean(axis=0)
    if not np.linalg.norm(reference) > 0:
        return {"alive": 0.0}, (np.empty(0), np.empty((0, 2, 1)))
    vectors = moments.deviations(kernels, reference)
    squares, halves = moments.squares(vectors), moments.halves(vectors)
    fluctuation = float(np.sqrt(squares.mean()))
    ranked = moments.median_interval(moments.condition_numbers(kernels))
    values = {
        **asdict(moments.diagonal_moments(kernels)),
        "fluctuation": fluctuation,
        "floor": fluctuation / np.sqrt(len(kernels)),
        **dict(zip(("condition", "condition_low", "condition_high"), ranked, strict=True)),
    }
    if known:
        shift = bootstrap_interval(halves, moments.distance)
        values |= {"shift": shift.value, "shift_low": shift.low, "shift_high": shift.high}
    return values, (squares, halves if known else halves[:0])


# ── figures ─────────────────────────────────────────────────────────────────────────────────


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return convergence with width, variance and its collapse in L/N, mean, and conditioning."""
    from widthlab.experiments.ntk_init import drawings

    data = drawings.table(dataset, [*MEASURED, *THEORY])
    total = int(dataset["finite"].sum())
    asked = int(dataset.attrs["draws"]) * int(dataset["measured"].sum())
    diagonal = dataset["finite"] * int(dataset.attrs["inputs"])
    alive = round(float((diagonal * dataset["alive"].fillna(0)).sum()))
    counted = (
        f"{total:,} of {asked:,} kernels are finite, and of their {int(diagonal.sum()):,} entries "
        f"Θ(x, x) {alive:,} are alive"
    )
    return [
        drawings.convergence(data, dataset, counted),
        drawings.variance(data, counted),
        drawings.collapse(data, counted),
        drawings.mean(data, counted),
        drawings.condition(data, counted),
    ]
