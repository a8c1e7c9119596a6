"""Both perceptrons, in every option, against plain formulas in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import special

from widthlab import specs
from widthlab.models import BUILDERS, Model, build, initialise

SHAPE, OUTPUTS, WIDTH, DEPTH = (2, 3), 4, 7, 3
S = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "tanh": np.tanh,
    "erf": special.erf,
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
}


def _network(architecture, width=WIDTH, depth=DEPTH):
    return specs.Network(architecture=architecture, width=width, depth=depth)


def _inputs(seed=5, samples=6):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(samples, *SHAPE)))


def _effective(dense):
    weight = dense.weight_scale * dense.weight.detach().numpy()
    bias = 0.0 if dense.bias is None else dense.bias_scale * dense.bias.detach().numpy()
    return weight, bias


def _affine(dense, h):
    weight, bias = _effective(dense)
    return h @ weight.T + bias


def _normalise(kind, h):
    if kind == "none":
        return h
    axis = 1 if kind == "layer" else 0
    centred = h - h.mean(axis=axis, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axis, keepdims=True) + 1e-5)


def _signals(model: Model, x):
    """Run the model and return the outputs of the modules that it names as signals."""
    seen = {}
    modules = dict(model.named_modules())
    hooks = [
        modules[name].register_forward_hook(
            lambda module, args, out, name=name: seen.__setitem__(name, out.detach().numpy())
        )
        for name in model.signals
    ]
    out = model(x).detach().numpy()
    for hook in hooks:
        hook.remove()
    return out, [seen[name] for name in model.signals]


@pytest.mark.parametrize("parameterisation", ["standard", "ntk", "mup"])
@pytest.mark.parametrize("normalisation", ["none", "layer", "batch"])
@pytest.mark.parametrize("activation", sorted(S))
def test_mlp_equals_its_formula(activation, normalisation, parameterisation):
    spec = specs.MLP(activation=activation, normalisation=normalisation, bias_variance=0.2,
                     weight_variance=1.3, parameterisation=parameterisation)  # fmt: skip
    model = build(_network(spec), SHAPE, OUTPUTS, seed=1).double()
    x = _inputs()
    h = x.numpy().reshape(len(x), -1)
    expected = [h]
    for layer in model.layers:
        h = S[activation](_normalise(normalisation, _affine(layer.dense, h)))
        expected.append(h)
    out, signals = _signals(model, x)
    for got, want in zip(signals, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(out, _affine(model.readout, h), rtol=1e-10, atol=1e-12)


COMBINATIONS = [
    *itertools.product(["one_layer", "two_layer"], ["pre", "post"], ["none", "layer", "batch"],
                       ["standard", "ntk", "mup"], ["tanh"]),
    *itertools.product(["one_layer", "two_layer"], ["pre", "post"], ["none"], ["standard"],
                       sorted(S)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("branch", "position", "normalisation", "parameterisation", "activation"), COMBINATIONS
)
def test_residual_mlp_equals_its_formula(
    branch, position, normalisation, parameterisation, activation
):
    inner = {"hidden_ratio": 1.5, "inner_variance": 0.9} if branch == "two_layer" else {}
    spec = specs.ResidualMLP(
        activation=activation, branch=branch, position=position, normalisation=normalisation,
        parameterisation=parameterisation, residual_scale=0.8, depth_exponent=0.5,
        weight_variance=1.3, bias_variance=0.2, **inner,
    )  # fmt: skip
    model = build(_network(spec), SHAPE, OUTPUTS, seed=1).double()
    s, alpha = S[activation], 0.8 * DEPTH**-0.5
    x = _inputs()
    h = _affine(model.embedding, x.numpy().reshape(len(x), -1))
    expected = [h]
    for block in model.blocks:
        entrance = _normalise(normalisation, h)
        if branch == "two_layer":
            assert block.inner.weight.shape == (10, WIDTH)  # round(1.5 · 7)
            f = _affine(block.outer, s(_affine(block.inner, entrance)))
        else:
            f = _affine(block.outer, s(entrance) if position == "pre" else entrance)
        h = s(h + alpha * f) if position == "post" else h + alpha * f
        expected.append(h)
    out, signals = _signals(model, x)
    for got, want in zip(signals, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(out, _affine(model.readout, h), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("parameterisation", ["standard", "ntk", "mup"])
def test_variances_of_a_residual_mlp(parameterisation):
    spec = specs.ResidualMLP(weight_variance=0.7, inner_variance=1.9, hidden_ratio=2.0,
                             parameterisation=parameterisation)  # fmt: skip
    model = build(_network(spec, width=128, depth=1), (300,), 300, seed=2)
    readout = 64 / 128**2 if parameterisation == "mup" else 1 / 128
    wanted = [
        (model.embedding, 1 / 300),
        (model.blocks[0].inner, 1.9 / 128),
        (model.blocks[0].outer, 0.7 / 256),
        (model.readout, readout),
    ]
    for dense, variance in wanted:
        weight = dense.weight_scale * dense.weight.detach().double()
        # Five standard errors of a sample variance.
        tolerance = 5 * (2 / weight.numel()) ** 0.5
        assert float(weight.square().mean()) == pytest.approx(variance, rel=tolerance)


def test_signal_variance_starts_at_that_of_the_input():
    """E q_0 = |x|²/d for the embedding; its spread over draws is q_0·√(2/width)."""
    model = build(_network(specs.ResidualMLP(), width=64, depth=1), (10,), 1, seed=0)
    x = torch.linspace(-1, 2, 10)[None]
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(400):
        initialise(model, generator)
        values.append(float(model.embedding(x).detach().square().mean()))
    wanted = float(x.square().mean())
    assert np.mean(values) == pytest.approx(wanted, abs=4 * wanted * np.sqrt(2 / 64 / 400))


def test_linear_activation_of_a_mlp_makes_a_linear_map():
    model = build(_network(specs.MLP(activation="linear")), SHAPE, OUTPUTS, seed=0).double()
    x, y = _inputs(1), _inputs(2)
    torch.testing.assert_close(model(x + 2 * y), model(x) + 2 * model(y))


@pytest.mark.parametrize(
    "architecture",
    [
        specs.MLP(normalisation="batch"),
        specs.ResidualMLP(normalisation="layer", bias_variance=0.1),
        specs.ResNet20(),
    ],
)
def test_initialise_repeats_build_resets_statistics_and_leaves_global_seeds_alone(architecture):
    network = specs.Network(architecture=architecture, width=4, depth=20)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    model = build(network, (1, 8, 8), 3, seed=7)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model(torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    initialise(model, torch.Generator().manual_seed(7))
    assert torch.equal(torch.get_rng_state(), before)
    assert model.state_dict().keys() == fresh.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh[name]), name


def test_initialise_refuses_a_module_that_it_does_not_know():
    with pytest.raises(TypeError, match="Bilinear"):
        initialise(torch.nn.Bilinear(2, 2, 2), torch.Generator())


def test_every_architecture_of_the_specification_has_a_builder():
    assert set(BUILDERS) == {"mlp", "residual_mlp", "resnet20", "llama", "pythia"}


@pytest.mark.parametrize("parameterisation", ["standard", "ntk", "mup"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_learning_rate_factors_name_every_parameter_and_are_one_at_the_base_width(
    parameterisation, optimiser
):
    for spec in (specs.MLP, specs.ResidualMLP):
        architecture = spec(parameterisation=parameterisation, normalisation="batch",
                            bias_variance=0.1)  # fmt: skip
        model = build(_network(architecture, width=64), SHAPE, OUTPUTS, seed=0)
        factors = model.learning_rate_factors(optimiser)
        assert set(factors) == {name for name, _ in model.named_parameters()}
        assert set(factors.values()) == {1.0}


def test_mup_factors_of_normalisations_go_with_the_biases():
    architecture = specs.MLP(parameterisation="mup", normalisation="layer")
    model = build(_network(architecture, width=128), SHAPE, OUTPUTS, seed=0)
    assert model.learning_rate_factors("sgd")["layers.0.norm.weight"] == 2.0
    assert model.learning_rate_factors("adam")["layers.0.norm.bias"] == 1.0
