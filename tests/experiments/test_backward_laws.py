"""The backward laws that experiments compare with are those of the networks that are built."""

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from widthlab import ensembles, specs
from widthlab.experiments.shared import backward_laws
from widthlab.statistics.gradient_correlation import signed_correlation, squared_correlation
from widthlab.statistics.moments import signal_moments

PERCEPTRON = TypeAdapter(specs.Perceptron)
MLP = {"name": "mlp", "parameterisation": "ntk"}
RESIDUAL = {"name": "residual_mlp", "residual_scale": 0.7, "parameterisation": "ntk"}

WITH_A_LAW = [
    {**MLP, "activation": "relu"},
    {**MLP, "activation": "gelu"},
    {**MLP, "activation": "tanh", "weight_variance": 1.5, "bias_variance": 0.3},
    {**MLP, "activation": "relu", "bias": True, "bias_variance": 0.0},
    {**MLP, "activation": "erf", "normalisation": "layer"},
    {**RESIDUAL, "activation": "relu", "hidden_ratio": 2.0, "inner_variance": 2.0},
    {**RESIDUAL, "activation": "silu", "branch": "one_layer", "bias_variance": 0.2},
    {**RESIDUAL, "activation": "tanh", "normalisation": "layer", "depth_exponent": 0.5},
]


def draw(options, width, depth, draws, measure, inputs=2):
    architecture = PERCEPTRON.validate_python(options)
    network = specs.Network(architecture=architecture, width=width, depth=depth)
    x = torch.randn(inputs, 16, generator=torch.Generator().manual_seed(3)).double()
    x = x * (4 / x.norm(dim=1, keepdim=True))
    gram = (x @ x.mT / 16).numpy()
    return architecture, gram, ensembles.sample(network, x, draws, seed=7, measure=measure)


@pytest.mark.parametrize("options", WITH_A_LAW, ids=lambda o: "-".join(map(str, o.values())))
def test_wide_networks_follow_the_laws_of_infinite_width(options):
    """Five standard errors, and corrections of relative order depth/N."""
    width, depth = 512, 3
    architecture, gram, found = draw(options, width, depth, 100, ["gradients", "ntk"])
    kernels = found["ntk"].to_numpy()
    law = backward_laws.kernel(architecture, depth, gram)
    error = kernels.std(axis=0) / 10
    assert np.all(np.abs(kernels.mean(axis=0) - law) < 5 * error + 2 * depth / width * np.abs(law))
    sizes = (found["gradient_norm"].to_numpy() ** 2).mean(axis=2)
    law = backward_laws.gradient_norm(architecture, depth)
    error = sizes.std(axis=0) / 10
    assert np.all(np.abs(sizes.mean(axis=0) - law) < 5 * error + 2 * depth / width * law)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_variances_of_leading_order_are_those_of_networks(activation):
    """Five standard errors, and the square of the law for the next order."""
    options = {**MLP, "activation": activation, "bias_variance": 0.2, "weight_variance": 1.6}
    width, depth = 64, 3
    architecture, _, found = draw(options, width, depth, 20_000, ["gradients", "ntk"], 1)
    kernel = found["ntk"].to_numpy().ravel()
    ratio = kernel / kernel.mean()
    measured = ratio.var()
    error = np.std((ratio - 1) ** 2 - 2 * measured * (ratio - 1)) / np.sqrt(len(ratio))
    laws = backward_laws.kernel_variance(architecture, width, depth)
    assert list(laws) == ["leading"]
    assert abs(measured - laws["leading"]) < 5 * error + laws["leading"] ** 2
    squared = squared_correlation(found["m22"], found["m2"])
    law = backward_laws.gradient_leading(architecture, width, depth)
    distance = np.abs(squared["estimate"].to_numpy() - law)[1:]
    assert np.all(distance < 5 * squared["standard_error"].to_numpy()[1:] + law[1:] ** 2)


def test_the_imbalance_is_that_of_networks():
    options = {**MLP, "activation": "relu", "weight_variance": 1.3}
    architecture, _, found = draw(options, 12, 4, 20_000, ["gradients"], 1)
    sizes = found["gradient_norm"].to_numpy()[:, ::-1] ** 2
    moments = signal_moments(sizes)
    law = backward_laws.gradient_logarithms(architecture, 12, 4)
    for name in ("mean", "variance"):
        measured = getattr(moments, f"log_{name}")[::-1][1:]
        error = getattr(moments, f"log_{name}_error")[::-1][1:]
        assert np.all(np.abs(measured - getattr(law, name)) <= 5 * error + 1e-12)


@pytest.mark.parametrize(
    ("options", "zero"),
    [
        ({**MLP, "activation": "relu"}, True),
        ({**MLP, "activation": "erf", "bias_variance": 0.5}, True),
        ({**RESIDUAL, "activation": "gelu", "bias_variance": 0.1}, True),
        ({**RESIDUAL, "activation": "tanh", "branch": "one_layer"}, True),
        ({**RESIDUAL, "activation": "tanh", "position": "post"}, True),
        ({**RESIDUAL, "activation": "relu", "branch": "one_layer"}, False),
        ({**RESIDUAL, "activation": "relu", "position": "post"}, False),
        ({**MLP, "activation": "silu", "weight_variance": 2.0, "bias_variance": 0.5}, False),
        ({**MLP, "activation": "tanh", "normalisation": "layer"}, False),
    ],
    ids=str,
)
def test_signs_may_be_flipped_where_it_is_said(options, zero):
    """Five standard errors at the first carried layer of narrow networks, which show the rest."""
    depth = 4
    architecture, _, found = draw(options, 12, depth, 80_000, ["gradients"], 1)
    signed = signed_correlation(found["m11"], found["m2"])
    z = (signed["estimate"] / signed["standard_error"]).to_numpy()[1]
    assert backward_laws.sign_symmetric(architecture) is zero
    assert bool(abs(z) < 5) is zero
    law = backward_laws.signed_correlation(architecture, 12, depth)
    if zero:
        np.testing.assert_array_equal(law, 0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "residual_mlp", "position": "post"},
        {"name": "residual_mlp", "normalisation": "batch"},
        {"name": "mlp", "normalisation": "batch"},
    ],
)
def test_networks_without_a_closure_have_no_law(options):
    architecture = PERCEPTRON.validate_python(options)
    assert backward_laws.kernel(architecture, 2, np.eye(2)) is None
    assert backward_laws.gradient_norm(architecture, 2) is None
    assert backward_laws.gradient_leading(architecture, 8, 2) is None
    assert backward_laws.gradient_logarithms(architecture, 8, 2) is None
    assert backward_laws.kernel_variance(architecture, 8, 2) == {}
    assert backward_laws.signed_correlation(architecture, 8, 2) is None


def test_readouts_of_mup_have_no_law_of_their_gradients():
    assert backward_laws.gradient_norm(specs.MLP(parameterisation="mup"), 2) is None
