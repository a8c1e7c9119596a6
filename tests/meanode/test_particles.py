"""The particle solver: its integrator, its gradients, and closed forms for linear blocks."""

from __future__ import annotations

import math

import plain_networks as plain
import pytest
import torch
from torch import Tensor

from widthlab.errors import WidthlabError
from widthlab.meanode import EmbeddingLoss, Problem, ResidualNetwork, limit, solve, train
from widthlab.meanode.collocation import Collocation


@pytest.mark.parametrize(("order", "power"), [(1, 2), (2, 4), (3, 6)])
def test_gauss_collocation_has_its_order(order: int, power: int) -> None:
    """y' = cos(3s)·y²/2, whose solution is known; error falls as panels^(−2Q)."""

    def error(panels: int) -> float:
        rule = Collocation(order, panels)
        s = rule.nodes[:, None]

        def field(y: Tensor, nodes: slice) -> Tensor:
            return torch.cos(3 * s[nodes]) * y**2 / 2

        start = torch.ones(1, dtype=torch.float64)
        _, slopes, end = rule.forward(start, field, start.expand(rule.count, 1).clone())
        exact = 1 / (1 - math.sin(3.0) / 6)
        middle = rule.between(start, slopes, [0.0, 1.0])
        torch.testing.assert_close(middle, torch.stack([start, end]))
        return abs(float(end) - exact)

    measured = math.log2(error(4) / error(8))
    assert measured == pytest.approx(power, abs=0.5)
    assert float(Collocation(order, 3).weights.sum()) == pytest.approx(1.0)


