"""Signal statistics against a forward pass written out by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from widthlab import models, specs
from widthlab.errors import WidthlabError
from widthlab.statistics.over_draws import over_draws
from widthlab.statistics.signals import signal_statistics


def mlp(width: int = 12, depth: int = 3, **options: Any) -> models.Model:
    network = specs.Network(architecture=specs.MLP(**options), width=width, depth=depth)
    return models.build(network, (5,), 2, seed=0)


def inputs(n: int = 4, *shape: int) -> Tensor:
    return torch.randn(n, *(shape or (5,)), generator=torch.Generator().manual_seed(7))


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)


def test_one_network_by_hand() -> None:
    model, x = mlp(), inputs()
    found = signal_statistics(model, x)
    h = x.double()
    weights = [p.detach().double() for p in model.parameters()]
    for layer in range(4):
        if layer:
            h = torch.relu(h @ weights[layer - 1].T)
        for i in range(4):
            one = found.isel(layer=layer, input=i)
            assert float(one["signal_variance"]) == pytest.approx(
                sum(float(v) ** 2 for v in h[i]) / h.shape[1], rel=1e-5
            )
            assert float(one["signal_mean"]) == pytest.approx(float(h[i].mean()), rel=1e-5)
        for p in range(6):
            a, b = int(found["input_a"][p]), int(found["input_b"][p])
            assert a < b
            cosine = float(h[a] @ h[b] / (h[a].norm() * h[b].norm()))
            assert float(found["correlation"][layer, p]) == pytest.approx(cosine, rel=1e-5)
    assert list(found["neurons"].values) == [5, 12, 12, 12]


def test_chosen_pairs() -> None:
    model, x = mlp(), inputs()
    every = signal_statistics(model, x)
    some = signal_statistics(model, x, pairs=[(3, 1), (1, 2), (2, 2)])
    assert some["correlation"].dims == ("layer", "pair")
    np.testing.assert_allclose(some["correlation"][:, 0], every["correlation"][:, 4], rtol=1e-12)
    np.testing.assert_allclose(some["correlation"][:, 1], every["correlation"][:, 3], rtol=1e-12)
    np.testing.assert_allclose(some["correlation"][:, 2], 1.0, rtol=1e-12)
    assert signal_statistics(model, x, pairs=[]).sizes["pair"] == 0
    with pytest.raises(WidthlabError, match="pairs must name inputs 0 … 3"):
        signal_statistics(model, x, pairs=[(0, 4)])


def test_draws_are_those_of_the_initialisation_one_by_one() -> None:
    model, x = mlp(), inputs()
    found = over_draws(model, x, 5, seed=3)
    assert found["signal_variance"].dims == ("draw", "layer", "input")
    assert found["correlation"].dims == ("draw", "layer", "pair")
    assert all(found[name].dtype == np.float64 for name in found.data_vars)
    for draw in range(5):
        state = np.random.SeedSequence(3, spawn_key=(draw,)).generate_state(1, np.uint64)
        other = copy.deepcopy(model)
        models.initialise(other, torch.Generator().manual_seed(int(state[0])))
        expected = signal_statistics(other, x)
        for name in found.data_vars:
            np.testing.assert_array_equal(found[name][draw], expected[name])
    assert float(found["signal_variance"].std("draw").min("input")[1]) > 0
    again = over_draws(model, x, 3, seed=np.random.SeedSequence(3))
    np.testing.assert_array_equal(again["signal_mean"], found["signal_mean"][:3])


def test_relu_variance_is_kept_on_average() -> None:
    q = over_draws(mlp(width=32), inputs(1), 600, seed=0)["signal_variance"][:, :, 0]
    error = q.std("draw", ddof=1) / np.sqrt(600)
    # Layer 0 is the input; E q_l = q_0 for every l, to be met within 4 standard errors.
    assert (abs(q.mean("draw") - q[0, 0])[1:] < 4 * error[1:]).all()
    assert float(error[1:].max()) < 0.1 * float(q[0, 0])


def test_dead_signals_are_recorded() -> None:
    model, x = mlp(width=1, depth=3), inputs(2)
    found = over_draws(model, x, 60, seed=0)
    dead = found["signal_variance"][:, 3] == 0
    assert found.sizes["draw"] == 60
    assert 0 < int(dead.sum()) < dead.size
    pair_dead = dead.any("input")
    assert bool((found["correlation"][:, 3, 0].isnull() == pair_dead).all())


def test_feature_maps_count_channels_times_positions() -> None:
    network = specs.Network(architecture=specs.ResNet20(), width=2, depth=20)
    model = models.build(network, (1, 8, 8), 3, seed=0)
    x = inputs(3, 1, 8, 8)
    seen: list[Tensor] = []
    handle = model.stem.register_forward_hook(lambda _m, _a, out: seen.append(out.detach()))
    model.train()(x)
    handle.remove()
    models.initialise(model, torch.Generator().manual_seed(0))
    before = copy.deepcopy(model.state_dict())
    model.eval()
    found = signal_statistics(model, x)
    assert not model.training
    assert all(not module.training for module in model.modules())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert list(found["neurons"].values) == [128] * 4 + [64] * 3 + [32] * 3
    # Batch normalisation with the statistics of these inputs, whatever the model's mode.
    np.testing.assert_allclose(
        found["signal_variance"][0], seen[0].double().pow(2).mean((1, 2, 3)), rtol=1e-5
    )
    assert found.attrs["batch_normalisation"] == "statistics of the batch of inputs"


def test_any_module_with_signals_overwritten_in_place() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)).eval()
    x = inputs()
    found = over_draws(model, x, 2, 0, names=["0", "1"], initialise=redraw)
    assert float(found["signal_variance"][:, 0].min()) > float(found["signal_variance"][:, 1].min())
    one = signal_statistics(model, x, signals=["0", "1"])
    z = model[0](x).detach().double()
    np.testing.assert_allclose(one["signal_variance"][0], z.pow(2).mean(1), rtol=1e-6)
    np.testing.assert_allclose(one["signal_variance"][1], z.relu().pow(2).mean(1), rtol=1e-6)
    assert not any(module._forward_hooks for module in model)


def test_the_model_is_put_back() -> None:
    model = mlp(normalisation="batch")
    before = copy.deepcopy(model.state_dict())
    over_draws(model, inputs(), 3, seed=1)
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    with pytest.raises(RuntimeError):
        over_draws(model, inputs(4, 9), 3, seed=1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_metadata() -> None:
    found = over_draws(mlp(), inputs(), 2, seed=1)
    assert found.attrs["engine"] == "dense"
    assert found.attrs["dtype"] == "float32"
    assert found.attrs["batch_normalisation"] == "none"
    assert found.attrs["signals"] == ["flatten", "layers.0", "layers.1", "layers.2"]
    for name in found.data_vars:
        assert found[name].attrs["units"] == "1"
        assert found[name].attrs["description"]


def test_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 2))
    with pytest.raises(WidthlabError, match="does not say which modules"):
        signal_statistics(model, inputs())
    with pytest.raises(WidthlabError, match="signal '7' is not a module"):
        signal_statistics(model, inputs(), signals=["7"])
    with pytest.raises(WidthlabError, match="draws must be at least 1"):
        over_draws(mlp(), inputs(), 0, seed=0)
    model[0].spare = nn.Linear(1, 1)
    with pytest.raises(WidthlabError, match="not reached"):
        signal_statistics(model, inputs(), signals=["0", "0.spare"])
