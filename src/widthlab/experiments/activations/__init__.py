"""Which architectures fluctuate least at equal depth over width, at initialisation.

Random networks of several activations, of residual branches before and after the nonlinearity, and
of several normalisations are drawn at equal L/N, which is what controls effects of finite width
(Roberts, Yaida & Hanin 2022; Hanin & Nica 2020). What is compared is divided by L/N: the variance
over draws of log q and of the log of the gradient's square, and the shift of q against networks
that are so much wider that they stand for infinite width.
"""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from widthlab.experiments.shared.base import Inputs, Measured, Request, ordered
from widthlab.experiments.shared.random_draws import (
    DrawsCell,
    DrawsSection,
    draws_request,
    engine_of,
    measure_draws,
)
from widthlab.specs import WHOLE, Count, Perceptron, Positive, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

Array = NDArray[np.float64]

TITLE = "Activations, positions and normalisations at equal depth over width"
QUESTION = "Which architecture has the smallest effects of finite width at initialisation?"
METHOD = (
    "Networks of every architecture are drawn at random at the same widths N and the same L/N, on "
    "training inputs with |x|² = d, which are also the batch of batch normalisation. Measured at "
    "the last layer are the variance over draws of log(q/q₀) and the shift of its mean and of the "
    "mean of q against a reference, networks of the same depth that are many times wider; and the "
    "variance of log |g|² of the gradient of one output by the first layer's signal. A reference "
    "is not infinitely wide: at leading order it has the share N/N_ref of the shift, for which "
    "every shift is corrected alike. All numbers are divided by L/N, and summarised by their mean "
    "over widths and L/N (of the logarithm, for fluctuations). Errors come from a bootstrap over "
    "draws, and intervals are simultaneous for all architectures (Bonferroni). Signals and "
    "gradients that have died or are not finite are counted and left out of logarithms."
)
LEVEL = 0.95
"""Confidence that all intervals of one ranking, or all comparisons of one measure, hold at once."""
REFERENCE_DRAWS = 4
"""Draws of a reference, times its width, over those of the widest network: since a variance falls
as 1/N, the reference's error is then half as large."""


class Section(DrawsSection):
    """Grid over architectures, widths and depth over width."""

    ratio: Annotated[
        list[Positive], Field(min_length=1), AfterValidator(ordered), Unit("layers/neuron")
    ]
    """Depths L over width N to sweep; L is rounded to a whole number of layers."""
    reference: Annotated[int, Field(ge=2), WHOLE, Unit("1")] = 16
    """Width of the reference networks over the largest width."""
    dense_width: Annotated[Count, Unit("neurons")] = 256
    """Largest width of networks that must be built (batch normalisation); they are left out at
    larger ones."""
    dense_draws: Annotated[int, Field(ge=8), WHOLE, Unit("networks")] = 400
    """Networks drawn at every width of such as must be built, if that is fewer than `draws`."""
    dense_reference: Annotated[int, Field(ge=2), WHOLE, Unit("1")] = 4
    """Width of the references that must be built, over the largest width of such networks."""

    @model_validator(mode="after")
    def _deep_enough(self) -> Self:
        for width in self.width:
            depths = [depth_of(width, ratio) for ratio in self.ratio]
            for ratio, depth in zip(self.ratio, depths, strict=True):
                if depth < 2:
                    raise ValueError(
                        f"ratio: {ratio:g} makes {depth} layers at width {width}, but two are "
                        "needed; take a larger ratio or larger widths"
                    )
            if len(set(depths)) < len(depths):
                raise ValueError(
                    f"ratio: two values make the same depth at width {width} ({depths}); take "
                    "ratios further apart or larger widths"
                )
        return self


class Cell(DrawsCell):
    """One architecture at one size, or the wide reference of one depth."""

    reference: bool = False
    """Whether it stands for infinite width: gradients are not measured then."""


def depth_of(width: int, ratio: float) -> int:
    """Return the whole number of layers closest to ratio · width."""
    return int(np.floor(ratio * width + 0.5))


def widths_of(section: Section, architecture: Perceptron) -> list[int]:
    """Return the widths at which an architecture is drawn."""
    if engine_of(architecture, "weightfree") == "weightfree":
        return section.width
    return [width for width in section.width if width <= section.dense_width]


def reference_width(section: Section, architecture: Perceptron) -> int:
    """Return the width of an architecture's reference; 0 where it is not drawn at all."""
    built = engine_of(architecture, "weightfree") == "dense"
    factor = section.dense_reference if built else section.reference
    return factor * max(widths_of(section, architecture), default=0)


def cells(section: Section, seed: int) -> list[Request]:
    """Return a cell for every architecture, width and L/N, and one for every reference."""
    made = []
    for label, architecture in section.models.items():
        widths = widths_of(section, architecture)
        depths = {(width, depth_of(width, r)) for width, r in product(widths, section.ratio)}
        for width, depth in sorted(depths):
            made.append(_request(section, label, architecture, width, depth))
        wide = reference_width(section, architecture)
        for depth in sorted({depth for _, depth in depths}):
            made.append(_request(section, label, architecture, wide, depth, reference=True))
    return made


