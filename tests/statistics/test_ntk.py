"""The layerwise NTK against the Jacobian by autograd, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from widthlab import models, specs
from widthlab.errors import WidthlabError
from widthlab.models.layers import Dense
from widthlab.statistics.ntk import check_ntk, empirical_ntk
from widthlab.statistics.over_draws import over_draws


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def slow_ntk(model: nn.Module, x: Tensor, outputs: str = "full") -> Tensor:
    """One sample, one output and one parameter at a time, by autograd."""
    model = copy.deepcopy(model).eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for sample in x:
        for value in model(sample[None])[0]:
            gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            rows.append(
                torch.cat(
                    [
                        (torch.zeros_like(p) if g is None else g).flatten()
                        for p, g in zip(parameters, gradients, strict=True)
                    ]
                )
            )
    jacobian = torch.stack(rows)
    kernel = (jacobian @ jacobian.T).double()
    if outputs == "full":
        return kernel
    n, c = x.shape[0], kernel.shape[0] // x.shape[0]
    return kernel.view(n, c, n, c).diagonal(dim1=1, dim2=3).sum(-1)


def agrees(model: nn.Module, x: Tensor) -> None:
    """Both modes, in one chunk and in chunks of single samples, equal the slow twin."""
    for outputs in ("full", "trace"):
        expected = slow_ntk(model, x, outputs)
        assert expected.norm() > 0
        scale = expected.diagonal().max()
        for memory in (2**30, 1):
            kernel = empirical_ntk(model, x, outputs=outputs, memory=memory)
            assert kernel.dtype == torch.float64
            assert kernel.device.type == "cpu"
            torch.testing.assert_close(kernel / scale, expected / scale, rtol=1e-10, atol=1e-12)


def shaken(model: nn.Module) -> nn.Module:
    """In float64, with no parameter or statistic left at its trivial value of 0 or 1."""
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)
    return model


class Tokens(nn.Module):
    """A layer on token sequences (n, T, d), pooled over tokens."""

    def __init__(self, layer: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.act, self.head = layer, act or nn.Tanh(), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.layer(x)).mean(1))


class Skip(nn.Module):
    """A residual net with in-place nonlinearities and additions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 7), nn.Linear(7, 6)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.embed(x))
        h = h + self.outer(self.act(self.inner(h)))
        z = self.head(h)
        z += 0.5 * z.detach().sign()
        return z * z


def image(*layers: nn.Module, channels: int = 4, side: int = 6) -> nn.Module:
    """Layers on images of two channels, followed by a tanh and a dense head."""
    body = nn.Sequential(*layers)
    size = body.double()(torch.zeros(1, channels, side, side).double()).numel()
    return nn.Sequential(body, nn.Tanh(), nn.Flatten(), nn.Linear(size, 3))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "mlp without bias": (
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.GELU(), nn.Linear(6, 1)),
        (4,),
    ),
    "skip, in place": (Skip, (4,)),
    "tokens, in place": (lambda: Tokens(nn.Linear(3, 5), nn.ReLU(inplace=True)), (7, 3)),
    "conv, in place": (lambda: image(nn.Conv2d(4, 5, 3), nn.ReLU(inplace=True)), (4, 6, 6)),
    "tokens": (lambda: Tokens(nn.Linear(3, 5)), (7, 3)),
    "tokens with dense": (lambda: Tokens(_ntk_dense(3, 5)), (7, 3)),
    "token layer norm": (lambda: Tokens(nn.LayerNorm(5)), (7, 5)),
    "layer norm over two axes": (lambda: Tokens(nn.LayerNorm((7, 5))), (7, 5)),
    "layer norm without bias": (lambda: Tokens(nn.LayerNorm(5, bias=False)), (7, 5)),
    "conv": (lambda: image(nn.Conv2d(4, 5, 3)), (4, 6, 6)),
    "conv, stride, padding, dilation": (
        lambda: image(nn.Conv2d(4, 5, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2))),
        (4, 6, 6),
    ),
    "conv, groups": (lambda: image(nn.Conv2d(4, 6, 3, groups=2)), (4, 6, 6)),
    "conv, depthwise": (lambda: image(nn.Conv2d(4, 8, 3, groups=4, bias=False)), (4, 6, 6)),
    "conv, same": (lambda: image(nn.Conv2d(4, 5, (4, 3), padding="same")), (4, 6, 6)),
    "conv, same, dilated": (
        lambda: image(nn.Conv2d(4, 5, (5, 3), padding="same", dilation=(1, 2))),
        (4, 6, 6),
    ),
    "conv, valid": (lambda: image(nn.Conv2d(4, 5, 3, padding="valid")), (4, 6, 6)),
    "conv, circular": (
        lambda: image(nn.Conv2d(4, 5, 3, padding=1, padding_mode="circular")),
        (4, 6, 6),
    ),
    "conv, one pixel": (lambda: image(nn.Conv2d(4, 5, 6)), (4, 6, 6)),
    "conv, wide": (lambda: image(nn.Conv2d(4, 30, 3, stride=3)), (4, 6, 6)),
    "batch norm 1d": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)
        ),
        (4,),
    ),
    "batch norm 1d, positions": (
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
        (4, 3),
    ),
    "batch norm 2d": (lambda: image(nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3)), (4, 6, 6)),
    "group norm": (lambda: image(nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 3)), (4, 6, 6)),
}


