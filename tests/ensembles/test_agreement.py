"""The sampler without weights has the distribution of real networks, jointly in all it measures.

Widths are so small that an error of order 1/N is an error of order one. Each comparison has a
chance of 1e-5 of a false alarm, the whole file one of about 1e-3; seeds are fixed.
"""

import numpy as np
import pytest
import torch
from twins import EVERYTHING, PERCEPTRON, Seen, compare, inputs, layers_are, network

from widthlab import ensembles, models
from widthlab.ensembles.unseen import Unseen
from widthlab.statistics.ntk import empirical_ntk
from widthlab.statistics.over_draws import over_draws

FALSE_ALARM = 1e-5
DRAWS = 12_000

NETWORKS = {
    **{
        f"mlp-{activation}": {"name": "mlp", "activation": activation, "parameterisation": "ntk"}
        for activation in ("linear", "relu", "leaky_relu", "tanh", "erf", "gelu", "silu")
    },
    "mlp-standard-bias": {
        "name": "mlp",
        "activation": "tanh",
        "weight_variance": 1.7,
        "bias_variance": 0.4,
    },
    "mlp-bias-of-zero": {"name": "mlp", "activation": "relu", "bias": True},
    "mlp-layer-norm": {
        "name": "mlp",
        "activation": "tanh",
        "normalisation": "layer",
        "bias_variance": 0.3,
    },
    "mlp-mup": {"name": "mlp", "activation": "relu", "parameterisation": "mup"},
    **{
        f"residual-{branch}-{position}-{normalisation}": {
            "name": "residual_mlp",
            "activation": "tanh" if normalisation == "layer" else "relu",
            "branch": branch,
            "position": position,
            "normalisation": normalisation,
            "residual_scale": 0.8,
            "bias_variance": 0.2 if position == "pre" else 0.0,
            "parameterisation": "ntk" if position == "pre" else "standard",
        }
        for branch in ("one_layer", "two_layer")
        for position in ("pre", "post")
        for normalisation in ("none", "layer")
    },
    "residual-narrow-branch": {
        "name": "residual_mlp",
        "activation": "gelu",
        "hidden_ratio": 0.5,
        "inner_variance": 2.0,
        "depth_exponent": 0.5,
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_architecture(name):
    net = network(4, 3, **NETWORKS[name])
    assert compare(net, inputs(3), DRAWS) > FALSE_ALARM


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-standard-bias", "residual-two_layer-pre-none"])
@pytest.mark.parametrize("count", [1, 6], ids=["one input", "more inputs than width"])
def test_every_rank(name, count):
    net = network(3, 3, **NETWORKS[name])
    assert compare(net, inputs(count), DRAWS) > FALSE_ALARM


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-layer-norm", "residual-one_layer-pre-none"])
def test_repeated_inputs(name):
    """The same input twice, and an input of zeros."""
    x = inputs(4)
    x[2] = x[0]
    x[3] = 0
    net = network(4, 3, **NETWORKS[name])
    assert compare(net, x, DRAWS) > FALSE_ALARM
    found = ensembles.sample(net, x, 50, 0, measure=EVERYTHING)
    for variable in ("signal_variance", "gradient_norm"):
        same = found[variable].to_numpy()
        np.testing.assert_allclose(same[..., 2], same[..., 0], rtol=1e-9)
    kernel = found["ntk"].to_numpy()
    np.testing.assert_allclose(kernel[:, 2], kernel[:, 0], rtol=1e-9)


def test_dead_layers():
    """Two neurons of a ReLU layer are dead with probability 1/4; most signals die on the way."""
    net = network(2, 5, **NETWORKS["mlp-relu"])
    assert compare(net, inputs(2), 20_000) > FALSE_ALARM
    q = ensembles.sample(net, inputs(1), 20_000, 3)["signal_variance"].to_numpy()[:, -1, 0]
    alive = (1 - 0.25) ** 5
    assert abs(np.mean(q > 0) - alive) < 5 * np.sqrt(alive * (1 - alive) / 20_000)
    found = ensembles.sample(net, inputs(2), 500, 3, measure=EVERYTHING)
    dead = found["signal_variance"].to_numpy()[:, -1] == 0
    assert np.all(found["gradient_norm"].to_numpy()[:, 0][dead] == 0)


def test_one_neuron():
    net = network(1, 2, **NETWORKS["mlp-standard-bias"])
    assert compare(net, inputs(2), 20_000) > FALSE_ALARM


class Unconditioned(Unseen):
    """A wrong sampler: the pass backward forgets what the pass forward has seen."""

    def forward(self, h):
        z = super().forward(h)
        fresh = Unseen.forward(self, h.detach().requires_grad_())
        # The value of z, and the gradient of an independent layer with the same input.
        return _Borrowed.apply(z, fresh, h)


class _Borrowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, fresh, h):
        ctx.save_for_backward(h)
        return z.clone()

    @staticmethod
    def backward(ctx, delta):
        (h,) = ctx.saved_tensors
        norms = (delta @ delta.mT).diagonal(dim1=-2, dim2=-1)
        new = torch.randn(h.shape, dtype=h.dtype, generator=torch.Generator().manual_seed(0))
        return None, None, new * (norms / h.shape[-1]).sqrt()[..., None]


class Jittered(Unseen):
    """A wrong sampler: inputs are blurred by an eighth, as a regulariser would."""

    def forward(self, h):
        noise = torch.empty_like(h).normal_(generator=self.generator)
        return super().forward(h + noise * h.square().mean(-1, keepdim=True).sqrt() / 8)


@pytest.mark.parametrize("wrong", [Unconditioned, Jittered])
def test_a_wrong_sampler_is_found_out(wrong):
    """At ten times the width of the other tests, where its error is ten times smaller."""
    net = network(40, 3, name="mlp", activation="tanh", parameterisation="ntk")
    assert compare(net, inputs(3), DRAWS, kind=wrong) < FALSE_ALARM


@pytest.mark.parametrize("name", NETWORKS)
def test_the_twin_is_the_real_network(name):
    """With the same weights, the modules that are sampled and those that train agree in all."""
    net, x = network(6, 3, **NETWORKS[name]), inputs(3)
    kept = []

    class Kept(Seen):
        def __init__(self, dense, generator):
            super().__init__(dense, generator)
            kept.append(self)

    with layers_are(Kept):
        found = ensembles.sample(net, x, 1, 0, measure=EVERYTHING)
    model = models.build(net, (x.shape[1],), 1, seed=5).double()
    dense = [module for module in model.modules() if isinstance(module, models.layers.Dense)]
    with torch.no_grad():
        for real, drawn in zip(dense, kept, strict=True):
            real.weight.copy_(real.weight_std * drawn.weight[0])
            if real.bias is not None:
                real.bias.copy_(real.bias_std * drawn.bias[0, 0])
    expected = over_draws(
        model,
        x.double(),
        1,
        0,
        measure=["signals", "gradients"],
        kernel=empirical_ntk,
        initialise=lambda model, generator: None,
    )
    assert set(found.variables) == set(expected.variables)
    for variable in expected.data_vars:
        np.testing.assert_allclose(
            found[variable].to_numpy(), expected[variable].to_numpy(), rtol=1e-9, atol=1e-12
        )
        assert found[variable].attrs == expected[variable].attrs
    assert PERCEPTRON.validate_python(NETWORKS[name]) == net.architecture
