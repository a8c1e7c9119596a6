"""Gradients of a scalar output with respect to a network's carried signals, over draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xarray as xr
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from widthlab.errors import WidthlabError
from widthlab.statistics.draws import beside, coordinates, signal_names, tapped

MOMENTS = {
    "gradient_norm": "|g_l|, norm over neurons of the gradient of output 0 by the signal h_l",
    "m2": "mean over neurons of g_i²",
    "m22": "mean over pairs of neurons i ≠ j of g_i² g_j²; NaN where N = 1",
    "m11": "mean over pairs of neurons i ≠ j of g_i g_j; NaN where N = 1",
}
"""What is measured of each gradient, by name."""


def signal_gradients(
    model: nn.Module, x: Tensor, *, signals: Sequence[str] | None = None
) -> list[Tensor]:
    """Return g_l = ∂(Σ_a f_0(x_a))/∂h_l for every carried signal, each of the signal's shape.

    f_0 is the first output. Inputs x (n, …) do not affect each other, so that this is the
    gradient of each input's own output, except under batch normalisation, where it is the total
    gradient through the statistics of the batch too (if the network is in training mode: the
    mode is left to the caller). Raises WidthlabError where the output is not of shape (n, C).
    """
    names = signal_names(model, signals)
    taps = Taps(names)
    with tapped(model, names, taps.tap):
        return taps.gradients(model, x)


class Taps:
    """Where the carried signals are in the autograd graph of a forward pass."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.edges: dict[int, GradientEdge] = {}

    def tap(self, layer: int, h: Tensor) -> Tensor:
        """Note one signal."""
        # The edge is the signal as it is now, even if it is overwritten later; but a view that
        # is overwritten drops out of the graph.
        h = h.clone() if h._is_view() else h
        self.edges[layer] = get_gradient_edge(h)
        return h

    def gradients(self, model: nn.Module, x: Tensor) -> list[Tensor]:
        """Run a model that is tapped, and differentiate."""
        self.edges.clear()
        x = beside(model, x)
        with torch.enable_grad():
            # The copy is no leaf, so that it may be overwritten, and h_0 may be the input itself.
            output = model(x.detach().requires_grad_(True).clone())
            if output.ndim != 2:
                raise WidthlabError(
                    "gradients need an output of shape (samples, outputs), not "
                    f"{tuple(output.shape)}"
                )
            for layer, name in enumerate(self.names):
                if layer not in self.edges:
                    raise WidthlabError(
                        f"signal '{name}' was not reached in the forward pass; leave it out"
                    )
            edges = [self.edges[layer] for layer in range(len(self.names))]
            return list(torch.autograd.grad(output[:, 0].sum(), edges))


def moments(gradient: Tensor) -> Tensor:
    """Return the `MOMENTS` of gradients (…, N) over N neurons, shape (4, …), float64.

    With sums over all N neurons, m22 = [(Σg²)² − Σg⁴]/(N(N−1)) and m11 = [(Σg)² − Σg²]/(N(N−1)):
    unbiased for independent draws of a pair of distinct neurons.
    """
    g = gradient.to(torch.float64)
    neurons = g.shape[-1]
    pairs = float(neurons * (neurons - 1)) or float("nan")
    squared = g * g
    first, second, fourth = g.sum(-1), squared.sum(-1), torch.linalg.vecdot(squared, squared)
    return torch.stack(
        [
            second.sqrt(),
            second / neurons,
            (second * second - fourth) / pairs,
            (first * first - second) / pairs,
        ]
    )


def dataset(values: Tensor, neurons: Sequence[int], attributes: dict[str, object]) -> xr.Dataset:
    """Return `MOMENTS` (draw, moment, layer, input) with names, units and descriptions.

    `neurons` are N of every layer, and `attributes` say how the moments were measured.
    """
    draws, _, layers, inputs = values.shape
    return xr.Dataset(
        {
            name: (
                ("draw", "layer", "input"),
                values[:, index].cpu().numpy(),
                {"units": "1", "description": description},
            )
            for index, (name, description) in enumerate(MOMENTS.items())
        },
        coords=coordinates(draws, layers, inputs, neurons),
        attrs={
            "description": "gradients of the first output by the carried signals h_0 … h_L",
            **attributes,
        },
    )
