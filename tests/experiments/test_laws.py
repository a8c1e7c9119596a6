"""The laws that experiments compare with are those of the networks that are really built."""

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from scipy.stats import ks_2samp

from widthlab import specs
from widthlab.experiments.shared.laws import (
    exact_signals,
    gradient_law,
    signal_corrections,
    signal_laws,
    signal_step,
    small_branch_corrections,
)
from widthlab.models import build
from widthlab.statistics.gradient_correlation import squared_correlation
from widthlab.statistics.over_draws import over_draws

PERCEPTRON = TypeAdapter(specs.Perceptron)

WITH_A_BLOCK_LAW = [
    {"name": "mlp", "activation": "relu"},
    {"name": "mlp", "activation": "leaky_relu"},
    {"name": "mlp", "activation": "tanh"},
    {"name": "mlp", "activation": "erf", "weight_variance": 1.5, "bias_variance": 0.3},
    {"name": "mlp", "activation": "gelu"},
    {"name": "mlp", "activation": "silu", "parameterisation": "ntk"},
    {"name": "mlp", "activation": "relu", "normalisation": "layer"},
    {"name": "residual_mlp", "activation": "relu", "residual_scale": 0.5},
    {"name": "residual_mlp", "activation": "tanh", "residual_scale": 0.5, "bias_variance": 0.4},
    {"name": "residual_mlp", "activation": "gelu", "branch": "one_layer", "bias_variance": 0.2},
    {"name": "residual_mlp", "activation": "silu", "normalisation": "layer", "depth_exponent": 0.5},
    {
        "name": "residual_mlp",
        "activation": "erf",
        "inner_variance": 2.0,
        "weight_variance": 0.7,
        "hidden_ratio": 2.0,
        "parameterisation": "ntk",
    },
]


def draw(architecture, width, depth, draws, inputs=2):
    """Signal variances of random draws, (draws, layers, inputs), with q_0 = 1 for perceptrons."""
    network = specs.Network(architecture=architecture, width=width, depth=depth)
    model = build(network, (32,), outputs=1, seed=0)
    x = torch.randn(inputs, 32, generator=torch.Generator().manual_seed(3))
    x = x * (32**0.5 / x.norm(dim=1, keepdim=True))
    return model, x, over_draws(model, x, draws, seed=11)["signal_variance"].to_numpy()


