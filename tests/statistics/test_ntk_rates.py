"""The kernel weighted by learning-rate factors is the one that moves the outputs."""

import pytest
import torch

from widthlab import specs
from widthlab.models import build
from widthlab.statistics.ntk import empirical_ntk


def brute_force(model, x, rates):
    """Σ_p rate_p J_p J_pᵀ from one backward pass for every sample and output, (n·C, n·C)."""
    outputs = model(x).flatten()
    total = torch.zeros(len(outputs), len(outputs), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        rows = [
            torch.autograd.grad(value, parameter, retain_graph=True)[0].flatten()
            for value in outputs
        ]
        jacobian = torch.stack(rows)
        total += rates.get(name, 1.0) * jacobian @ jacobian.T
    return total


def network(parameterisation, width=48):
    architecture = {
        "name": "residual_mlp",
        "activation": "tanh",
        "parameterisation": parameterisation,
        "bias": True,
    }
    spec = specs.Network(architecture=architecture, width=width, depth=2)
    return build(spec, (5,), outputs=3, seed=1).double().eval()


def test_rates_weigh_every_parameter():
    model = network("standard")
    x = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rates = {name: 0.5 + i for i, (name, _) in enumerate(model.named_parameters())}
    torch.testing.assert_close(empirical_ntk(model, x, rates=rates), brute_force(model, x, rates))
    torch.testing.assert_close(empirical_ntk(model, x), brute_force(model, x, {}))


@pytest.mark.parametrize("parameterisation", ["standard", "ntk", "mup"])
def test_the_weighted_kernel_predicts_one_small_step(parameterisation):
    model = network(parameterisation)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64, generator=generator)
    y = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    rates = model.learning_rate_factors("sgd")
    assert (parameterisation == "mup") == any(rate != 1 for rate in rates.values())
    kernel = empirical_ntk(model, x, rates=rates)
    before = model(x)
    eta = 1e-7
    groups = [{"params": [p], "lr": eta * rates[n]} for n, p in model.named_parameters()]
    optimiser = torch.optim.SGD(groups)
    (0.5 * (before - y).square().sum()).backward()
    optimiser.step()
    moved = (model(x) - before).detach().flatten()
    predicted = -eta * kernel @ (before - y).detach().flatten()
    assert (moved - predicted).norm() < 1e-3 * predicted.norm()
    plain = -eta * empirical_ntk(model, x) @ (before - y).detach().flatten()
    if parameterisation == "mup":
        assert (moved - plain).norm() > 1e-2 * predicted.norm()