def _ntk_dense(inputs: int, outputs: int) -> Dense:
    dense = Dense(
        inputs, outputs, weight_variance=2.0, bias_variance=0.3, bias=True, parameterisation="ntk"
    )
    dense.redraw(torch.Generator().manual_seed(3))
    assert dense.weight_scale != 1
    assert dense.bias_scale != 1
    return dense


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("name", MODULES)
def test_layers(name: str) -> None:
    make, shape = MODULES[name]
    model = shaken(make())
    x = torch.randn(5, *shape, dtype=torch.float64)
    agrees(model, x)
    assert check_ntk(model, x) < 1e-10


NETWORKS: dict[str, tuple[specs.Network, tuple[int, ...]]] = {
    "mlp": (
        specs.Network(
            architecture=specs.MLP(activation="gelu", normalisation="layer"), width=9, depth=3
        ),
        (5,),
    ),
    "mlp ntk": (
        specs.Network(
            architecture=specs.MLP(activation="erf", bias_variance=0.2, parameterisation="ntk"),
            width=9,
            depth=3,
        ),
        (5,),
    ),
    "residual": (
        specs.Network(
            architecture=specs.ResidualMLP(
                activation="tanh", bias=True, normalisation="batch", parameterisation="mup"
            ),
            width=6,
            depth=3,
        ),
        (5,),
    ),
    "residual post": (
        specs.Network(
            architecture=specs.ResidualMLP(
                branch="one_layer", position="post", parameterisation="ntk"
            ),
            width=6,
            depth=3,
        ),
        (5,),
    ),
    "resnet20": (
        specs.Network(architecture=specs.ResNet20(), width=2, depth=20),
        (2, 8, 8),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    network, shape = NETWORKS[name]
    model = shaken(models.build(network, shape, 3, seed=1))
    agrees(model, torch.randn(4, *shape, dtype=torch.float64))


def batches(model: nn.Module, x: Tensor, memory: int) -> list[int]:
    """Return the batch sizes of all forward passes of one kernel."""
    sizes: list[int] = []
    handle = model.register_forward_pre_hook(lambda _module, args: sizes.append(len(args[0])))
    empirical_ntk(model, x, memory=memory)
    handle.remove()
    return sizes


def test_chunks_of_every_size_and_their_order() -> None:
    model = shaken(image(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)))
    x = torch.randn(7, 4, 6, 6, dtype=torch.float64)
    expected = slow_ntk(model, x)
    for exponent in range(10, 24):
        kernel = empirical_ntk(model, x, memory=2**exponent)
        torch.testing.assert_close(kernel, expected, rtol=1e-10, atol=1e-12)
        assert torch.equal(kernel, kernel.T)
    assert max(batches(model, x, 2**30)) == 7
    assert max(batches(model, x, 1)) == 3  # the probe; chunks are of one sample
    assert batches(model, x, 1).count(1) == 7 * 8 // 2
    model.eval()
    first, second = (
        torch.autograd.grad(model(x[[i]])[0, c], list(model.parameters()))
        for i, c in ((3, 1), (5, 2))
    )
    inner = sum(float((a * b).sum()) for a, b in zip(first, second, strict=True))
    assert kernel[3 * 3 + 1, 5 * 3 + 2] == pytest.approx(inner, rel=1e-10)


def test_single_precision_is_close_to_double() -> None:
    network, shape = NETWORKS["resnet20"]
    model = shaken(models.build(network, shape, 3, seed=1))
    x = torch.randn(4, *shape)
    double = empirical_ntk(model, x.double())
    for dtype in (torch.float64, torch.float32):
        single = empirical_ntk(copy.deepcopy(model).float(), x, dtype=dtype)
        assert single.dtype == torch.float64
        assert (single - double).norm() / double.norm() < 1e-4
    assert not torch.equal(single, double)


def test_frozen_parameters_are_left_out() -> None:
    model = shaken(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Linear(5, 3)))
    x = torch.randn(4, 4, dtype=torch.float64)
    full = empirical_ntk(model, x)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    agrees(model, x)
    assert empirical_ntk(model, x).trace() < full.trace()
    model.requires_grad_(False)
    with pytest.raises(WidthlabError, match="no trainable parameter"):
        empirical_ntk(model, x)


