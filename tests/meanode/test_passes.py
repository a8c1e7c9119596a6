"""The hand-written passes against autograd, to rounding."""

from __future__ import annotations

import plain_networks as plain
import pytest
import torch
from torch import Tensor

from widthlab.meanode import ResidualNetwork, train
from widthlab.meanode.companions import companion
from widthlab.meanode.engine import Stack
from widthlab.meanode.weights import draw

CPU = torch.device("cpu")
SEEDS = 3
NETWORKS = [
    ResidualNetwork(7, hidden, 4, block, activation, alpha=1.7, sigma_u=0.9, sigma_v=1.2)
    for block in ("two_layer", "perceptron", "one_layer")
    for activation in ("tanh", "relu", "linear")
    for hidden in (1, 3)
]
ids = [f"{n.block}-{n.activation}-M{n.hidden}" for n in NETWORKS]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def loss_of(network: ResidualNetwork, task: plain.Problem, u: Tensor, v: Tensor | None) -> Tensor:
    h = plain.stream(network, u, v, task.embedding)[-1]
    return task.loss.evaluate(h)[0]


def one(tensor: Tensor | None, seed: int) -> Tensor | None:
    return None if tensor is None else tensor[:, seed].clone().requires_grad_()


@pytest.mark.parametrize("network", NETWORKS, ids=ids)
def test_passes_equal_autograd(network: ResidualNetwork) -> None:
    task = plain.problem(4)
    u, v = draw(network, range(SEEDS), 0, CPU, torch.float64)
    before = [one(u, seed) for seed in range(SEEDS)], [one(v, seed) for seed in range(SEEDS)]
    stack = Stack(network, u, v, task.embedding)
    h = stack.forward()
    stack.descend(task.loss.evaluate(h)[1], 1.0, 2.0)
    for seed, (u0, v0) in enumerate(zip(*before, strict=True)):
        assert u0 is not None
        kept = plain.stream(network, u0, v0, task.embedding)
        close(stack.h[:, seed], torch.stack(kept).detach())
        loss_of(network, task, u0, v0).backward()
        assert u0.grad is not None
        assert float(u0.grad.abs().max()) > 1e-6
        close(u[:, seed], (u0 - u0.grad).detach())
        if v is not None and v0 is not None:
            assert v0.grad is not None
            assert float(v0.grad.abs().max()) > 1e-6
            close(v[:, seed], (v0 - 2.0 * v0.grad).detach())


@pytest.mark.parametrize("network", NETWORKS, ids=ids)
def test_gradient_at_the_bottom(network: ResidualNetwork) -> None:
    task = plain.problem(4)
    u, v = draw(network, range(SEEDS), 0, CPU, torch.float64)
    stack = Stack(network, u, v, task.embedding)
    h = stack.forward()
    found = stack.descend(task.loss.evaluate(h)[1], 0.0, 0.0)
    for seed in range(SEEDS):
        bottom = task.embedding.clone().requires_grad_()
        h = plain.stream(network, u[:, seed], None if v is None else v[:, seed], bottom)[-1]
        task.loss.evaluate(h)[0].backward()
        assert bottom.grad is not None
        close(found[seed], bottom.grad)


@pytest.mark.parametrize("network", NETWORKS, ids=ids)
def test_linearised_network_equals_its_jacobian(network: ResidualNetwork) -> None:
    """Steps of the tangent model, against gradient descent with autograd's whole Jacobian."""
    task = plain.problem(4)
    u, v = draw(network, range(SEEDS), 0, CPU, torch.float64)
    stack = Stack(network, u, v, task.embedding)
    initial = stack.forward().clone()
    tangent = companion("tangent", stack)
    rates = (network.raw_rate * 0.3, network.raw_rate * 0.2)
    for _ in range(3):
        h = tangent.forward()
        tangent.descend(task.loss.evaluate(h)[1], *rates)
    found = tangent.forward()

    for seed in range(SEEDS):
        weights = tuple(w[:, seed] for w in (u, v) if w is not None)

        def last(u: Tensor, v: Tensor | None = None) -> Tensor:
            return plain.stream(network, u, v, task.embedding)[-1]

        whole = torch.autograd.functional.jacobian(last, weights)
        jacobians = [j.reshape(initial[seed].numel(), -1) for j in whole]
        change = torch.zeros(initial[seed].numel(), dtype=torch.float64)
        for _ in range(3):
            _, gradient = task.loss.evaluate(initial[seed] + change.view_as(initial[seed]))
            steps = [
                rate * j @ (j.T @ gradient.flatten())
                for rate, j in zip(rates, jacobians, strict=False)
            ]
            change = change - sum(steps)
        assert float(change.abs().max()) > 1e-4
        close(found[seed], initial[seed] + change.view_as(initial[seed]))


