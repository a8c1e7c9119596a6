"""ResNet-20 against the paper's numbers and a plain forward pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import conv2d

from widthlab import specs
from widthlab.errors import WidthlabError
from widthlab.models import build


def _resnet(width, shape=(3, 32, 32), outputs=10, seed=0):
    network = specs.Network(architecture=specs.ResNet20(), width=width, depth=20)
    return build(network, shape, outputs, seed)


def test_it_has_the_papers_size():
    """0.27 M parameters (table 6 of He et al. 2015): 269,722, counted by hand."""
    convolutions = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2)
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    head = 64 * 10 + 10
    model = _resnet(16)
    assert sum(p.numel() for p in model.parameters()) == convolutions + norms + head == 269_722
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(layers) + 1 == 20


def _norm(norm, x):
    mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=False)
    return (x - mean[:, None, None]) / (var[:, None, None] + norm.eps).sqrt()


def test_forward_equals_a_plain_one():
    model = _resnet(2, (3, 9, 11), 4).double()
    x = torch.randn(5, 3, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = _norm(model.stem.norm, conv2d(x, model.stem.conv.weight, padding=1)).clamp(min=0)
    for index, block in enumerate(model.blocks):
        stride = 2 if index in (3, 6) else 1
        z = conv2d(h, block.conv1.weight, stride=stride, padding=1)
        z = _norm(block.norm1, z).clamp(min=0)
        z = _norm(block.norm2, conv2d(z, block.conv2.weight, padding=1))
        skip = torch.zeros_like(z)
        for channel in range(h.shape[1]):
            skip[:, channel] = h[:, channel, ::stride, ::stride]
        h = (skip + z).clamp(min=0)
    pooled = h.flatten(2).mean(dim=2)
    expected = pooled @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected)


def test_signals_are_the_stream_of_feature_maps():
    model = _resnet(4, (1, 8, 8)).eval()
    shapes = {}
    modules = dict(model.named_modules())
    for name in model.signals:
        modules[name].register_forward_hook(
            lambda module, args, out, name=name: shapes.__setitem__(name, tuple(out.shape[1:]))
        )
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    expected = [(4, 8, 8)] * 4 + [(8, 4, 4)] * 3 + [(16, 2, 2)] * 3
    assert [shapes[name] for name in model.signals] == expected


def test_convolutions_are_he_normal_with_fan_out():
    weight = _resnet(32).blocks[3].conv1.weight.detach().double()
    assert weight.shape == (64, 32, 3, 3)
    tolerance = 4 * math.sqrt(2 / weight.numel())  # four standard errors
    assert float(weight.square().mean()) == pytest.approx(2 / (9 * 64), rel=tolerance)


@pytest.mark.parametrize("shape", [(64,), (3, 7, 32)])
def test_inputs_that_it_cannot_take_are_refused_by_name(shape):
    with pytest.raises(WidthlabError, match="resnet20 takes images"):
        _resnet(4, shape)


def test_factors_are_one():
    model = _resnet(4)
    factors = model.learning_rate_factors("sgd")
    assert set(factors) == {name for name, _ in model.named_parameters()}
    assert set(factors.values()) == {1.0}