def test_a_frozen_unsupported_layer_is_passed_through() -> None:
    model = shaken(nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 3)))
    model[1].requires_grad_(False)
    agrees(model, torch.randn(4, 4, dtype=torch.float64))


def test_a_layer_that_is_not_reached_adds_nothing() -> None:
    model = shaken(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    x = torch.randn(4, 4, dtype=torch.float64)
    expected = empirical_ntk(model, x)
    model[1].spare = nn.Linear(2, 2)
    torch.testing.assert_close(empirical_ntk(model, x), expected, rtol=0, atol=0)
    agrees(model, x)


def test_one_sample() -> None:
    model = shaken(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    agrees(model, torch.randn(1, 4, dtype=torch.float64))


def test_checkpointed_blocks() -> None:
    class Checkpointed(Skip):
        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            block = nn.Sequential(self.inner, nn.Tanh(), self.outer)
            return self.head(h + checkpoint(block, h, use_reentrant=False))

    agrees(shaken(Checkpointed()), torch.randn(4, 4, dtype=torch.float64))


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3)
    )
    model[2].eval()
    model[0].bias.requires_grad_(False)
    model[0].weight.grad = torch.full_like(model[0].weight, 2.0)
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(5, 4)
    kept = x.clone()
    with torch.no_grad():
        empirical_ntk(model, x)
    modes = [module.training for module in model]
    assert modes == [True, True, False, True, True]
    assert not model[0].bias.requires_grad
    assert torch.equal(model[0].weight.grad, torch.full_like(model[0].weight, 2.0))
    assert model[4].weight.grad is None
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert torch.equal(x, kept)
    assert not any(module._forward_hooks for module in model)


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    with pytest.raises(RuntimeError):
        empirical_ntk(model, torch.randn(5, 3))
    assert model.training
    assert all(module.training for module in model)
    assert not any(module._forward_hooks for module in model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_equals_cpu() -> None:
    network, shape = NETWORKS["resnet20"]
    model = shaken(models.build(network, shape, 3, seed=1))
    x = torch.randn(4, *shape, dtype=torch.float64)
    expected = empirical_ntk(model, x)
    kernel = empirical_ntk(model.cuda(), x)
    torch.testing.assert_close(kernel, expected, rtol=1e-9, atol=1e-12)
    both = ("signals", "gradients")
    there = over_draws(model, x, 2, 0, measure=both)
    xr.testing.assert_allclose(there, over_draws(model.cpu(), x, 2, 0, measure=both))
