"""Signal variance, mean and pair correlation of a network's carried signals, by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from widthlab import models
from widthlab.errors import WidthlabError
from widthlab.statistics.draws import (
    Initialise,
    Seed,
    beside,
    conditions,
    generators,
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
    record = _Record(_pairs(pairs, x.shape[0]), len(names))
    with measuring(model), tapped(model, names, record.tap), torch.no_grad():
        model(x.clone())
    return record.dataset([record.take()], model, names, x.dtype).isel(draw=0, drop=True)


def signals_over_draws(
    model: nn.Module,
    x: Tensor,
    draws: int,
    seed: Seed,
    *,
    pairs: Pairs | None = None,
    signals: Sequence[str] | None = None,
    initialise: Initialise = models.initialise,
) -> xr.Dataset:
    """Measure as `signal_statistics` does, for `draws` random draws of all parameters.

    Dimensions are (draw, layer, input) and (draw, layer, pair). Draw d depends on `seed` and d
    only. Inputs of one draw share its weights, so that only draws are independent. Parameters,
    buffers and modes of the model are put back after.
    """
    names = signal_names(model, signals)
    x = beside(model, x)
    record = _Record(_pairs(pairs, x.shape[0]), len(names))
    taken = []
    with measuring(model), tapped(model, names, record.tap), torch.no_grad():
        for generator in generators(seed, draws):
            initialise(model, generator)
            model(x.clone())
            taken.append(record.take())
    return record.dataset(taken, model, names, x.dtype)


def _pairs(pairs: Pairs | None, inputs: int) -> NDArray[np.int64]:
    """Return the pairs, shape (p, 2), or all of them."""
    if pairs is None:
        return np.stack(np.triu_indices(inputs, k=1), axis=1).astype(np.int64)
    array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if array.size and (array.min() < 0 or array.max() >= inputs):
        raise WidthlabError(f"pairs must name inputs 0 … {inputs - 1}, but one is outside")
    return array


@dataclass
class _Moments:
    """One forward pass: q and means (layer, input), correlations (layer, pair)."""

    variance: Tensor
    mean: Tensor
    correlation: Tensor


class _Record:
    """Keeps the signals of a forward pass, and makes their moments."""

    def __init__(self, pairs: NDArray[np.int64], layers: int) -> None:
        self.pairs = pairs
        used, local = np.unique(pairs, return_inverse=True)
        self.used = torch.from_numpy(used)
        self.local = torch.from_numpy(local.reshape(-1, 2))
        self.neurons = [0] * layers
        self.signals: list[Tensor | None] = [None] * layers

    def tap(self, layer: int, h: Tensor) -> None:
        """Keep one signal, in a copy, since what follows may overwrite it."""
        self.signals[layer] = h.detach().to(torch.float64, copy=True)

    def take(self) -> _Moments:
        """Return the moments of the last forward pass, and forget its signals."""
        found = [signal for signal in self.signals if signal is not None]
        if len(found) < len(self.signals):
            raise WidthlabError(
                f"the signal at position {self.signals.index(None)} of `signals` was not reached "
                "in the forward pass; leave it out"
            )
        self.neurons = [signal[0].numel() for signal in found]
        self.signals = [None] * len(found)
        parts = [self._moments(run) for run in runs(found)]
        return _Moments(*(torch.cat(part).cpu() for part in zip(*parts, strict=True)))

    def _moments(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q and mean (layer, input) and correlation (layer, pair) of (layer, n, N)."""
        few = len(self.used) < h.shape[1]
        used = h.index_select(1, self.used.to(h.device)) if few else h
        gram = used @ used.mT
        norms = gram.diagonal(dim1=1, dim2=2).sqrt()
        a, b = self.local[:, 0], self.local[:, 1]
        correlation = gram[:, a, b] / (norms[:, a] * norms[:, b])
        return torch.linalg.vecdot(h, h) / h.shape[2], h.mean(2), correlation

    def dataset(
        self,
        taken: Sequence[_Moments],
        model: nn.Module,
        names: Sequence[str],
        dtype: torch.dtype,
    ) -> xr.Dataset:
        """Return the moments of all draws with names, units and descriptions."""

        def variable(
            part: Sequence[Tensor], last: str, description: str
        ) -> tuple[tuple[str, ...], NDArray[np.float64], dict[str, str]]:
            attributes = {"units": "1", "description": description}
            return ("draw", "layer", last), torch.stack(list(part)).numpy(), attributes

        return xr.Dataset(
            {
                "signal_variance": variable(
                    [one.variance for one in taken],
                    "input",
                    "q = |h|²/N, second moment of the carried signal over neurons",
                ),
                "signal_mean": variable(
                    [one.mean for one in taken], "input", "mean of the carried signal over neurons"
                ),
                "correlation": variable(
                    [one.correlation for one in taken],
                    "pair",
                    "h_a·h_b / (|h_a||h_b|) of two inputs; NaN where a signal is zero",
                ),
            },
            coords={
                "draw": np.arange(len(taken)),
                "layer": np.arange(len(names)),
                "input": np.arange(taken[0].mean.shape[1]),
                "neurons": (
                    "layer",
                    np.array(self.neurons, dtype=np.int64),
                    {"units": "1", "description": "N, entries of the signal of one input"},
                ),
                "input_a": ("pair", self.pairs[:, 0], {"description": "first input of the pair"}),
                "input_b": ("pair", self.pairs[:, 1], {"description": "second input of the pair"}),
            },
            attrs={
                "description": "carried signals h_0 … h_L of a network",
                **conditions(model, names, dtype),
            },
        )
