"""Statistics of random perceptrons over draws, without making their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from widthlab import specs
from widthlab.ensembles.network import weightfree
from widthlab.ensembles.unseen import Unseen
from widthlab.errors import WidthlabError
from widthlab.models import Model
from widthlab.statistics import gradients, signals
from widthlab.statistics.draws import Seed, tapped
from widthlab.statistics.over_draws import Measure, kernels_dataset

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
    kinds = tuple(measure)
    parts = [
        _Batch(network, flat, size, generator, kinds, pairs).run()
        for size, generator in _batches(network, flat, draws, seed, kinds)
    ]
    names = parts[0].names
    attributes: dict[str, object] = {
        "engine": "weightfree",
        "dtype": "float64",
        "accumulation_dtype": "float64",
        "batch_normalisation": "none",
        "signals": list(names),
    }
    neurons = parts[0].neurons
    found = []
    if "signals" in kinds:
        moments = zip(*(part.signals() for part in parts), strict=True)
        whole = signals.Signals(*(torch.cat(one) for one in moments))
        found.append(signals.dataset(whole, parts[0].pairs, neurons, attributes))
    if "gradients" in kinds:
        slopes = torch.cat([torch.stack(part.slopes, dim=2) for part in parts], dim=1)
        found.append(gradients.dataset(slopes.transpose(0, 1), neurons, attributes))
    if "ntk" in kinds:
        found.append(kernels_dataset(torch.cat([part.kernel for part in parts]), attributes))
    return xr.merge(found, compat="equals", join="exact", combine_attrs="drop_conflicts")


def _batches(
    network: specs.Network, x: Tensor, draws: int, seed: Seed, measure: Sequence[Measure]
) -> Iterator[tuple[int, torch.Generator]]:
    """Yield the size and the generator of every batch of draws."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    signal = len(x) * network.width
    size = BLOCK[x.device.type] // signal
    if set(measure) - {"signals"}:
        two_layer = getattr(network.architecture, "branch", "") == "two_layer"
        kept = KEPT * 8 * signal * network.depth * (1 + two_layer)
        size = min(size, int(MEMORY / kept))
    size = max(1, size)
    for batch, first in enumerate(range(0, draws, size)):
        child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, batch))
        generator = torch.Generator(x.device)
        generator.manual_seed(int(child.generate_state(1, np.uint64)[0]))
        yield min(size, draws - first), generator


class _Batch:
    """Draws that run together, and what is measured of them layer by layer."""

    def __init__(
        self,
        network: specs.Network,
        x: Tensor,
        draws: int,
        generator: torch.Generator,
        measure: Sequence[Measure],
        pairs: signals.Pairs | None,
    ) -> None:
        self.model: Model = weightfree(network, x.shape[1], generator)
        self.x = x.expand(draws, *x.shape)
        self.measure = measure
        self.pairs = signals.checked_pairs(pairs, len(x))
        self.pairing = signals.Pairing(self.pairs)
        self.names = self.model.signals
        self.neurons = [0] * len(self.names)
        self.moments: list[signals.Signals] = []
        self.slopes: list[Tensor] = [torch.empty(0)] * len(self.names)
        self.kernel = x.new_zeros(draws, len(x), len(x))

    def run(self) -> _Batch:
        """Draw and measure."""
        backward = bool({"gradients", "ntk"} & set(self.measure))
        if "ntk" in self.measure:
            for module in self.model.modules():
                if isinstance(module, Unseen | nn.LayerNorm):
                    module.register_forward_hook(self._kernel_hook)
        with tapped(self.model, self.names, self._tap), torch.set_grad_enabled(backward):
            output = self.model(self.x.clone().requires_grad_(backward))
            if backward:
                output.sum().backward()
        return self

    def signals(self) -> signals.Signals:
        """Return the moments by layer: (draw, layer, input or pair)."""
        return signals.Signals(
            *(torch.stack(part, dim=1) for part in zip(*self.moments, strict=True))
        )

    def _tap(self, layer: int, h: Tensor) -> None:
        self.neurons[layer] = h.shape[-1]
        if "signals" in self.measure:
            self.moments.append(self.pairing.moments(h.detach()))
        if "gradients" in self.measure:

            def keep(gradient: Tensor) -> None:
                self.slopes[layer] = gradients.moments(gradient)

            _on_gradient(h, keep)

    def _kernel_hook(self, module: nn.Module, args: tuple[Tensor], z: Tensor) -> None:
        """Add the part of one module's parameters to the kernel when its gradient is known."""
        h = args[0].detach()
        if isinstance(module, Unseen):
            # ∂f_a/∂W = scale·δ_a h_aᵀ and ∂f_a/∂b = scale·δ_a.
            inputs = module.weight_scale**2 * (h @ h.mT)
            if module.has_bias:
                inputs = inputs + module.bias_scale**2

            def dense(gradient: Tensor) -> None:
                self.kernel += (gradient @ gradient.mT) * inputs

            _on_gradient(z, dense)
        else:
            normalised = z.detach()  # gains are 1 and shifts 0

            def norm(gradient: Tensor) -> None:
                gain = gradient * normalised
                self.kernel += gain @ gain.mT + gradient @ gradient.mT

            _on_gradient(z, norm)


def _on_gradient(tensor: Tensor, call: Callable[[Tensor], None]) -> None:
    """Call a function with the whole gradient by a tensor, once it is known."""
    tensor.register_hook(call)  # type: ignore[no-untyped-call]
