"""What can be measured of a random network, over many draws of all its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from widthlab import models
from widthlab.errors import WidthlabError
from widthlab.statistics import gradients, signals
from widthlab.statistics.draws import (
    Initialise,
    Seed,
    beside,
    conditions,
    generators,
    has_batch_normalisation,
    measuring,
    runs,
    signal_names,
    tapped,
)

Measure = Literal["signals", "gradients"]
Kernel = Callable[[nn.Module, Tensor], Tensor]


def over_draws(
    model: nn.Module,
    x: Tensor,
    draws: int,
    seed: Seed,
    *,
    measure: Sequence[Measure] = ("signals",),
    kernel: Kernel | None = None,
    pairs: signals.Pairs | None = None,
    names: Sequence[str] | None = None,
    initialise: Initialise = models.initialise,
) -> xr.Dataset:
    """Measure `model` on inputs x (n, …) for `draws` random draws of all its parameters.

    The dataset has, for everything in `measure`, taken from the same draws:

    - `signals`: `signal_variance`, `signal_mean` (draw, layer, input) and `correlation` (draw,
      layer, pair) of the carried signals (see `signals.signal_statistics`);
    - `gradients`: `gradients.MOMENTS` (draw, layer, input), of one gradient for each input;

    and where a function `kernel` is given, as `statistics.ntk.empirical_ntk`, `ntk` (draw, row,
    column), what it finds for the first output. (It is an argument so that what does not measure
    kernels does not depend on their code.)

    `names` are the modules whose outputs are the carried signals; left out, those that the model
    itself names. Draw d depends on `seed` and d only. Inputs of one draw share its weights, so
    that only draws are independent. Batch normalisation uses the statistics of the inputs, and has
    no tangent kernel here. Parameters, buffers and modes of the model are put back after.

    Raises WidthlabError where the model does not fit the question, in one sentence.
    """
    known = signal_names(model, names)
    if kernel and has_batch_normalisation(model):
        raise WidthlabError(
            "the tangent kernel of a network with batch normalisation depends on how its "
            "statistics are kept, so it is not measured over draws; choose another normalisation"
        )
    x = beside(model, x)
    record = signals.Record(signals.checked_pairs(pairs, len(x)), len(known))
    taps = gradients.Taps(known)
    found: list[signals.Signals] = []
    slopes: list[Tensor] = []
    kernels: list[Tensor] = []

    def tap(layer: int, h: Tensor) -> Tensor | None:
        if "signals" in measure:
            record.tap(layer, h)
        return taps.tap(layer, h) if "gradients" in measure else None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with measuring(model):
        for generator in generators(seed, draws):
            initialise(model, generator)
            with tapped(model, known, tap):
                if "gradients" in measure:
                    each = taps.gradients(model, x)
                    record.neurons = [one[0].numel() for one in each]
                    slopes.append(torch.cat([gradients.moments(run) for run in runs(each)], dim=1))
                elif "signals" in measure:
                    with torch.no_grad():
                        model(x.clone())
            if "signals" in measure:
                found.append(record.take())
            if kernel:
                with _differentiated(trained):
                    kernels.append(_first_output(kernel(model, x), len(x)))
    attributes = conditions(model, known, x.dtype)
    parts = []
    if found:
        stacked = signals.Signals(*(torch.stack(part) for part in zip(*found, strict=True)))
        parts.append(signals.dataset(stacked, record.pairs, record.neurons, attributes))
    if slopes:
        parts.append(gradients.dataset(torch.stack(slopes), record.neurons, attributes))
    if kernels:
        parts.append(kernels_dataset(torch.stack(kernels), attributes))
    return merged(parts)


def merged(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return what was measured of the same draws as one dataset."""
    return xr.merge(parts, compat="equals", join="exact", combine_attrs="drop_conflicts")


def kernels_dataset(kernels: Tensor, attributes: dict[str, object]) -> xr.Dataset:
    """Return tangent kernels (draw, n, n) of the first output with name, unit and description."""
    about = {"units": "1", "description": "Θ(x_a, x_b), the tangent kernel of the first output"}
    return xr.Dataset(
        {"ntk": (("draw", "row", "column"), kernels.cpu().numpy(), about)},
        coords={"draw": np.arange(len(kernels))},
        attrs={"description": "tangent kernels of a network", **attributes},
    )


def _first_output(kernel: Tensor, inputs: int) -> Tensor:
    """Return the block (n, n) of output 0 in a kernel (n·C, n·C)."""
    outputs = kernel.shape[0] // inputs
    return kernel[::outputs, ::outputs]


@contextmanager
def _differentiated(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let parameters be differentiated, inside `measuring`, which freezes them."""
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
