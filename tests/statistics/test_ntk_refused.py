"""What the layerwise NTK refuses, by name, instead of returning a wrong kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.statistics.ntk import check_ntk, empirical_ntk


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.body = nn.Parameter(torch.ones(3)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.body(x)


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(torch.tanh(self.body(x)))))


class Tied(Reused):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 4)
        self.second.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.body(x)))))


class TiedByFunction(Reused):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)) @ self.body.weight)


class Functional(Reused):
    def forward(self, x: Tensor) -> Tensor:
        self.body(x)
        return self.head(torch.tanh(x @ self.body.weight.T))


class Overwriting(Reused):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x)
        z = self.body(h)
        h.data.add_(1.0)
        with torch.no_grad():
            h.add_(1.0)
        return self.head(z)


class Hidden(Reused):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.body(x)
        return self.head(h)


class BatchMean(Reused):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(torch.tanh(h - h.mean(0)))


class TokensFirst(Reused):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.transpose(0, 1)).mean(0))


class Sequence(Reused):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Subclassed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.sum()


def weight_normed() -> nn.Module:
    return nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))


def extra_parameter() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.gain = nn.Parameter(torch.ones(3))
    return nn.Sequential(layer)


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "own parameter": (Own, (4,), r"gain.* of Own"),
    "unsupported type": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU()),
        (4,),
        r"module '1' \(PReLU\)",
    ),
    "subclass": (lambda: nn.Sequential(Subclassed(4, 3)), (4,), r"module '0' \(Subclassed\)"),
    "extra parameter": (extra_parameter, (4,), r"gain of module '0'"),
    "reparameterised": (weight_normed, (4,), r"module '0' \(Parametrized"),
    "reused": (Reused, (4,), r"module 'body' .* more than once"),
    "tied": (Tied, (4,), r"weight of module 'second' .* shared with module 'body'"),
    "tied by a function": (TiedByFunction, (4,), r"weight of module 'body' .* used 2 times"),
    "used by a function only": (Functional, (4,), r"module 'body' .* not by its module"),
    "input overwritten": (Overwriting, (4,), r"module 'body' .* overwritten"),
    "under no_grad": (Hidden, (4,), r"module 'body' .* no_grad"),
    "mean over the batch": (BatchMean, (4,), r"depends on others through module 'body'"),
    "tokens first": (TokensFirst, (7, 4), r"module 'body' .* keep the samples"),
    "tokens first, as many as samples": (TokensFirst, (3, 4), r"module 'body'"),
    "output of three axes": (Sequence, (7, 4), r"\(samples, outputs\)"),
    "batch statistics": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)
        ),
        (4,),
        r"module '1' \(BatchNorm1d\) keeps no running statistics",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    make, shape, message = REFUSED[name]
    model = make().double()
    with pytest.raises(WidthlabError, match=message):
        empirical_ntk(model, torch.randn(5, *shape, dtype=torch.float64))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_bad_arguments() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(WidthlabError, match="full or trace"):
        empirical_ntk(model, torch.randn(2, 4), outputs="all")  # type: ignore[arg-type]
    with pytest.raises(WidthlabError, match="at least one sample"):
        empirical_ntk(model, torch.randn(0, 4))


def test_a_diverged_network_gives_nan_and_not_an_error() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    assert empirical_ntk(model, torch.randn(3, 4)).isnan().any()


def test_the_check_finds_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    assert check_ntk(model, x, outputs="trace") < 1e-12
    right = empirical_ntk

    def wrong(*args: Any, **options: Any) -> Tensor:
        kernel = right(*args, **options)
        kernel[0, 1] *= 1 + 1e-6
        return kernel

    monkeypatch.setattr("widthlab.statistics.ntk.empirical_ntk", wrong)
    with pytest.raises(WidthlabError, match="is wrong by"):
        check_ntk(model, x)
