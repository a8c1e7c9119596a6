"""Signal variance, mean and pair correlation of a network's carried signals, by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.statistics.draws import (
    beside,
    conditions,
    coordinates,
    measuring,
    runs,
    signal_names,
    tapped,
)

Pairs = Sequence[tuple[int, int]]


def signal_statistics(
    model: nn.Module, x: Tensor, *, pairs: Pairs | None = None, signals: Sequence[str] | None = None
) -> xr.Dataset:
    """Measure the carried signals h_l of one network on inputs x (n, …).

    Returns a dataset with dimensions (layer, input) and (layer, pair):

    - `signal_variance` q = |h|²/N, the second moment over neurons;
    - `signal_mean`, the mean of h over neurons;
    - `correlation` of the inputs of a pair, h_a·h_b / (|h_a||h_b|): NaN where a signal is zero,
      which its variance of 0 shows.

    N neurons are all entries of a signal but the samples' axis: channels times positions for
    feature maps. `pairs` left out means every pair of inputs. Batch normalisation uses the
    statistics of the inputs x. The model is left as it was. Raises WidthlabError where the
    signals are not known or a pair names an input that is not there.
    """
    names = signal_names(model, signals)
    x = beside(model, x)
    record = Record(checked_pairs(pairs, len(x)), len(names))
    with measuring(model), tapped(model, names, record.tap), torch.no_grad():
        model(x.clone())
    found = Signals(*(part[None] for part in record.take()))
    attributes = conditions(model, names, x.dtype)
    return dataset(found, record.pairs, record.neurons, attributes).isel(draw=0, drop=True)


def checked_pairs(pairs: Pairs | None, inputs: int) -> NDArray[np.int64]:
    """Return pairs as an array (p, 2), or all of them; raises WidthlabError for no such input."""
    if pairs is None:
        return np.stack(np.triu_indices(inputs, k=1), axis=1).astype(np.int64)
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if array.size and (array.min() < 0 or array.max() >= inputs):
        raise WidthlabError(f"pairs must name inputs 0 … {inputs - 1}, but one is outside")
    return array


class Signals(NamedTuple):
    """Moments of carried signals: q and means (…, layer, input), correlations (…, layer, pair)."""

    variance: Tensor
    mean: Tensor
    correlation: Tensor


class Pairing:
    """Pairs of inputs, and which inputs occur in them."""

    def __init__(self, pairs: NDArray[np.int64]) -> None:
        used, local = np.unique(pairs, return_inverse=True)
        self.used = torch.from_numpy(used)
        self.first, self.second = torch.from_numpy(local.reshape(-1, 2)).unbind(1)

    def moments(self, h: Tensor) -> Signals:
        """Return the moments over neurons of signals h (…, n, N)."""
        few = len(self.used) < h.shape[-2]
        seen = h.index_select(-2, self.used.to(h.device)) if few else h
        gram = seen @ seen.mT
        norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
        product = norms[..., self.first] * norms[..., self.second]
        correlation = gram[..., self.first, self.second] / product
        return Signals(torch.linalg.vecdot(h, h) / h.shape[-1], h.mean(-1), correlation)


class Record:
    """Keeps the signals of a forward pass, and makes their moments."""

    def __init__(self, pairs: NDArray[np.int64], layers: int) -> None:
        self.pairs, self.pairing = pairs, Pairing(pairs)
        self.neurons = [0] * layers
        self.signals: list[Tensor | None] = [None] * layers

    def tap(self, layer: int, h: Tensor) -> None:
        """Keep one signal, in a copy, since what follows may overwrite it."""
        self.signals[layer] = h.detach().to(torch.float64, copy=True)

    def take(self) -> Signals:
        """Return the moments of the last forward pass by layer, and forget its signals."""
        found = [signal for signal in self.signals if signal is not None]
        if len(found) < len(self.signals):
            raise WidthlabError(
                f"the signal at position {self.signals.index(None)} of `signals` was not reached "
                "in the forward pass; leave it out"
            )
        self.neurons = [signal[0].numel() for signal in found]
        self.signals = [None] * len(found)
        parts = [self.pairing.moments(run) for run in runs(found)]
        return Signals(*(torch.cat(part).cpu() for part in zip(*parts, strict=True)))


def dataset(
    signals: Signals,
    pairs: NDArray[np.int64],
    neurons: Sequence[int],
    attributes: dict[str, object],
) -> xr.Dataset:
    """Return moments (draw, layer, …) with names, units and descriptions.

    `pairs` (p, 2) are the inputs of the correlations, `neurons` N of every layer, and `attributes`
    say how the moments were measured.
    """

    def variable(part: Tensor, last: str, description: str) -> tuple[object, ...]:
        about = {"units": "1", "description": description}
        return ("draw", "layer", last), part.cpu().numpy(), about

    draws, layers, inputs = signals.mean.shape
    return xr.Dataset(
        {
            "signal_variance": variable(
                signals.variance,
                "input",
                "q = |h|²/N, second moment of the carried signal over neurons",
            ),
            "signal_mean": variable(
                signals.mean, "input", "mean of the carried signal over neurons"
            ),
            "correlation": variable(
                signals.correlation,
                "pair",
                "h_a·h_b / (|h_a||h_b|) of two inputs; NaN where a signal is zero",
            ),
        },
        coords={
            **coordinates(draws, layers, inputs, neurons),
            "input_a": ("pair", pairs[:, 0], {"description": "first input of the pair"}),
            "input_b": ("pair", pairs[:, 1], {"description": "second input of the pair"}),
        },
        attrs={"description": "carried signals h_0 … h_L of a network", **attributes},
    )
