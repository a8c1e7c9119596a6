"""What `ensembles.sample` offers and refuses, and exact laws at widths where no matrix fits."""

import numpy as np
import pytest
import torch
import xarray as xr
from twins import EVERYTHING, inputs, network

from widthlab import ensembles, specs
from widthlab.ensembles import sampling
from widthlab.ensembles.network import weightfree
from widthlab.errors import WidthlabError
from widthlab.theory.finite_width import (
    gradient_squared_correlation,
    mlp_log_law,
    mlp_moments,
)
from widthlab.theory.tangent_kernel import ntk_relative_variance

RELU = {"name": "mlp", "activation": "relu", "parameterisation": "ntk"}


def test_the_same_seed_gives_the_same_numbers_and_another_does_not():
    net, x = network(8, 2, **RELU), inputs(2)
    one = ensembles.sample(net, x, 5, 3, measure=EVERYTHING)
    again = ensembles.sample(net, x, 5, np.random.SeedSequence(3), measure=EVERYTHING)
    other = ensembles.sample(net, x, 5, 4, measure=EVERYTHING)
    xr.testing.assert_identical(one, again)
    assert not np.any(one["ntk"].to_numpy() == other["ntk"].to_numpy())


def test_batches_of_draws_are_different_and_complete(monkeypatch):
    net, x = network(8, 2, **RELU), inputs(2)
    monkeypatch.setitem(sampling.BLOCK, "cpu", 3 * 16)
    found = ensembles.sample(net, x, 7, 0, measure=EVERYTHING)
    assert found.sizes["draw"] == 7
    assert len(np.unique(found["ntk"].to_numpy()[:, 0, 0])) == 7


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    ensembles.sample(network(8, 2, **RELU), inputs(2), 3, 0, measure=EVERYTHING)
    assert torch.equal(before, torch.get_rng_state())


def test_only_what_is_asked_for_is_measured():
    net, x = network(8, 2, **RELU), inputs(3)
    found = ensembles.sample(net, x, 2, 0, measure=["signals"], pairs=[(2, 0)])
    assert set(found.data_vars) == {"signal_variance", "signal_mean", "correlation"}
    assert (found["input_a"].item(), found["input_b"].item()) == (2, 0)
    assert set(ensembles.sample(net, x, 2, 0, measure=["ntk"]).data_vars) == {"ntk"}
    assert found.attrs["engine"] == "weightfree"


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (network(8, 2, name="mlp", normalisation="batch"), "batch normalisation couples"),
        (
            specs.Network(architecture=specs.ResNet20(), width=8, depth=20),
            "convolutions, whose weights are used at every position",
        ),
    ],
)
def test_networks_that_cannot_be_drawn_are_refused_with_the_reason(net, words):
    with pytest.raises(WidthlabError, match=words) as caught:
        ensembles.sample(net, inputs(2), 2, 0)
    assert "choose engine: dense" in str(caught.value)


def test_bad_arguments_are_refused():
    net, x = network(8, 2, **RELU), inputs(2)
    with pytest.raises(WidthlabError, match="draws must be at least 1, not 0"):
        ensembles.sample(net, x, 0, 0)
    with pytest.raises(WidthlabError, match="pairs must name inputs 0 … 1"):
        ensembles.sample(net, x, 1, 0, pairs=[(0, 2)])


def test_weights_serve_one_pass_backward():
    model = weightfree(network(4, 2, **RELU), 5, torch.Generator().manual_seed(0))
    x = inputs(2).double()[None].requires_grad_()
    output = model(x).sum()
    output.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run forward again"):
        output.backward()


def test_overflow_is_seen_and_does_not_stop_the_others():
    net = network(4, 3, name="mlp", activation="linear", weight_variance=1e200)
    q = ensembles.sample(net, inputs(1), 3, 0)["signal_variance"].to_numpy()
    assert np.isfinite(q[:, 0]).all()
    assert not np.isfinite(q[:, -1]).any()


def test_exact_laws_of_a_wide_and_deep_relu_network():
    """Width 4,096 and depth 40: 2.7 GB of weights a network, were they made."""
    width, depth, draws = 4096, 40, 300
    found = ensembles.sample(
        network(width, depth, **RELU), inputs(1), draws, 0, measure=EVERYTHING
    ).isel(input=0)
    q = found["signal_variance"].to_numpy()
    _mean_is(q[:, -1], 1.0)
    _mean_is(q[:, -1] ** 2, mlp_moments("relu", [width] * depth).square[-1])
    law = mlp_log_law("relu", [width] * depth)
    log = np.log(q[:, -1])
    _mean_is(log, law.mean[-1])
    _mean_is((log - law.mean[-1]) ** 2, law.variance[-1])
    kernel = found["ntk"].to_numpy()[:, 0, 0]
    _mean_is(kernel, depth + 1.0)
    relative = (kernel / (depth + 1.0) - 1) ** 2
    # Leading order in 1/N: the next one is of relative size depth / width.
    _mean_is(relative, ntk_relative_variance(depth, width), slack=depth / width)


def test_gradients_of_neurons_are_correlated_as_they_should():
    width, depth, draws = 32, 3, 6000
    found = ensembles.sample(
        network(width, depth, **RELU), inputs(1), draws, 1, measure=["gradients"]
    ).isel(input=0)
    for layer in range(1, depth):
        law = gradient_squared_correlation("relu", [width] * (depth - layer))
        pairs = found["m22"].to_numpy()[:, layer]
        square = found["m2"].to_numpy()[:, layer].mean() ** 2
        _mean_is(pairs / square - 1, law, slack=0.01)


def _mean_is(values, expected, slack=0.0):
    """The mean is `expected` within five standard errors, and a relative slack."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - expected) <= 5 * error + slack * abs(expected)
