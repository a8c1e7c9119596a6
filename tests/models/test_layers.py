"""Activations against their formulas, and the dense layer against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special

from widthlab.models.layers import ACTIVATIONS, Dense

FORMULAS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "tanh": np.tanh,
    "erf": special.erf,
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
}


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_activation_equals_its_formula(name):
    x = np.linspace(-5, 5, 101)
    got = ACTIVATIONS[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(got, FORMULAS[name](x), rtol=1e-12, atol=1e-14)


def test_every_activation_of_the_specification_is_covered():
    assert set(ACTIVATIONS) == set(FORMULAS)


@pytest.mark.parametrize("parameterisation", ["standard", "ntk", "mup"])
def test_dense_forward_is_the_scaled_affine_map(parameterisation):
    layer = Dense(5, 3, weight_variance=2.0, bias_variance=0.3, bias=True,
                  parameterisation=parameterisation)  # fmt: skip
    layer.redraw(torch.Generator().manual_seed(0))
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    expected = layer.weight_scale * x @ layer.weight.T + layer.bias_scale * layer.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("parameterisation", ["standard", "ntk", "mup"])
def test_effective_variances_at_initialisation(parameterisation):
    layer = Dense(400, 500, weight_variance=1.7, bias_variance=0.3, bias=True,
                  parameterisation=parameterisation, base_inputs=64, base_outputs=64)  # fmt: skip
    layer.redraw(torch.Generator().manual_seed(0))
    weights = layer.weight_scale * layer.weight.detach().double()
    biases = layer.bias_scale * layer.bias.detach().double()
    # Four standard errors of a sample variance, σ²·√(2/n).
    tolerance = 4 * math.sqrt(2 / weights.numel())
    assert float(weights.square().mean()) == pytest.approx(1.7 / 400, rel=tolerance)
    assert float(biases.square().mean()) == pytest.approx(0.3, rel=4 * math.sqrt(2 / 500))


def test_ntk_parameters_are_standard_normal():
    layer = Dense(400, 500, weight_variance=1.7, parameterisation="ntk")
    layer.redraw(torch.Generator().manual_seed(0))
    assert layer.weight_scale == pytest.approx(math.sqrt(1.7 / 400))
    variance = float(layer.weight.detach().double().square().mean())
    assert variance == pytest.approx(1.0, rel=4 * math.sqrt(2 / layer.weight.numel()))


def test_ntk_biases_of_variance_zero_start_at_zero_and_still_act():
    layer = Dense(4, 3, bias=True, parameterisation="ntk")
    layer.redraw(torch.Generator().manual_seed(0))
    assert torch.count_nonzero(layer.bias) == 0
    layer(torch.zeros(1, 4)).sum().backward()
    assert torch.equal(layer.bias.grad, torch.ones(3))


def test_mup_readout_has_variance_64_over_width_squared():
    layer = Dense(256, 2000, parameterisation="mup", base_inputs=64)
    layer.redraw(torch.Generator().manual_seed(0))
    variance = float(layer.weight.detach().double().square().mean())
    tolerance = 4 * math.sqrt(2 / layer.weight.numel())
    assert variance == pytest.approx(64 / 256**2, rel=tolerance)


@pytest.mark.parametrize(
    ("base_inputs", "base_outputs", "sgd", "adam", "sgd_bias"),
    [
        (None, 64, 4.0, 1.0, 4.0),  # input weights
        (64, 64, 1.0, 0.25, 4.0),  # hidden weights
        (64, None, 0.25, 0.25, 1.0),  # output weights
    ],
)
def test_mup_factors_are_those_of_table_3(base_inputs, base_outputs, sgd, adam, sgd_bias):
    layer = Dense(256, 256, bias=True, parameterisation="mup", base_inputs=base_inputs,
                  base_outputs=base_outputs)  # fmt: skip
    assert layer.learning_rate_factors("sgd") == {"weight": sgd, "bias": sgd_bias}
    assert layer.learning_rate_factors("adam") == {"weight": adam, "bias": 1.0}


def test_redraw_is_a_function_of_the_generator_alone():
    layer = Dense(8, 8, bias=True, bias_variance=1.0)
    layer.redraw(torch.Generator().manual_seed(3))
    first = layer.weight.detach().clone()
    layer.redraw(torch.Generator().manual_seed(4))
    assert not torch.equal(first, layer.weight)
    layer.redraw(torch.Generator().manual_seed(3))
    assert torch.equal(first, layer.weight)
