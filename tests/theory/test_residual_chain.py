"""The chain of one number has the law of real residual networks."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from widthlab import specs
from widthlab.models import build
from widthlab.statistics.over_draws import over_draws
from widthlab.theory.block_law import NoClosure
from widthlab.theory.finite_width import residual_moments
from widthlab.theory.residual_chain import sample_residual_variance

OPTIONS = [
    {"activation": "relu", "residual_scale": 0.8, "hidden_ratio": 0.5},
    {"activation": "leaky_relu", "weight_variance": 1.5, "inner_variance": 0.6},
    {"activation": "linear", "residual_scale": 0.5, "bias_variance": 0.3},
]


def chain(architecture, depth, width, draws, seed=1):
    return sample_residual_variance(
        architecture.activation,
        depth,
        width,
        architecture.hidden_width(width),
        draws,
        np.random.default_rng(seed),
        alpha=architecture.branch_scale(depth),
        c_w=architecture.weight_variance,
        c_b=architecture.bias_variance,
        inner_variance=architecture.inner_variance,
    )


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o["activation"])
def test_the_chain_has_the_law_of_real_networks(options):
    architecture, width, depth, draws = specs.ResidualMLP(**options), 6, 3, 1500
    network = specs.Network(architecture=architecture, width=width, depth=depth)
    x = torch.randn(1, 9, generator=torch.Generator().manual_seed(2))
    x = x * (9**0.5 / x.norm())
    found = over_draws(build(network, (9,), outputs=1, seed=0), x, draws, seed=3)
    real = found["signal_variance"].to_numpy()[:, :, 0]
    drawn = chain(architecture, depth, width, 20_000)
    # Every layer, and a step given the layer below; false alarms: 1e-4 for each of seven tests.
    for layer in range(depth + 1):
        assert ks_2samp(real[:, layer], drawn[:, layer]).pvalue > 1e-4
    for layer in range(1, depth + 1):
        step = [q[:, layer] / q[:, layer - 1] for q in (real, drawn)]
        assert ks_2samp(*step).pvalue > 1e-4
    # A net of another width is told apart, so the test could have failed.
    wider = chain(architecture, depth, 2 * width, 20_000)
    assert ks_2samp(real[:, depth], wider[:, depth]).pvalue < 1e-4


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "linear"])
def test_the_chain_has_the_exact_moments(name):
    options = {"alpha": 0.6, "c_w": 1.3, "inner_variance": 0.8}
    q = sample_residual_variance(name, 4, 12, 9, 200_000, np.random.default_rng(0), **options)
    ratio = q / q[:, :1]
    law = residual_moments(name, 4, 12, 9, **options)
    for measured, exact in ((ratio, law.mean), (ratio**2, law.square)):
        error = measured.std(axis=0) / np.sqrt(len(q))
        assert np.all(np.abs(measured.mean(axis=0) - exact) <= 5 * error + 1e-12)


def test_other_activations_have_no_such_chain():
    with pytest.raises(NoClosure, match="tanh is not scale-invariant"):
        sample_residual_variance("tanh", 1, 4, 4, 2, np.random.default_rng(0), alpha=1.0, c_w=1.0)