@pytest.mark.parametrize("options", WITH_A_BLOCK_LAW, ids=lambda o: "-".join(map(str, o.values())))
def test_wide_networks_follow_the_block_law(options):
    architecture, width, depth = PERCEPTRON.validate_python(options), 384, 3
    q = draw(architecture, width, depth, draws=40)[2].mean(axis=2)
    law = signal_laws(architecture, width, depth)["block_law"]
    error = q.std(axis=0, ddof=1) / np.sqrt(len(q))
    # Five standard errors, and corrections of relative order depth/N.
    assert np.all(np.abs(q.mean(axis=0) - law) < 5 * error + 2 * depth / width * law)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "mlp", "activation": "relu"},
        {"name": "mlp", "activation": "linear", "weight_variance": 1.2},
        {"name": "residual_mlp", "activation": "relu", "residual_scale": 0.7, "hidden_ratio": 0.5},
        {"name": "residual_mlp", "activation": "linear", "branch": "one_layer"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_narrow_networks_follow_the_exact_second_moment(options):
    architecture, width, depth = PERCEPTRON.validate_python(options), 12, 2
    q = draw(architecture, width, depth, draws=1500)[2]
    squares = ((q / q[:, :1]) ** 2).mean(axis=2)
    error = squares.std(axis=0, ddof=1) / np.sqrt(len(q))
    law = signal_laws(architecture, width, depth)["exact_square"]
    assert np.all(np.abs(squares.mean(axis=0) - law) <= 4 * error + 1e-12)
    # The effect of width is seen: without it the law would be the block law's square.
    flat = signal_laws(architecture, 100_000, depth)["exact_square"]
    assert abs(flat[-1] - squares.mean(axis=0)[-1]) > 4 * error[-1]


def test_narrow_relu_networks_follow_the_exact_law_of_logarithms():
    architecture = specs.MLP(activation="relu")
    q = draw(architecture, 16, 3, draws=1500)[2]
    log = np.log(q / q[:, :1]).mean(axis=2)
    laws = signal_laws(architecture, 16, 3)
    error = log.std(axis=0, ddof=1) / np.sqrt(len(log))
    assert np.all(np.abs(log.mean(axis=0) - laws["exact_log_mean"]) <= 4 * error + 1e-12)


def test_the_gradient_law_is_that_of_the_networks():
    architecture = specs.MLP(activation="relu")
    model, x, _ = draw(architecture, 10, 3, draws=8)
    moments = over_draws(model, x, draws=2500, seed=5, measure=["gradients"])
    measured = squared_correlation(moments["m22"], moments["m2"])
    law = gradient_law(architecture, 10, 3)
    distance = np.abs(measured["estimate"].to_numpy() - law)
    assert np.all(distance[1:] < 4 * measured["standard_error"].to_numpy()[1:])


@pytest.mark.parametrize(
    "options",
    [
        {"name": "residual_mlp", "position": "post"},
        {"name": "residual_mlp", "normalisation": "batch"},
        {"name": "mlp", "normalisation": "batch"},
    ],
)
def test_networks_without_a_closure_have_no_law(options):
    assert signal_laws(PERCEPTRON.validate_python(options), 32, 2) == {}


def test_only_scale_free_perceptrons_have_a_gradient_law():
    assert gradient_law(specs.MLP(activation="tanh"), 32, 2) is None
    assert gradient_law(specs.ResidualMLP(activation="relu"), 32, 2) is None
    assert gradient_law(specs.MLP(activation="relu", bias_variance=0.1), 32, 2) is None


@pytest.mark.parametrize("options", WITH_A_BLOCK_LAW, ids=lambda o: "-".join(map(str, o.values())))
def test_corrections_and_steps_are_those_of_the_networks(options):
    architecture, width, depth = PERCEPTRON.validate_python(options), 24, 3
    q = draw(architecture, width, depth, draws=600)[2]
    corrections = signal_corrections(architecture, depth)
    x = q / corrections.block_law[:, None] - 1
    mean, error = x.mean(axis=(0, 2)), x.mean(axis=2).std(axis=0) / np.sqrt(len(x))
    # Five standard errors, and the next order: the square of depth/N or of the variance.
    v = corrections.spread(width) / corrections.block_law**2
    order = np.maximum(depth / width, v)
    expected = corrections.expected(width) / corrections.block_law - 1
    assert np.all(np.abs(mean - expected) < 5 * error + order**2 + 1e-6)
    variance = x.var(axis=0, ddof=1).mean(axis=1)
    error = ((x - mean[:, None]) ** 2).mean(axis=2).std(axis=0) / np.sqrt(len(x))
    assert np.all(np.abs(variance - v) < 5 * error + 2 * order * v + 1e-6)
    step = signal_step(architecture, width, depth)
    one_layer = getattr(architecture, "branch", "") == "one_layer"
    assert (step is None) == (architecture.normalisation == "layer" or one_layer)
    if step is not None:
        noise = q[:, 1:] - step(q[:, :-1])[0]
        error = noise.mean(axis=2).std(axis=0) / np.sqrt(len(q))
        assert np.all(np.abs(noise.mean(axis=(0, 2))) < 5 * error)
        excess = (noise**2 - step(q[:, :-1])[1]).mean(axis=2)
        error = excess.std(axis=0) / np.sqrt(len(q))
        assert np.all(np.abs(excess.mean(axis=0)) < 5 * error)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "mlp", "activation": "relu"},
        {"name": "residual_mlp", "activation": "leaky_relu", "bias_variance": 0.2},
    ],
    ids=lambda o: o["name"],
)
def test_exact_draws_have_the_distribution_of_the_networks(options):
    architecture = PERCEPTRON.validate_python(options)
    q = draw(architecture, 8, 3, draws=1500, inputs=1)[2][:, :, 0]
    exact = exact_signals(architecture, 8, 3, 20_000, seed=0)
    assert ks_2samp(q[:, -1], exact[:, -1]).pvalue > 1e-4
    assert ks_2samp(q[:, -1], exact[:, -2]).pvalue < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"name": "mlp", "activation": "tanh"},
        {"name": "mlp", "activation": "relu", "bias_variance": 0.1},
        {"name": "residual_mlp", "activation": "relu", "branch": "one_layer"},
        {"name": "residual_mlp", "activation": "relu", "normalisation": "layer"},
    ],
)
def test_other_networks_have_no_exact_draws(options):
    assert exact_signals(PERCEPTRON.validate_python(options), 8, 2, 4, seed=0) is None


def test_small_branches_are_of_one_layer():
    one = specs.ResidualMLP(activation="tanh", branch="one_layer")
    assert small_branch_corrections(one, 2) is not None
    assert small_branch_corrections(specs.ResidualMLP(activation="tanh"), 2) is None
    assert small_branch_corrections(specs.MLP(), 2) is None
    assert signal_corrections(specs.ResidualMLP(position="post"), 2) is None
