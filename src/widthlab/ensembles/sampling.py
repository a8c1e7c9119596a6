"""Statistics of random perceptrons over draws, without making their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from widthlab import specs
from widthlab.ensembles.network import weightfree
from widthlab.ensembles.unseen import Unseen
from widthlab.errors import WidthlabError
from widthlab.models import Model
from widthlab.statistics import gradients, signals
from widthlab.statistics.draws import Seed, nth_seed, tapped
from widthlab.statistics.over_draws import kernels_dataset, merged

Measure = Literal["signals", "gradients", "ntk"]

BLOCK = {"cpu": 2**18, "cuda": 2**24}
"""Numbers in the signals of one layer that are handled at once: as many as a cache holds."""
MEMORY = 2**29
"""Bytes that the layers of one batch of draws may keep for the pass backward."""
KEPT = 2.5
"""Tensors of a signal's size that a dense layer and what follows it keep for the pass backward."""


def sample(
    network: specs.Network,
    x: Tensor,
    draws: int,
    seed: Seed,
    *,
    measure: Sequence[Measure] = ("signals",),
    pairs: signals.Pairs | None = None,
) -> xr.Dataset:
    """Measure `draws` random networks on inputs x (n, …), in the layout of `over_draws`.

    The numbers have the distribution of those of real networks of this size, at a cost that is
    linear in the width. Draws run in batches, each with a seed of its own, in float64 on the
    device of x. Raises WidthlabError for a network that cannot be drawn without its weights.
    """
    if draws < 1:
        raise WidthlabError(f"draws must be at least 1, not {draws}")
    flat = x.reshape(len(x), -1).to(torch.float64)
    generator = torch.Generator(x.device)
    model = weightfree(network, flat.shape[1], generator)
    record = _Record(model, flat, draws, tuple(measure), signals.checked_pairs(pairs, len(x)))
    size = _batch_size(network, flat, backward=record.backward)
    for batch, first in enumerate(range(0, draws, size)):
        generator.manual_seed(nth_seed(seed, batch))
        record.run(slice(first, min(first + size, draws)))
    return record.dataset()


def _batch_size(network: specs.Network, x: Tensor, *, backward: bool) -> int:
    """Return how many draws run together."""
    signal = len(x) * network.width
    size = BLOCK[x.device.type] // signal
    if backward:
        two_layer = getattr(network.architecture, "branch", "") == "two_layer"
        kept = KEPT * 8 * signal * network.depth * (1 + two_layer)
        size = min(size, int(MEMORY / kept))
    return max(1, size)


class _Record:
    """What is measured of all draws; a batch of them fills its rows, layer by layer.

    Room for the results is made once: small results that are kept among large buffers that are
    not would leave the heap full of holes.
    """

    def __init__(
        self,
        model: Model,
        x: Tensor,
        draws: int,
        measure: Sequence[Measure],
        pairs: NDArray[np.int64],
    ) -> None:
        self.model, self.x, self.measure, self.pairs = model, x, measure, pairs
        self.pairing = signals.Pairing(pairs)
        layers, inputs = len(model.signals), len(x)
        self.neurons = [0] * layers
        self.moments = signals.Signals(
            x.new_empty(draws, layers, inputs),
            x.new_empty(draws, layers, inputs),
            x.new_empty(draws, layers, len(pairs)),
        )
        self.slopes = x.new_empty(draws, len(gradients.MOMENTS), layers, inputs)
        self.kernel = x.new_zeros(draws, inputs, inputs)
        self.rows = slice(0)
        self.backward = bool({"gradients", "ntk"} & set(measure))
        if "ntk" in measure:
            for module in model.modules():
                if isinstance(module, Unseen | nn.LayerNorm):
                    module.register_forward_hook(self._kernel_hook)

    def run(self, rows: slice) -> None:
        """Draw and measure the networks number `rows`."""
        self.rows = rows
        x = self.x.expand(rows.stop - rows.start, *self.x.shape).clone()
        with tapped(self.model, self.model.signals, self._tap):
            with torch.set_grad_enabled(self.backward):
                output = self.model(x.requires_grad_(self.backward))
            if self.backward:
                output.sum().backward()

    def dataset(self) -> xr.Dataset:
        """Return what was asked for."""
        attributes: dict[str, object] = {
            "engine": "weightfree",
            "dtype": "float64",
            "accumulation_dtype": "float64",
            "batch_normalisation": "none",
            "signals": list(self.model.signals),
        }
        parts = []
        if "signals" in self.measure:
            parts.append(signals.dataset(self.moments, self.pairs, self.neurons, attributes))
        if "gradients" in self.measure:
            parts.append(gradients.dataset(self.slopes, self.neurons, attributes))
        if "ntk" in self.measure:
            parts.append(kernels_dataset(self.kernel, attributes))
        return merged(parts)

    def _tap(self, layer: int, h: Tensor) -> None:
        self.neurons[layer] = h.shape[-1]
        if "signals" in self.measure:
            found = self.pairing.moments(h.detach())
            for whole, part in zip(self.moments, found, strict=True):
                whole[self.rows, layer] = part
        if "gradients" in self.measure:

            def keep(gradient: Tensor) -> None:
                self.slopes[self.rows, :, layer] = gradients.moments(gradient).transpose(0, 1)

            _on_gradient(h, keep)

    def _kernel_hook(self, module: nn.Module, args: tuple[Tensor], z: Tensor) -> None:
        """Add the part of one module's parameters to the kernel when its gradient is known."""
        h = args[0].detach()
        kernel = self.kernel[self.rows]
        if isinstance(module, Unseen):
            # ∂f_a/∂W = scale·δ_a h_aᵀ and ∂f_a/∂b = scale·δ_a.
            inputs = module.weight_scale**2 * (h @ h.mT)
            if module.has_bias:
                inputs = inputs + module.bias_scale**2

            def dense(gradient: Tensor) -> None:
                kernel.add_((gradient @ gradient.mT) * inputs)

            _on_gradient(z, dense)
        else:
            normalised = z.detach()  # gains are 1 and shifts 0

            def norm(gradient: Tensor) -> None:
                gain = gradient * normalised
                kernel.add_(gain @ gain.mT + gradient @ gradient.mT)

            _on_gradient(z, norm)


def _on_gradient(tensor: Tensor, call: Callable[[Tensor], None]) -> None:
    """Call a function with the whole gradient by a tensor, once it is known."""
    tensor.register_hook(call)  # type: ignore[no-untyped-call]
