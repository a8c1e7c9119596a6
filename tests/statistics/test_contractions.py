"""Each way to contract a layer's gradients against the gradients themselves, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from widthlab.statistics.contractions import (
    HALVED_ABOVE,
    gram,
    patch_gradient,
    patch_gram,
    patch_gram_is_cheaper,
)
from widthlab.statistics.layer_gradients import Direct, Outer


def factor(m: int, outputs: int, positions: int, fan_in: int, neurons: int, seed: int) -> Outer:
    generator = torch.Generator().manual_seed(seed)
    return Outer(
        torch.randn(m, positions, fan_in, dtype=torch.float64, generator=generator),
        torch.randn(m, outputs, neurons, positions, dtype=torch.float64, generator=generator),
        scale=0.7,
    )


def slow(first: Outer, second: Outer, *, trace: bool) -> Tensor:
    """Form every gradient of every weight by a loop, then take inner products."""
    jacobians = []
    for one in (first, second):
        m, outputs, neurons, positions = one.cotangents.shape
        jacobian = torch.zeros(m, outputs, neurons, one.inputs.shape[2], dtype=torch.float64)
        for p in range(positions):
            for i in range(m):
                for c in range(outputs):
                    jacobian[i, c] += torch.outer(one.cotangents[i, c, :, p], one.inputs[i, p])
        jacobians.append(one.scale * jacobian.flatten(2))
    a, b = jacobians
    if trace:
        return torch.stack([a[:, c] @ b[:, c].T for c in range(a.shape[1])]).sum(0)
    return a.flatten(0, 1) @ b.flatten(0, 1).T


def equal(found: Tensor, expected: Tensor, *, same: bool) -> None:
    """All entries agree, or those on and above the diagonal of a symmetric product."""
    if same:
        found, expected = found.triu(), expected.triu()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("memory", [1, 3000, 2**30])
def test_both_ways_equal_the_gradients(trace: bool, same: bool, memory: int) -> None:
    first = factor(5, 3, 4, 6, 7, seed=0)
    second = first if same else factor(4, 3, 4, 6, 7, seed=1)
    expected = slow(first, second, trace=trace)
    for way in (patch_gradient, patch_gram):
        found = way(first, second, trace=trace, dtype=torch.float64, memory=memory)
        equal(0.49 * found, expected, same=same)
    found = gram(first, second, trace=trace, dtype=torch.float64, memory=memory)
    equal(found, expected, same=same)


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_single_position(trace: bool, same: bool) -> None:
    first = factor(5, 3, 1, 6, 7, seed=0)
    second = first if same else factor(4, 3, 1, 6, 7, seed=1)
    found = gram(first, second, trace=trace, dtype=torch.float64, memory=2**20)
    equal(found, slow(first, second, trace=trace), same=same)


@pytest.mark.parametrize("trace", [False, True])
def test_a_symmetric_product_by_halves(trace: bool) -> None:
    m = HALVED_ABOVE + 1
    gradients = torch.randn(
        m, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    one, other = Direct(gradients), Direct(gradients.clone())
    halved = gram(one, one, trace=trace, dtype=torch.float64, memory=2**20)
    whole = gram(one, other, trace=trace, dtype=torch.float64, memory=2**20)
    assert halved.shape == ((m, m) if trace else (2 * m, 2 * m))
    equal(halved, whole, same=True)


def test_the_cheaper_way_is_chosen() -> None:
    few, many = factor(8, 10, 4, 576, 64, seed=0), factor(8, 10, 1024, 27, 16, seed=0)
    for trace in (False, True):
        assert patch_gram_is_cheaper(few, few, trace=trace)
        assert not patch_gram_is_cheaper(many, many, trace=trace)