def test_adjoint_is_the_gradient_of_the_discretised_problem() -> None:
    """Against finite differences of the loss in single particles, at every node."""
    network = ResidualNetwork(1, 1, 3, alpha=1.4)
    task = plain.problem(3, inputs=2)
    rule = Collocation(3, 2)
    # No symmetric law: its mean field vanishes at first, and so would the adjoint's equation.
    normal = torch.randn(
        rule.count, 2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    laws = [[2.0 * part for part in node] for node in normal]

    def flow() -> limit.Flow:
        return limit.Flow.start(network, task, rule, laws)

    def loss(moved: limit.Flow) -> float:
        return float(task.loss.evaluate(moved.forward()[0])[0])

    stepped = flow()
    stepped.descend(stepped.forward()[1], 1.0, 1.0)
    before = flow().particles
    for kind in (0, 1):
        for node in (0, 2, 5):
            # A particle's mass is the node's weight over P; rates are D/α² of that mass.
            mass = float(rule.weights[node]) / 4
            step = (before[kind] - stepped.particles[kind])[node, 1, 2]
            gradient = float(step) * mass * network.alpha**2 / network.width
            ends = []
            for sign in (1.0, -1.0):
                moved = flow()
                moved.particles[kind][node, 1, 2] += sign * 1e-5
                ends.append(loss(moved))
            assert gradient == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def diagonal(width: int = 3) -> Problem:
    """Inputs along the axes, each with its own target: coordinates do not mix."""
    h0 = torch.diag(torch.linspace(0.5, 1.0, width, dtype=torch.float64))
    target = torch.diag(torch.linspace(1.5, 0.7, width, dtype=torch.float64))
    return Problem(h0, EmbeddingLoss(target))


def test_matrix_blocks_have_a_closed_form() -> None:
    """φ = Z h: h(1) = h_0 exp(αz), z ← z − (η/α)·h_0·g·∂ℓ/∂h(1), since h(s) b(s) is constant."""
    network = ResidualNetwork(1, 1, 3, "one_layer", "linear", alpha=1.3)
    task, eta, steps = diagonal(), 4.0, 6
    found = solve(network, task, eta=eta, steps=steps, positions=[0.25], particles=16, replicates=2)
    h0 = task.embedding.diag()
    z = torch.zeros(3, dtype=torch.float64)
    for step in range(steps + 1):
        g = torch.exp(network.alpha * z)
        h = torch.from_numpy(found.embedding.values[step])
        torch.testing.assert_close(h, torch.diag(h0 * g), rtol=1e-10, atol=1e-12)
        quarter = torch.from_numpy(found.stream.values[step, 0])
        expected = torch.diag(h0 * torch.exp(0.25 * network.alpha * z))
        torch.testing.assert_close(quarter, expected, rtol=1e-8, atol=1e-10)
        slope = task.loss.evaluate(torch.diag(h0 * g))[1].diag()
        z = z - eta / network.alpha * h0 * g * slope
    assert float((g - 1).abs().min()) > 0.1


def test_finite_matrix_blocks_are_the_euler_scheme_of_the_closed_form() -> None:
    """Without initial noise: h_L = h_0 (1 + αz/L)^L to rounding, and error 1/L to the limit."""
    task, eta, steps, alpha = diagonal(), 4.0, 6, 1.3
    h0 = task.embedding.diag()
    errors = []
    for depth in (256, 512):
        network = ResidualNetwork(depth, 2, 3, "one_layer", "linear", alpha=alpha, sigma_u=0.0)
        found = train(network, task, eta=eta, steps=steps, seeds=1, dtype=torch.float64)
        z, limit_z = (torch.zeros(3, dtype=torch.float64) for _ in range(2))
        for step in range(steps + 1):
            r = 1 + alpha * z / depth
            h = torch.from_numpy(found.embedding.values[0, step])
            torch.testing.assert_close(h, torch.diag(h0 * r**depth), rtol=1e-11, atol=1e-12)
            slope = task.loss.evaluate(torch.diag(h0 * r**depth))[1].diag()
            z = z - eta / alpha * h0 * r ** (depth - 1) * slope
            g = torch.exp(alpha * limit_z)
            slope = task.loss.evaluate(torch.diag(h0 * g))[1].diag()
            limit_z = limit_z - eta / alpha * h0 * g * slope
        errors.append(float((h - torch.diag(h0 * g)).norm()))
    assert errors[0] / errors[1] == pytest.approx(2.0, abs=0.15)


@pytest.mark.parametrize("block", ["two_layer", "perceptron"])
def test_linear_perceptrons_have_a_closed_form(block: str) -> None:
    """D = 1: h(1) = h_0 exp(α m), m = E uv and p = E u² + E v² a recursion of their own."""
    network = ResidualNetwork(1, 1, 1, block, "linear", alpha=1.2, sigma_u=0.8, sigma_v=1.1)
    h0 = torch.tensor([[0.7], [-1.0]], dtype=torch.float64)
    task = Problem(h0, EmbeddingLoss(1.6 * h0))
    # Four particles with exactly the second moments of the law.
    u = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64) * 0.8
    v = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=torch.float64) * 1.1
    rule = Collocation(6, 1)
    flow = limit.Flow.start(network, task, rule, [[u, v]] * rule.count)
    m, p, eta = 0.0, 0.8**2 + 1.1**2, 0.4
    for _ in range(8):
        end, gradient = flow.forward()
        torch.testing.assert_close(end, h0 * math.exp(1.2 * m), rtol=1e-10, atol=0)
        flow.descend(gradient, eta, eta)
        slope = float((task.loss.evaluate(end)[1] * end).sum())  # h b, the same at every s
        e = eta / 1.2 * slope
        m, p = (1 + e**2) * m - e * p, (1 + e**2) * p - 4 * e * m
    assert math.exp(1.2 * m) == pytest.approx(1.6, abs=0.2)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_more_nodes_change_nothing_but_the_sample(activation: str) -> None:
    """With one law at all nodes everything is smooth in s, and the integrator's error alone."""
    network = ResidualNetwork(1, 1, 4, activation=activation)
    task = plain.problem(4)
    law = limit.initial_law(network, 512, 0)

    def end(order: int, panels: int) -> Tensor:
        rule = Collocation(order, panels)
        flow = limit.Flow.start(network, task, rule, [law] * rule.count)
        for _ in range(4):
            flow.descend(flow.forward()[1], 0.3, 0.3)
        return flow.forward()[0]

    # A kinked activation of few particles is not smooth, of the law it would be.
    tolerance = 1e-6 if activation == "tanh" else 1e-3
    torch.testing.assert_close(end(6, 1), end(6, 3), rtol=0, atol=tolerance)


def test_the_law_of_the_particles() -> None:
    """Moments by Sobol points: the weights' variances, and an exactly vanishing mean."""
    network = ResidualNetwork(1, 1, 3, sigma_u=0.5, sigma_v=2.0)
    u, v = limit.initial_law(network, 4000, 0)
    assert u.shape == v.shape == (4096, 3)
    assert float(u.var()) == pytest.approx(0.25 * 3, rel=0.02)
    assert float(v.var()) == pytest.approx(4.0 * 3, rel=0.02)
    assert float(v.mean(0).abs().max()) == pytest.approx(0.0, abs=1e-12)
    assert float((u.T @ v / 4096).abs().max()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"replicates": 1}, "replicates"),
        ({"particles": 1}, "particles"),
        ({"order": 0}, "order"),
        ({"eta": float("nan")}, "eta"),
        ({"record": [3]}, "record"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], word: str) -> None:
    options: dict[str, object] = {"eta": 0.1, "steps": 2} | change
    with pytest.raises(WidthlabError, match=word):
        solve(ResidualNetwork(1, 1, 3), plain.problem(3), **options)  # type: ignore[arg-type]


def test_what_does_not_converge_is_said() -> None:
    with pytest.raises(WidthlabError, match="not solved"):
        solve(
            ResidualNetwork(1, 1, 3, activation="linear", alpha=300.0),
            plain.problem(3),
            eta=1e6,
            steps=3,
            particles=16,
            order=2,
        )
