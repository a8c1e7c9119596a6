"""Interventions against closed forms of a quadratic and a linear loss, and against derivatives."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from networks import Decoder, Pictures, built, cross_entropy_by_sequence, pictures, sentences
from torch import nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gradients import activation_gradients
from widthlab.statistics.alignment.intervention import intervention
from widthlab.statistics.alignment.losses import supervised
from widthlab.statistics.alignment.pooling import Pooling


def vectors(n, seed, size=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(n, 2, generator=generator, dtype=torch.float64) + 1.0
    return list(zip(x.to(dtype).split(size), y.to(dtype).split(size), strict=True))


def body(dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 2)).to(dtype)


def quadratic(model, batch):
    return 0.5 * ((model(batch[0]) - batch[1]) ** 2).sum(dim=1)


def linear(model, batch):
    return (model(batch[0]) * batch[1]).sum(dim=1)


@contextmanager
def gradients(model, points, losses, train, test, **options):
    with (
        activation_gradients(model, points, losses, train, **options) as first,
        activation_gradients(model, points, losses, test, **options) as second,
    ):
        yield first, second


def intervened(model, points, losses, train, test, steps, m=4, k=3, **options):
    mask = options.get("mask")
    with gradients(model, points, losses, train, test, mask=mask) as (first, second):
        point = next(iter(first.rows))
        return intervention(
            model,
            point,
            losses,
            first,
            second,
            test,
            steps,
            train_samples=m,
            test_samples=k,
            **options,
        )


def test_a_quadratic_loss_has_its_closed_form():
    """The loss ½|z − y|² changes by −η μ·g + ½ η²|μ|², exactly."""
    model, train, test = body(), vectors(20, 1), vectors(18, 2)
    steps = [0.01, 0.1, 1.0]
    found = intervened(model, "0", quadratic, train, test, steps, seed=5)
    with gradients(model, "0", quadratic, train, test) as (first, second):
        q, p = np.array(first.rows["0"]), np.array(second.rows["0"])
    generator = np.random.default_rng(5)
    blocks = generator.permutation(20)[:20].reshape(5, 4)
    held_out = generator.permutation(18)[:15].reshape(5, 3)
    mu, g = q[blocks].mean(axis=1), p[held_out].mean(axis=1)
    slope, curvature = np.sum(mu * g, axis=1), np.sum(mu**2, axis=1)
    for i, eta in enumerate(steps):
        np.testing.assert_allclose(found.predicted[i], -eta * slope, rtol=1e-10)
        exact = -eta * slope + 0.5 * eta**2 * curvature
        np.testing.assert_allclose(found.observed[i], exact, rtol=1e-8, atol=1e-14)
        ratio = np.sum(exact * eta * -slope) / np.sum((eta * slope) ** 2)
        assert float(found.ratio[i]) == pytest.approx(ratio)
        same = np.mean(np.sign(exact) == np.sign(-slope))
        assert float(found.sign_agreement[i]) == same
    # The targets lie on one side, so that a small step helps, and one of twice 1/curvature harms.
    assert found.sign_agreement.values[0] == 1
    assert np.all(found.ratio_low <= found.ratio)
    assert np.all(found.ratio <= found.ratio_high)


def test_first_order_ends_where_the_ratio_leaves_the_tolerance():
    """For the quadratic loss the ratio falls by η/2 times a constant c: the end is 2·tol/c."""
    model, train, test = body(), vectors(40, 1), vectors(40, 2)
    fine = [1e-4, *np.linspace(0.01, 1.0, 100)]
    found = intervened(model, "0", quadratic, train, test, fine, m=10, k=10, tolerance=0.2)
    c = 2 * (1 - float(found.ratio[-1])) / fine[-1]
    inside = [eta for eta in fine if c * eta / 2 <= 0.2]
    assert float(found.first_order_end) == max(inside) < 1.0
    none = intervened(model, "0", quadratic, train, test, [0.9], m=10, k=10, tolerance=1e-3)
    assert np.isnan(none.first_order_end)


def test_a_linear_loss_is_all_first_order():
    found = intervened(
        body(), "0", linear, vectors(20, 3), vectors(20, 4), [0.1, 10.0, 1000.0], tolerance=1e-6
    )
    np.testing.assert_allclose(found.ratio, 1, rtol=1e-8)
    np.testing.assert_array_equal(found.sign_agreement, 1)
    assert float(found.first_order_end) == 1000
    # Clopper and Pearson's lower end for 5 of 5.
    assert float(found.sign_agreement_low[0]) == pytest.approx(0.025 ** (1 / 5))


@pytest.mark.parametrize("how", ["sum", "mean", "whole"])
def test_feature_maps_move_as_predicted(how):
    """The step is the adjoint of the pooling: small steps change the loss by the prediction."""
    losses = supervised(nn.CrossEntropyLoss(reduction="none"))
    found = intervened(
        built(Pictures),
        {"stem.0": Pooling(how)},
        losses,
        pictures(9, (4, 5)),
        pictures(9, (3, 6), seed=8),
        [1e-5],
    )
    np.testing.assert_allclose(found.observed, found.predicted, rtol=2e-3)
    assert found.attrs["pooling"] == how


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("point", ["attention", "mlp"])
def test_masked_sequences_move_as_predicted(how, point):
    """With a mask, and a module that returns a tuple; the padding is not moved."""

    def losses(model, batch):
        return cross_entropy_by_sequence(model(batch[0]), *batch[1:])

    found = intervened(
        built(Decoder),
        {point: Pooling(how)},
        losses,
        sentences(8),
        sentences(6, seed=7),
        [1e-5],
        mask=lambda batch: batch[2],
    )
    np.testing.assert_allclose(found.observed, found.predicted, rtol=2e-3)


def test_steps_below_the_rounding_error_are_passed_over():
    """In single precision a tiny step is not resolved; its ratio does not end the first order."""
    train, test = vectors(20, 1, dtype=torch.float32), vectors(18, 2, dtype=torch.float32)
    found = intervened(body(torch.float32), "0", quadratic, train, test, [1e-9, 1e-2])
    assert found.resolved.values.tolist() == [False, True]
    assert float(found.first_order_end) == 1e-2


def test_one_draw_has_no_interval_for_its_ratio():
    found = intervened(body(), "0", quadratic, vectors(8, 1), vectors(8, 2), [0.1], m=5, k=5)
    assert found.sizes["draw"] == 1
    assert np.isfinite(found.ratio[0])
    assert np.isnan(found.ratio_low[0])


def test_the_model_is_left_as_it_was():
    model = built(Pictures).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    losses = supervised(nn.CrossEntropyLoss(reduction="none"))
    intervened(model, "body", losses, pictures(), pictures(), [0.1])
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_what_is_refused():
    model, train, test = body(), vectors(20, 1), vectors(18, 2)
    options = {"train_samples": 4, "test_samples": 3}
    with gradients(model, "0", quadratic, train, test) as (first, second):

        def intervene(point="0", batches=test, steps=(0.1,), **changed):
            return intervention(
                model, point, quadratic, first, second, batches, steps, **options | changed
            )

        with pytest.raises(WidthlabError, match="no training gradients were measured at '1'"):
            intervene("1")
        for batches in (test[::-1], test[:-1], [*test, test[0]], []):
            with pytest.raises(WidthlabError, match="without shuffling"):
                intervene(batches=batches)
        for steps in ([], [0.0], [-1.0], [np.inf]):
            with pytest.raises(WidthlabError, match="steps must be positive"):
                intervene(steps=steps)
        with pytest.raises(WidthlabError, match="M = 21 and K = 3 needs as many"):
            intervene(train_samples=21)
    with (
        gradients(model, "0", quadratic, train, test) as (first, _),
        gradients(model, {"0": Pooling("whole")}, quadratic, train, test) as (_, second),
        pytest.raises(WidthlabError, match="pooled differently"),
    ):
        intervention(model, "0", quadratic, first, second, test, [0.1], **options)
