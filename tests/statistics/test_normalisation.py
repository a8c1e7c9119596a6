"""Recalibrated batch normalisation has the statistics of the data, whatever it had before."""

import torch

from widthlab import specs
from widthlab.models import build
from widthlab.statistics.normalisation import recalibrate


def test_statistics_become_those_of_the_data():
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)) * 3 + 1
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    assert recalibrate(model, x)
    torch.testing.assert_close(model[0].running_mean, x.mean(0))
    torch.testing.assert_close(model[0].running_var, x.var(0))
    assert not model[0].training
    assert model[0].momentum == 0.1


def test_evaluation_is_then_what_training_mode_computes():
    network = specs.Network(architecture={"name": "resnet20"}, width=4, depth=20)
    model = build(network, (3, 16, 16), outputs=10, seed=0)
    x = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model.train()(x)
        before = model.eval()(x)
        recalibrate(model, x)
        after = model(x)
    # Running variances are unbiased, those of a batch are not: 1/n apart, with n ≥ 64 · 16.
    torch.testing.assert_close(after, wanted, rtol=0.02, atol=0.02)
    assert (before - wanted).abs().mean() > 10 * (after - wanted).abs().mean()


def test_a_network_without_batch_normalisation_is_left_alone():
    model = torch.nn.Linear(3, 2)
    weight = model.weight.clone()
    assert not recalibrate(model, torch.ones(4, 3))
    torch.testing.assert_close(model.weight, weight)
