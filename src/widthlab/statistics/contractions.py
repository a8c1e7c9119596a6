"""Gram matrices of per-sample gradients, from their factors.

For two chunks of m and m' samples, `gram` returns the inner products of all gradients of one
with all gradients of the other: (m·C, m'·C), ordered (sample, output), or with `trace` their sum
over equal outputs, (m, m'). Where the two chunks are one and the same object the result is
symmetric, and only the part on and above the diagonal is sure to be filled in.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from widthlab.statistics.layer_gradients import Direct, Factor, Outer

HALVED_ABOVE = 192
"""Rows above which a symmetric product is worth splitting into blocks."""

INNER_CACHE = 2**18
"""Bytes of the buffer that a CPU's loop over samples uses again: half of a core's own cache."""


def gram(first: Factor, second: Factor, *, trace: bool, dtype: torch.dtype, memory: int) -> Tensor:
    """Return the inner products of the gradients `first` and `second`, in `dtype`.

    The larger temporary buffers are kept to about `memory` bytes.
    """
    if isinstance(first, Direct):
        assert isinstance(second, Direct)
        return _rows(first.gradients, second.gradients, trace, dtype)
    assert isinstance(second, Outer)
    if first.inputs.shape[1] == 1:
        total = _single_position(first, second, trace, dtype)
    elif patch_gram_is_cheaper(first, second, trace=trace):
        total = patch_gram(first, second, trace=trace, dtype=dtype, memory=memory)
    else:
        total = patch_gradient(first, second, trace=trace, dtype=dtype, memory=memory)
    return total.mul_(first.scale * second.scale)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return left·rightᵀ of (r, k) and (r', k), the upper part where they are one object."""
    if left is not right:
        return left.to(dtype) @ right.to(dtype).T
    left = left.to(dtype)
    rows = left.shape[0]
    if rows <= HALVED_ABOVE:
        return left @ left.T
    total = left.new_zeros(rows, rows)
    step = -(-rows // 6)
    for start in range(0, rows, step):
        total[start : start + step, start:].addmm_(left[start : start + step], left[start:].T)
    return total


def _rows(left: Tensor, right: Tensor, trace: bool, dtype: torch.dtype) -> Tensor:
    """Return the inner products of gradients (m, C, …) and (m', C, …)."""
    axis = 1 if trace else 2
    rows = left.flatten(axis).flatten(0, axis - 1)
    return _product(
        rows, rows if right is left else right.flatten(axis).flatten(0, axis - 1), dtype
    )


def _single_position(first: Outer, second: Outer, trace: bool, dtype: torch.dtype) -> Tensor:
    """(a aᵀ)∘(δ δᵀ): a dense layer."""
    left = first.inputs[:, 0]
    inputs = _product(left, left if second is first else second.inputs[:, 0], dtype)
    right = first.cotangents if second is first else second.cotangents
    total = _rows(first.cotangents, right, trace, dtype)
    if trace:
        return total.mul_(inputs)
    outputs = first.cotangents.shape[1]
    blocks = total.view(inputs.shape[0], outputs, inputs.shape[1], outputs)
    blocks.mul_(inputs[:, None, :, None])
    return total


def patch_gram_is_cheaper(first: Outer, second: Outer, *, trace: bool) -> bool:
    """Compare the multiplications of the two ways to contract a layer with positions."""
    m, outputs, neurons, positions = first.cotangents.shape
    other, fan_in = second.inputs.shape[0], first.inputs.shape[2]
    made = m if second is first else m + other
    pairs = m * other
    weights = made * outputs * positions * neurons * fan_in
    if trace:
        by_gradient = weights + pairs * outputs * neurons * fan_in
        by_gram = pairs * positions**2 * (fan_in + outputs * neurons)
    else:
        by_gradient = weights + pairs * outputs**2 * neurons * fan_in
        by_gram = (
            pairs * positions * (positions * (fan_in + outputs * neurons) + outputs**2 * neurons)
        )
    return by_gram < by_gradient


def patch_gradient(
    first: Outer, second: Outer, *, trace: bool, dtype: torch.dtype, memory: int
) -> Tensor:
    """Make the weight gradient of every sample, for some neurons at a time, and contract it."""
    m, outputs, neurons, _ = first.cotangents.shape
    made = m if second is first else m + second.inputs.shape[0]
    per_neuron = made * outputs * first.inputs.shape[2] * (dtype.itemsize + 4)
    step = max(1, min(neurons, memory // per_neuron))
    total: Tensor | None = None
    for start in range(0, neurons, step):
        left = _weight_gradients(first, start, start + step)
        right = left if second is first else _weight_gradients(second, start, start + step)
        part = _rows(left, right, trace, dtype)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _weight_gradients(factor: Outer, start: int, stop: int) -> Tensor:
    """Return the gradients of neurons start … stop − 1, shape (m, C, neurons · F)."""
    cotangents = factor.cotangents[:, :, start:stop]
    m, outputs, neurons, positions = cotangents.shape
    gradients = cotangents.reshape(m, outputs * neurons, positions) @ factor.inputs
    return gradients.reshape(m, outputs, -1)


def patch_gram(
    first: Outer, second: Outer, *, trace: bool, dtype: torch.dtype, memory: int
) -> Tensor:
    """Contract patches with patches and cotangents with cotangents, some samples at a time."""
    m, outputs, neurons, positions = first.cotangents.shape
    other = second.inputs.shape[0]
    if trace:
        size, blocks = 1, _trace_block
        rows = columns = max(1, math.isqrt(memory // (2 * positions**2 * dtype.itemsize)))
    else:
        size, blocks = outputs, _full_block
        spread = positions * neurons * outputs * dtype.itemsize
        on_cpu = first.inputs.device.type == "cpu"
        rows = max(1, (min(memory, INNER_CACHE) if on_cpu else memory) // spread)
        columns = max(1, memory // (spread + rows * positions**2 * dtype.itemsize))
    total = first.inputs.new_zeros((m * size, other * size), dtype=dtype)
    for i in range(0, m, rows):
        a, delta = first.inputs[i : i + rows].to(dtype), first.cotangents[i : i + rows].to(dtype)
        for j in range(i if second is first else 0, other, columns):
            a2 = second.inputs[j : j + columns].to(dtype)
            delta2 = second.cotangents[j : j + columns].to(dtype)
            block = total[i * size : (i + rows) * size, j * size : (j + columns) * size]
            block.copy_(blocks(a, delta, a2, delta2))
    return total


def _full_block(a: Tensor, delta: Tensor, a2: Tensor, delta2: Tensor) -> Tensor:
    """Σ_pq (a_ip·a_jq)(δ_icp·δ_jdq), shape (m·C, m'·C)."""
    m, outputs, _, positions = delta.shape
    other = a2.shape[0]
    # The summed axes are neighbours in memory throughout, so that nothing is copied in the loop.
    left = delta.transpose(2, 3).reshape(m, outputs, -1)
    right = delta2.permute(0, 3, 2, 1).reshape(other, positions, -1)
    inner = (a.flatten(0, 1) @ a2.flatten(0, 1).T).view(m * positions, other, positions)
    total = a.new_empty(m, outputs, other, outputs)
    for j in range(other):
        spread = inner[:, j] @ right[j]
        total[:, :, j] = left @ spread.view(m, -1, outputs)
    return total.view(m * outputs, other * outputs)


def _trace_block(a: Tensor, delta: Tensor, a2: Tensor, delta2: Tensor) -> Tensor:
    """Σ_c Σ_pq (a_ip·a_jq)(δ_icp·δ_jcq), shape (m, m')."""
    m, _, _, positions = delta.shape
    other = a2.shape[0]
    total = a.flatten(0, 1) @ a2.flatten(0, 1).T
    cotangents = delta.flatten(1, 2).transpose(1, 2).flatten(0, 1)
    cotangents2 = delta2.flatten(1, 2).transpose(1, 2).flatten(0, 1)
    total.mul_(cotangents @ cotangents2.T)
    return total.view(m, positions, other, positions).sum((1, 3))