def _request(
    section: Section,
    label: str,
    architecture: Perceptron,
    width: int,
    depth: int,
    *,
    reference: bool = False,
) -> Request:
    # Of the two engines, which draw the same networks, a reference takes the cheap one.
    engine = engine_of(architecture, "weightfree" if reference else section.engine)
    draws = section.draws if engine == "weightfree" else min(section.draws, section.dense_draws)
    if reference:
        largest = max(widths_of(section, architecture))
        draws = max(8, int(np.ceil(REFERENCE_DRAWS * draws * largest / width)))
    section = section.model_copy(update={"draws": draws, "engine": engine})
    request = draws_request(section, label, architecture, width, depth)
    cell = Cell(**dict(request.cell), reference=reference)
    return dataclasses.replace(request, cell=cell)


def extract(cell: Cell, inputs: Inputs) -> xr.Dataset:
    """Return q of the first and the last layer over draws, and the gradient's norm at layer 1."""
    import xarray as xr

    measure = ["signals"] if cell.reference else ["signals", "gradients"]
    found = measure_draws(cell, inputs, measure)  # type: ignore[arg-type]
    kept = {
        "first": found["signal_variance"].isel(layer=0, drop=True),
        "last": found["signal_variance"].isel(layer=-1, drop=True),
    }
    if not cell.reference:
        kept["gradient"] = found["gradient_norm"].isel(layer=1, drop=True)
    texts = {
        "first": "q = |h|²/N of the first carried signal",
        "last": "q = |h|²/N of the last carried signal",
        "gradient": "norm of the gradient of one output by the carried signal of layer 1",
    }
    for name, values in kept.items():
        values.attrs = {"units": "1", "description": texts[name]}
    plain = {name: values.reset_coords(drop=True) for name, values in kept.items()}
    return xr.Dataset(plain, attrs=found.attrs)


# ── the sweep ───────────────────────────────────────────────────────────────────────────────

SUMMARIES = {
    "rank": "{}, divided by L/N and summarised over widths and L/N",
    "drift": "slope in L/N of the {}, at fixed width, averaged over widths",
}


def sweep(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return fluctuations and shifts by model, width and L/N, their ranking, and claims."""
    import xarray as xr

    from widthlab.claims import to_json
    from widthlab.experiments.activations import fluctuations
    from widthlab.experiments.activations.expectations import claims
    from widthlab.experiments.activations.fluctuations import MEASURES

    labels = list(section.models)
    wide = [reference_width(section, one) for one in section.models.values()]
    depths = np.array([[depth_of(n, ratio) for ratio in section.ratio] for n in section.width])
    grid = fluctuations.collect(labels, section.width, depths, wide, measured)
    dims = ("model", "width", "ratio")
    found: dict[str, tuple[object, object, str]] = {
        "depth": (dims[1:], depths, "layers L"),
        "draws": (dims, grid.draws, "networks drawn"),
        "alive": (dims, grid.alive, "share of draws whose signals are alive and finite"),
        "reference_width": ("model", wide, "width that stands for infinite width"),
    }
    level = 1 - (1 - LEVEL) / len(labels)
    for name, text in MEASURES.items():
        values = grid.measures[name]
        found[name] = (dims, values.value, text)
        found[f"{name}_error"] = (dims, values.error, f"standard error of {name}")
        for kind, words in SUMMARIES.items():
            one = fluctuations.summary(grid, kind, name, level)
            for end, array in zip(("", "_low", "_high"), one, strict=True):
                side = f"{end[1:]} end of the simultaneous interval of the " if end else ""
                found[f"{kind}_{name}{end}"] = ("model", array, side + words.format(text))
    units = {"depth": "layers", "draws": "networks", "reference_width": "neurons"}
    dataset = xr.Dataset(
        {
            name: (where, values, {"units": units.get(name, "1"), "description": text})
            for name, (where, values, text) in found.items()
        },
        coords={"model": labels, "width": section.width, "ratio": section.ratio},
        attrs={"experiment": "activations", "inputs": section.inputs, "asked": section.draws},
    )
    dataset.attrs["claims"] = to_json(claims(section.models, grid, LEVEL))
    return dataset


def figures(dataset: xr.Dataset) -> list[Figure]:
    """Return the ranking, and fluctuations and typical shifts against L/N for each model."""
    from widthlab.experiments.activations.drawing import depth_figure, ranking_figure

    return [
        ranking_figure(dataset),
        depth_figure(dataset, "fluctuation", "Var log(q/q₀)"),
        depth_figure(dataset, "typical_shift", "shift of E log(q/q₀)"),
    ]
