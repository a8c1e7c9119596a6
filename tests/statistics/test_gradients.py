"""Gradients by the carried signals against autograd on a forward pass written out by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from widthlab import models, specs
from widthlab.errors import WidthlabError
from widthlab.statistics.gradients import moments, signal_gradients
from widthlab.statistics.over_draws import over_draws


def mlp(width: int, depth: int, **options: Any) -> models.Model:
    network = specs.Network(architecture=specs.MLP(**options), width=width, depth=depth)
    return models.build(network, (5,), 2, seed=0)


def inputs(n: int = 3) -> Tensor:
    return torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def test_gradients_of_an_mlp_by_hand() -> None:
    model, x = mlp(7, 3, activation="tanh").double(), inputs()
    weights = list(model.parameters())
    found = signal_gradients(model, x)
    for i in range(3):
        h = [x[i].clone().requires_grad_(True)]
        for weight in weights[:-1]:
            h.append(torch.tanh(weight @ h[-1]))
        output = (weights[-1] @ h[-1])[0]
        expected = torch.autograd.grad(output, h)
        for layer in range(4):
            torch.testing.assert_close(found[layer][i], expected[layer], rtol=1e-12, atol=0)


def test_gradients_of_a_residual_net_count_the_skip() -> None:
    architecture = specs.ResidualMLP(activation="erf", bias_variance=0.1)
    network = specs.Network(architecture=architecture, width=6, depth=2)
    model, x = models.build(network, (5,), 2, seed=0).double(), inputs()
    found = signal_gradients(model, x)
    h0 = model.embedding(x).detach().requires_grad_(True)
    h1 = model.blocks[0](h0)
    h2 = model.blocks[1](h1)
    expected = torch.autograd.grad(model.readout(h2)[:, 0].sum(), [h0, h1, h2])
    for layer in range(3):
        torch.testing.assert_close(found[layer], expected[layer], rtol=1e-12, atol=0)
    assert not torch.allclose(found[0], found[1])


def test_signals_that_are_views_or_overwritten_in_place() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.tap = nn.Linear(5, 6), nn.Flatten()
            self.act, self.last = nn.ReLU(inplace=True), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            z = self.tap(self.first(x).view(-1, 2, 3))
            return self.last(self.act(z))

    model, x = Views().double(), inputs()
    before, view, after = signal_gradients(model, x, signals=["first", "tap", "act"])
    mask = (model.first(x) > 0).double()
    torch.testing.assert_close(after, model.last.weight[0].detach().expand(3, 6), rtol=0, atol=0)
    torch.testing.assert_close(view, after * mask, rtol=0, atol=0)
    torch.testing.assert_close(before, after * mask, rtol=0, atol=0)
    assert 0 < float(mask.mean()) < 1


def test_a_model_that_overwrites_its_input() -> None:
    model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 2)).double(), inputs()
    kept = x.clone()
    (gradient,) = signal_gradients(model, x, signals=["0"])
    torch.testing.assert_close(gradient, model[1].weight[0].detach().expand(3, 5), rtol=0, atol=0)
    assert torch.equal(x, kept)


def test_moments_by_a_loop_over_pairs() -> None:
    g = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    norm, m2, m22, m11 = moments(g)
    for i, one in enumerate(g.tolist()):
        pairs = [(a, b) for a in range(6) for b in range(6) if a != b]
        assert float(norm[i]) == pytest.approx(np.sqrt(sum(v**2 for v in one)), rel=1e-13)
        assert float(m2[i]) == pytest.approx(sum(v**2 for v in one) / 6, rel=1e-13)
        squares = sum(one[a] ** 2 * one[b] ** 2 for a, b in pairs) / 30
        assert float(m22[i]) == pytest.approx(squares, rel=1e-12)
        products = sum(one[a] * one[b] for a, b in pairs) / 30
        assert float(m11[i]) == pytest.approx(products, rel=1e-12)


def test_moments_of_a_single_neuron_have_no_pairs() -> None:
    _, m2, m22, m11 = moments(torch.tensor([[2.0]]))
    assert float(m2) == 4
    assert bool(m22.isnan().all())
    assert bool(m11.isnan().all())


@pytest.mark.parametrize("options", [{}, {"normalisation": "batch"}])
def test_draws_are_those_of_the_initialisation_one_by_one(options: dict[str, Any]) -> None:
    model, x = mlp(6, 2, **options), inputs().float()
    before = copy.deepcopy(model.state_dict())
    found = over_draws(model, x, 4, seed=3, measure=["gradients"])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert found["m22"].dims == ("draw", "layer", "input")
    assert list(found["neurons"].values) == [5, 6, 6]
    for draw in range(4):
        state = np.random.SeedSequence(3, spawn_key=(draw,)).generate_state(1, np.uint64)
        models.initialise(model, torch.Generator().manual_seed(int(state[0])))
        for layer, gradient in enumerate(signal_gradients(model.train(), x)):
            expected = moments(gradient)
            for index, name in enumerate(("gradient_norm", "m2", "m22", "m11")):
                assert found[name].dtype == np.float64
                np.testing.assert_allclose(found[name][draw, layer], expected[index], rtol=1e-12)
    again = over_draws(model, x, 2, seed=np.random.SeedSequence(3), measure=["gradients"])
    np.testing.assert_array_equal(again["m2"], found["m2"][:2])


def test_metadata() -> None:
    found = over_draws(mlp(6, 2), inputs().float(), 2, seed=1, measure=["gradients"])
    assert found.attrs["engine"] == "dense"
    assert found.attrs["dtype"] == "float32"
    assert all(v.attrs["units"] == "1" and v.attrs["description"] for v in found.values())


def test_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 2), nn.Unflatten(1, (1, 2))).double()
    with pytest.raises(WidthlabError, match=r"output of shape \(samples, outputs\)"):
        signal_gradients(model, inputs(), signals=["0"])
    model = nn.Sequential(nn.Linear(5, 2)).double()
    model[0].spare = nn.Linear(1, 1)
    with pytest.raises(WidthlabError, match=r"'0.spare' was not reached"):
        signal_gradients(model, inputs(), signals=["0", "0.spare"])
