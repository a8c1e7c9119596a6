"""The empirical neural tangent kernel Θ = J Jᵀ of any network, and numbers made from it.

J is the Jacobian of the outputs with respect to the trainable parameters. It is never formed:
each layer adds the Gram matrix of its own gradients, contracted from the layer's inputs a and
output cotangents δ, (a aᵀ)∘(δ δᵀ) for a dense layer. Jacot, Gabriel & Hongler (2018),
arXiv:1806.07572, introduce the kernel; Novak, Sohl-Dickstein & Schoenholz (2022),
arXiv:2206.08720, compare ways to contract it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.statistics.capture import (
    Captured,
    capture,
    evaluation_mode,
    probe,
    trainable_layers,
)
from widthlab.statistics.contractions import gram
from widthlab.statistics.layer_gradients import GRADIENTS, Factor, Outer, trainable

Outputs = Literal["full", "trace"]

CACHE = 2**23
"""Bytes of a contraction's buffers on a CPU: as fast as possible where they stay in its cache."""

GRAPH_COPIES = 3
"""Tensors of a layer's size that autograd is assumed to keep, for the memory budget."""


def empirical_ntk(
    model: nn.Module,
    x: Tensor,
    *,
    outputs: Outputs = "full",
    rates: Mapping[str, float] | None = None,
    memory: int = 2**30,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the NTK of `model` on the samples x (n, …), float64 on the CPU.

    - `full`: Θ of shape (n·C, n·C), ordered (sample, output): row i·C + c is output c of sample i.
    - `trace`: Σ_c Θ_cc of shape (n, n).

    `rates` are factors on the learning rate by parameter name, 1 where left out: the kernel is
    then Σ_p rate_p J_p J_pᵀ, the one by which gradient descent with these rates moves the outputs.

    The network is in evaluation mode (batch normalisation with running statistics, no dropout),
    and is left as it was found: modes, gradients and hooks. Parameters with requires_grad False
    are left out. The passes run in the network's own precision, Gram matrices are summed in
    `dtype`. Samples go in chunks, so that buffers beside the result take about `memory` bytes.
    Non-finite outputs give non-finite entries.

    Raises WidthlabError, naming the module, for whatever it cannot do correctly: trainable
    parameters outside the layers of `layer_gradients.GRADIENTS`, a module called twice, shared
    parameters, batch normalisation without running statistics, samples that affect each other,
    an output not of shape (n, C).
    """
    if outputs not in ("full", "trace"):
        raise WidthlabError(f"outputs of an NTK must be full or trace, not {outputs!r}")
    if x.ndim == 0 or x.shape[0] == 0:
        raise WidthlabError(f"the NTK needs at least one sample, but x has shape {tuple(x.shape)}")
    layers = trainable_layers(model)
    trace = outputs == "trace"
    device = next(iter(layers.values())).weight.device
    assert isinstance(device, torch.device)
    x = x.detach().to(device)
    with evaluation_mode(model), torch.inference_mode(False), torch.enable_grad():
        few = probe(model, layers, x[:3] if x.shape[0] > 1 else torch.cat([x, x]))
        size = _chunk_size(layers, few, x.shape[0], memory, dtype)
        classes = 1 if trace else next(iter(few.values())).cotangents.shape[1]
        kernel = torch.empty(x.shape[0] * classes, x.shape[0] * classes, dtype=torch.float64)
        working = min(memory // 4, CACHE) if device.type == "cpu" else memory // 4
        for (i, j), block in _blocks(model, layers, x, size, trace, dtype, working, rates or {}):
            rows = slice(i * classes, i * classes + block.shape[0])
            columns = slice(j * classes, j * classes + block.shape[1])
            kernel[rows, columns] = block.cpu()
            if j > i:
                kernel[columns, rows] = kernel[rows, columns].T
    return kernel


def _blocks(
    model: nn.Module,
    layers: dict[str, nn.Module],
    x: Tensor,
    size: int,
    trace: bool,
    dtype: torch.dtype,
    memory: int,
    rates: Mapping[str, float],
) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yield the blocks of the kernel on and above the diagonal, with their first samples."""
    for i in range(0, x.shape[0], size):
        left = capture(model, layers, x[i : i + size])
        upper = torch.triu(_block(layers, left, left, trace, dtype, memory, rates))
        yield (i, i), upper + torch.triu(upper, 1).T
        for j in range(i + size, x.shape[0], size):
            right = capture(model, layers, x[j : j + size])
            yield (i, j), _block(layers, left, right, trace, dtype, memory, rates)


def _block(
    layers: dict[str, nn.Module],
    left: dict[str, Captured],
    right: dict[str, Captured],
    trace: bool,
    dtype: torch.dtype,
    memory: int,
    rates: Mapping[str, float],
) -> Tensor:
    """Return the sum over layers of the Gram matrices of two chunks."""
    total: Tensor | None = None
    for name, module in layers.items():
        if name not in left or name not in right:
            continue
        firsts = _factors(module, left[name])
        seconds = firsts if right is left else _factors(module, right[name])
        # Biases come last, after the weights (several of them in grouped convolutions).
        kinds = ["weight"] * len(firsts)
        if trainable(getattr(module, "bias", None)):
            kinds[-1] = "bias"
        for kind, first, second in zip(kinds, firsts, seconds, strict=True):
            part = gram(first, second, trace=trace, dtype=dtype, memory=memory)
            rate = rates.get(f"{name}.{kind}" if name else kind, 1.0)
            if rate != 1.0:
                part = part * rate
            total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _factors(module: nn.Module, layer: Captured) -> list[Factor]:
    """Return the gradients of a layer in factors."""
    with torch.no_grad():
        return GRADIENTS[type(module)](module, layer.inputs, layer.cotangents)


def _chunk_size(
    layers: dict[str, nn.Module],
    few: dict[str, Captured],
    samples: int,
    memory: int,
    dtype: torch.dtype,
) -> int:
    """Return how many samples go together, from what a few samples take."""
    count, outputs = next(iter(few.values())).cotangents.shape[:2]
    kept, graph, factors = 0, 0, 0
    for name, layer in few.items():
        kept += layer.inputs.nbytes + layer.cotangents.nbytes
        graph += GRAPH_COPIES * (layer.inputs.nbytes + layer.cotangents.nbytes // outputs)
        largest = sum(
            factor.inputs.nbytes if isinstance(factor, Outer) else factor.gradients.nbytes
            for factor in _factors(layers[name], layer)
        )
        factors = max(factors, largest)
    # A quarter of the budget each goes to the contraction and to three blocks of the kernel.
    available = memory // 2
    square = math.isqrt(memory // 4 // (3 * dtype.itemsize)) // outputs
    one, two = (kept + graph + factors) // count, (2 * kept + graph + 2 * factors) // count
    if samples * one <= available and samples <= square:
        return samples
    return max(1, min(available // two, square, samples))


def check_ntk(
    model: nn.Module,
    x: Tensor,
    *,
    outputs: Outputs = "full",
    samples: int = 4,
    seed: int = 0,
    tolerance: float | None = None,
) -> float:
    """Compare the kernel of a few random samples of x with gradients by plain autograd.

    Returns the largest error relative to √(Θ_ii Θ_jj). Raises WidthlabError where it is above
    `tolerance` (1e-9 left out, or 1e-4 for a network in single precision). The comparison holds
    `samples`·C gradients of the size of the parameters.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = x[torch.randperm(x.shape[0], generator=generator)[:samples].to(x.device)]
    kernel = empirical_ntk(model, chosen, outputs=outputs)
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows: list[Tensor] = []
    with evaluation_mode(model), torch.enable_grad():
        for sample in chosen.to(parameters[0].device):
            for value in model(sample[None])[0]:
                gradients = torch.autograd.grad(
                    value, parameters, retain_graph=True, allow_unused=True
                )
                rows.append(
                    torch.cat(
                        [
                            torch.zeros_like(p).flatten() if g is None else g.flatten()
                            for p, g in zip(parameters, gradients, strict=True)
                        ]
                    ).to("cpu", torch.float64)
                )
    jacobian = torch.stack(rows).view(chosen.shape[0], -1, rows[0].numel())
    flat = jacobian.flatten(1) if outputs == "trace" else jacobian.flatten(0, 1)
    expected = flat @ flat.T
    size = expected.diagonal().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    error = float(((kernel - expected).abs() / size / size[:, None]).max())
    if tolerance is None:
        tolerance = 1e-9 if parameters[0].dtype == torch.float64 else 1e-4
    if not error <= tolerance:
        raise WidthlabError(
            f"the NTK of {type(model).__name__} is wrong by {error:.1e}, above the tolerance "
            f"{tolerance:.1e}: the network does something that its layers' hooks cannot see"
        )
    return error


def relative_drift(kernel: Tensor, kernel0: Tensor) -> float:
    """Return |Θ_t − Θ_0|_F / |Θ_0|_F (dimensionless); NaN where Θ_0 is zero or not finite."""
    kernel, kernel0 = _same_shape(kernel, kernel0)
    return float(torch.linalg.norm(kernel - kernel0) / torch.linalg.norm(kernel0))


def kernel_alignment(kernel: Tensor, kernel0: Tensor) -> float:
    """Return ⟨A, B⟩_F / (|A|_F |B|_F), 1 for proportional kernels; NaN where one is zero."""
    kernel, kernel0 = _same_shape(kernel, kernel0)
    norms = torch.linalg.norm(kernel) * torch.linalg.norm(kernel0)
    return float((kernel * kernel0).sum() / norms)


def eigenvalues(kernel: Tensor) -> Tensor:
    """Return the eigenvalues of a symmetric kernel (r, r), descending, float64.

    All NaN where the kernel is not finite. Raises WidthlabError where it is not square.
    """
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise WidthlabError(f"a kernel must be square, but its shape is {tuple(kernel.shape)}")
    kernel = kernel.to(torch.float64)
    if not bool(kernel.isfinite().all()):
        return torch.full(kernel.shape[:1], math.nan, dtype=torch.float64)
    values: Tensor = torch.linalg.eigvalsh(kernel)
    return values.flip(0)


def _same_shape(kernel: Tensor, kernel0: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float64, or raise WidthlabError where their shapes differ."""
    if kernel.shape != kernel0.shape:
        raise WidthlabError(
            f"kernels of shapes {tuple(kernel.shape)} and {tuple(kernel0.shape)} cannot be "
            "compared; measure both on the same samples and outputs"
        )
    return kernel.to(torch.float64), kernel0.to(torch.float64)