@pytest.mark.parametrize("network", NETWORKS, ids=ids)
def test_linearised_blocks_equal_autograd(network: ResidualNetwork) -> None:
    """Steps of networks of linearised blocks, against the formula and autograd."""
    task = plain.problem(4)
    u, v = draw(network, range(SEEDS), 0, CPU, torch.float64)
    lazy = companion("lazy", Stack(network, u, v, task.embedding))
    rates = (network.raw_rate * 0.3, network.raw_rate * 0.2)
    for _ in range(3):
        h = lazy.forward()
        lazy.descend(task.loss.evaluate(h)[1], *rates)
    found = lazy.forward()
    for seed in range(SEEDS):
        initial = [w[:, seed] for w in (u, v) if w is not None]
        moves = [torch.zeros_like(w) for w in initial]
        for _ in range(3):
            leaves = [move.clone().requires_grad_() for move in moves]
            end = plain.lazy_stream(network, initial, leaves, task.embedding)
            gradients = torch.autograd.grad(task.loss.evaluate(end)[0], leaves)
            pairs = zip(moves, rates, gradients, strict=False)
            moves = [move - rate * g for move, rate, g in pairs]
        end = plain.lazy_stream(network, initial, moves, task.embedding)
        still = plain.stream(network, *initial, *[None] * (2 - len(initial)), task.embedding)[-1]
        assert float((end - still).abs().max()) > 1e-4
        close(found[seed], end.detach())


@pytest.mark.parametrize("kind", ["squared", "cross_entropy", "embedding"])
def test_losses_have_the_gradient_of_autograd(kind: str) -> None:
    task = plain.problem(4, kind=kind)
    h = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    loss, gradient = task.loss.evaluate(h)
    assert loss.shape == (2,)
    loss.sum().backward()
    assert h.grad is not None
    close(gradient.detach(), h.grad)
    f = task.loss.outputs(h)
    if kind == "cross_entropy":
        labels = (torch.arange(5) % 3).expand(2, -1)
        expected = torch.nn.functional.cross_entropy(f.mT, labels, reduction="none").mean(-1)
        close(loss, expected)


def test_training_is_plain_gradient_descent() -> None:
    network = ResidualNetwork(5, 2, 4, alpha=1.5)
    task = plain.problem(4)
    found = train(
        network,
        task,
        eta=(0.3, 0.4),
        steps=4,
        seeds=2,
        seed=5,
        positions=[0.4],
        dtype=torch.float64,
    )
    # Raw rates η·L·M·D/α².
    rates = [eta * 5 * 2 * 4 / 1.5**2 for eta in (0.3, 0.4)]
    u, v = draw(network, [1], 5, CPU, torch.float64)
    weights = [u[:, 0].requires_grad_(), v[:, 0].requires_grad_()]
    for step in range(5):
        kept = plain.stream(network, *weights, task.embedding)
        loss = task.loss.evaluate(kept[-1])[0]
        row = found.isel(seed=1, step=step)
        close(torch.from_numpy(row.embedding.values), kept[-1].detach())
        close(torch.from_numpy(row.stream.values[0]), kept[2].detach())
        assert float(row.loss) == pytest.approx(loss.item(), rel=1e-12)
        gradients = torch.autograd.grad(loss, weights)
        weights = [
            (w - rate * g).detach().requires_grad_()
            for w, rate, g in zip(weights, rates, gradients, strict=True)
        ]
    assert found.position.values.tolist() == [0.4]
