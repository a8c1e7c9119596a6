"""Training of many seeds: independence of batches, divergence, what is measured, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plain_networks as plain
import pytest
import torch

from widthlab.errors import WidthlabError
from widthlab.meanode import Problem, ReadoutLoss, ResidualNetwork, train
from widthlab.meanode.weights import draw

NETWORK = ResidualNetwork(6, 2, 4)
CPU = torch.device("cpu")


def test_a_seed_is_the_same_network_in_any_batch() -> None:
    u, v = draw(NETWORK, [0, 1, 2, 3], 7, CPU, torch.float64)
    again, v_again = draw(NETWORK, [3], 7, CPU, torch.float64)
    assert v is not None
    assert v_again is not None
    assert torch.equal(u[:, 3], again[:, 0])
    assert torch.equal(v[:, 3], v_again[:, 0])
    assert not torch.equal(u[:, 0], u[:, 1])
    other = draw(NETWORK, [3], 8, CPU, torch.float64)[0]
    assert not torch.equal(other, again)

    options = {"eta": 0.2, "steps": 3, "seed": 7, "layers": True, "companions": ["tangent", "lazy"]}
    task = plain.problem(4)
    together = train(NETWORK, task, seeds=5, **options)
    apart = train(NETWORK, task, seeds=5, memory=1, **options)
    alone = train(NETWORK, task, seeds=[3], **options)
    for name in together.data_vars:
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(together[name][[3]], alone[name], rtol=1e-4, atol=1e-6)


def test_weights_have_the_deviations_of_the_block() -> None:
    """Entries have deviations σ √D; 5 standard errors of a sample deviation, 4e-6 in all."""
    for block, factor in (("two_layer", 4.0), ("perceptron", 1.0)):
        network = ResidualNetwork(50, 20, 16, block, sigma_u=0.5, sigma_v=2.0)
        u, v = draw(network, [0], 0, CPU, torch.float64)
        assert v is not None
        allowed = 5 / np.sqrt(2 * u.numel())
        assert float(u.std()) == pytest.approx(0.5 * factor, rel=allowed)
        assert float(v.std()) == pytest.approx(2.0 * factor, rel=allowed)


def test_a_seed_that_diverges_leaves_the_others_alone() -> None:
    """At a rate between their limits some of these seeds diverge and some do not."""
    network = ResidualNetwork(4, 1, 4, "perceptron", "linear")
    task = plain.problem(4)
    options = {"eta": 0.1, "steps": 60, "record": [0, 1, 2, 30, 60]}
    found = train(network, task, seeds=24, **options)
    gone = found.diverged.values >= 0
    assert 2 <= gone.sum() <= 22
    survivors = found.seed.values[~gone]
    assert np.isfinite(found.embedding.values[~gone]).all()
    alone = train(network, task, seeds=list(survivors), **options)
    np.testing.assert_allclose(found.loss.values[~gone], alone.loss, rtol=1e-3)
    for seed in np.flatnonzero(gone):
        dead = found.step.values >= found.diverged.values[seed]
        assert np.isnan(found.loss.values[seed, dead]).all()
        assert np.isfinite(found.loss.values[seed, ~dead]).all()


def test_what_layers_tell_is_what_the_weights_say() -> None:
    """Statistics of layers against the definition, from plain gradient descent."""
    network = ResidualNetwork(5, 2, 4, alpha=1.5)
    task = plain.problem(4)
    found = train(network, task, eta=0.5, steps=1, seeds=2, layers=True, dtype=torch.float64).isel(
        seed=1
    )
    u0, v0 = (w[:, 1] for w in draw(network, [0, 1], 0, CPU, torch.float64) if w is not None)
    leaves = [u0.clone().requires_grad_(), v0.clone().requires_grad_()]
    start = plain.stream(network, *leaves, task.embedding)
    bottom = task.embedding.clone().requires_grad_()
    task.loss.evaluate(plain.stream(network, *leaves, bottom)[-1])[0].backward()
    u, v = ((w - 0.5 * network.raw_rate * w.grad).detach() for w in leaves)
    end = plain.stream(network, u, v, task.embedding)

    def z(weights: torch.Tensor, stream: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([h @ w.T / 4 for h, w in zip(stream[:-1], weights, strict=True)])

    def rms(tensor: torch.Tensor) -> float:
        return float(tensor.detach().square().mean().sqrt())

    after = found.isel(step=1)
    z0 = z(u0, start)
    assert float(after.preactivation) == pytest.approx(rms(z0))
    assert float(after.local_update) == pytest.approx(rms(z(u - u0, end)))
    assert float(after.preactivation_change) == pytest.approx(rms(z(u, end) - z0) / rms(z0))
    assert float(after.inner_change) == pytest.approx(rms(u - u0) / rms(u0))
    assert float(after.outer_change) == pytest.approx(rms(v - v0) / rms(v0))
    own = 1.5 / 2 * torch.tanh(z(u, end)) @ (v - v0)
    assert float(after.branch_update) == pytest.approx(rms(own))
    layers = z(u - u0, end).square().mean((1, 2)).sqrt()
    np.testing.assert_allclose(after.local_update_profile, layers.detach())
    top = task.loss.evaluate(start[-1])[1]
    assert bottom.grad is not None
    gain = float(found.backward_gain.isel(step=0))
    assert gain == pytest.approx(rms(bottom.grad) / rms(top))
    assert np.isfinite(float(after.backward_gain))
    before = found.isel(step=0)
    for name in ("local_update", "preactivation_change", "inner_change", "branch_update"):
        assert float(before[name]) == 0


def test_recorded_steps_are_a_choice_among_all() -> None:
    task = plain.problem(4, kind="cross_entropy")
    whole = train(NETWORK, task, eta=0.2, steps=4, seeds=2)
    some = train(NETWORK, task, eta=0.2, steps=4, seeds=2, record=[0, 3])
    assert some.step.values.tolist() == [0, 3]
    np.testing.assert_array_equal(whole.sel(step=[0, 3]).embedding, some.embedding)
    assert whole.output.shape == (2, 5, 5, 3)
    assert float(whole.loss[0, -1]) < float(whole.loss[0, 0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers() -> None:
    task = plain.problem(4)
    options = {
        "eta": 0.2,
        "steps": 3,
        "seeds": 3,
        "layers": True,
        "companions": ["tangent", "lazy"],
    }
    here = train(NETWORK, task, dtype=torch.float64, **options)
    there = train(NETWORK, task, dtype=torch.float64, device="cuda", **options)
    for name in here.data_vars:
        np.testing.assert_allclose(here[name], there[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"alpha": 1e-200}, "alpha must be positive"),
        ({"alpha": 1e200}, "alpha must be positive"),
        ({"alpha": float("nan")}, "alpha must be positive"),
        ({"alpha": float("inf")}, "alpha"),
        ({"hidden": 0}, "hidden"),
        ({"hidden": 1.5}, "hidden"),
        ({"depth": 0}, "depth"),
        ({"width": -1}, "width"),
        ({"sigma_v": -1.0}, "sigma_v"),
        ({"block": "three_layer"}, "unknown block"),
        ({"activation": "sine"}, "unknown activation"),
    ],
)
def test_networks_that_are_none_are_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(WidthlabError, match=word):
        replace(NETWORK, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"eta": -0.1}, "eta"),
        ({"steps": -1}, "steps"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"record": [2, 1]}, "record"),
        ({"record": [4]}, "record"),
        ({"positions": [1.5]}, "positions"),
        ({"companions": ["ntk"]}, "companion"),
    ],
)
def test_runs_that_are_none_are_refused(change: dict[str, object], word: str) -> None:
    options: dict[str, object] = {"eta": 0.1, "steps": 3, "seeds": 2} | change
    with pytest.raises(WidthlabError, match=word):
        train(NETWORK, plain.problem(4), **options)  # type: ignore[arg-type]


def test_problems_that_do_not_fit_are_refused() -> None:
    task = plain.problem(4)
    loss = task.loss
    assert isinstance(loss, ReadoutLoss)
    with pytest.raises(WidthlabError, match="width 4"):
        train(NETWORK, plain.problem(3), eta=0.1, steps=1, seeds=1)
    with pytest.raises(WidthlabError, match="do not fit"):
        Problem(task.embedding[:, :3], loss)
    with pytest.raises(WidthlabError, match="do not fit"):
        Problem(task.embedding[:3], loss)
    with pytest.raises(WidthlabError, match="labels"):
        Problem(task.embedding, ReadoutLoss(loss.readout, torch.arange(5)))
    with pytest.raises(WidthlabError, match="finite"):
        Problem(task.embedding / 0, loss)
    with pytest.raises(WidthlabError, match="shape"):
        Problem(task.embedding[0], loss)
