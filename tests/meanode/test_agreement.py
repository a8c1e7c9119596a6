"""Finite networks, the reference and the two solvers against each other, and against the rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plain
import pytest
import torch
import xarray as xr

from widthlab.errors import WidthlabError
from widthlab.meanode import (
    Problem,
    ReadoutLoss,
    ResidualNetwork,
    deviation,
    reference,
    solve,
    solve_tangent,
    train,
)
from widthlab.theory import deep_limits

ALLOWED = 3.0
"""Ratio allowed of an rms difference to its standard error. Of an error with k independent parts
its square is χ²_k/k: a false alarm of 6e-6 for k = 3, and these have twelve coordinates or more
that move in at least three directions."""


def rms(values: xr.DataArray | np.ndarray | torch.Tensor) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(values)))))


def assert_agree(first: xr.DataArray, second: xr.DataArray, *errors: xr.DataArray) -> None:
    """Differences within ALLOWED standard errors at every step, which resolve what was learned."""
    for step in range(1, first.sizes["step"]):
        expected = np.sqrt(sum(rms(error[step]) ** 2 for error in errors))
        moved = rms(second[step] - second[0])
        assert expected < 0.05 * moved  # a rate that is off by a factor would be seen
        assert rms(first[step] - second[step]) < ALLOWED * expected


NETWORKS = {
    "two_layer": ResidualNetwork(64, 96, 4),
    "relu": ResidualNetwork(64, 96, 4, activation="relu", sigma_u=0.8, sigma_v=1.5),
    "alpha": ResidualNetwork(64, 96, 4, alpha=2.0, sigma_v=0.7),
    "perceptron": ResidualNetwork(64, 96, 4, "perceptron", sigma_u=0.7, sigma_v=1.2),
    "one_layer": ResidualNetwork(64, 32, 4, "one_layer", sigma_u=0.7, alpha=1.5),
}
ETA = {"two_layer": 0.3, "relu": 0.2, "alpha": 0.3, "perceptron": 0.5, "one_layer": 0.5}


@pytest.mark.parametrize("name", NETWORKS)
def test_reference_and_particles_agree(name: str) -> None:
    """Two limits that share no line of the passes, each within its stated error."""
    network, task = NETWORKS[name], plain.problem(4, inputs=3)
    options = {"eta": ETA[name], "steps": 4, "record": [0, 1, 4]}
    by_networks = reference(network, task, seeds=24, seed=1, positions=[0.5], **options)
    by_particles = solve(network, task, particles=2048, seed=2, positions=[0.5], **options)
    for part in ("embedding", "output", "stream"):
        assert_agree(
            by_networks[part],
            by_particles[part],
            by_networks[f"{part}_error"],
            by_particles[f"{part}_error"],
        )
    assert int(by_networks.diverged) == 0
    # Without extrapolation the mean is off by what `euler` says.
    last = {"step": -1}
    gap = rms(by_networks.embedding_mean[last] - by_particles.embedding[last])
    noise = float(by_networks.sampling[last])
    assert gap < 2 * float(by_networks.euler[last]) + ALLOWED * noise


def test_sizes_leave_the_limit_the_same() -> None:
    """L, M and α²-free rates: networks of twice the depth, or hidden width, have one limit."""
    task = plain.problem(4, inputs=3)
    options = {"eta": 0.3, "steps": 4, "record": [0, 4]}
    network = ResidualNetwork(64, 32, 4)
    truth = solve(network, task, particles=2048, seed=2, **options)
    for other in (replace(network, depth=128), replace(network, hidden=64)):
        found = reference(other, task, seeds=32, seed=1, **options)
        assert_agree(found.embedding, truth.embedding, found.embedding_error, truth.embedding_error)


def test_twice_the_embedding_leaves_the_limit_the_same() -> None:
    """Every coordinate copied once: the same pre-activations, rates and outputs at D and 2D."""
    task = plain.problem(4, inputs=3)
    loss = task.loss
    assert isinstance(loss, ReadoutLoss)
    doubled = Problem(
        torch.cat([task.embedding] * 2, 1),
        ReadoutLoss(torch.cat([loss.readout] * 2), loss.target),
    )
    options = {"eta": 0.3, "steps": 4, "record": [0, 4]}
    truth = solve(ResidualNetwork(1, 1, 4), task, particles=2048, seed=2, **options)
    found = reference(ResidualNetwork(64, 96, 8), doubled, seeds=24, seed=1, **options)
    assert_agree(found.output, truth.output, found.output_error, truth.output_error)


@pytest.mark.parametrize("name", ["two_layer", "relu", "perceptron", "one_layer"])
def test_linearised_networks_tend_to_the_tangent_ode(name: str) -> None:
    """The mean over seeds of large linearised networks, against the kernel in closed form."""
    network, task = NETWORKS[name], plain.problem(4, inputs=3)
    options = {"eta": (ETA[name], ETA[name] / 2), "steps": 4, "record": [0, 1, 4]}
    found = train(network, task, seeds=48, seed=3, linearised=True, **options)
    truth = solve_tangent(network, task, **options)
    values = found.embedding_linearised
    error = values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
    # Their bias is of order 1/L and 1/(LM), below the noise here.
    assert_agree(values.mean("seed"), truth.embedding, error)


@pytest.mark.parametrize("block", ["two_layer", "one_layer"])
def test_the_mean_ode_tends_to_its_tangent_as_alpha_grows(block: str) -> None:
    """Distance ∝ 1/α: twice the α, half the distance, to within a quarter."""
    task = plain.problem(4, inputs=3)
    options = {"eta": 0.3, "steps": 4, "record": [0, 4]}
    truth = solve_tangent(ResidualNetwork(1, 1, 4, block), task, **options)
    distances = []
    for alpha in (16.0, 32.0, 64.0):
        network = ResidualNetwork(1, 1, 4, block, alpha=alpha)
        found = solve(network, task, particles=4096, panels=2, order=4, replicates=2, **options)
        distances.append(rms(found.embedding[-1] - truth.embedding[-1]))
    print(distances)
    assert distances[0] / distances[1] == pytest.approx(2.0, rel=0.25)


def test_tangent_ode_is_refused_where_there_is_none() -> None:
    network = ResidualNetwork(1, 1, 4, "one_layer", "relu")
    with pytest.raises(WidthlabError, match="no tangent ODE"):
        solve_tangent(network, plain.problem(4), eta=0.1, steps=1)


def test_the_error_has_the_predicted_parts() -> None:
    """Sampling falls as 1/√L at M = 1 and 1/√M; Euler as 1/L at M large.

    Slopes between two sizes a factor of 16 apart, with room for the next order; −1 and −½ are
    far outside each other's room.
    """
    task = plain.problem(4, inputs=3)
    options = {"eta": 0.3, "steps": 4, "record": [4], "seed": 5}
    truth = solve(ResidualNetwork(1, 1, 4), task, eta=0.3, steps=4, record=[4], particles=4096)

    def split(depth: int, hidden: int, seeds: int) -> tuple[float, float]:
        found = train(ResidualNetwork(depth, hidden, 4), task, seeds=seeds, **options)
        parts = deviation(found.embedding[:, 0], truth.embedding[0], truth.embedding_error[0])
        return parts.sampling, parts.euler

    def slope(first: float, second: float) -> float:
        return float(np.log(second / first) / np.log(16))

    thin = [split(depth, 1, 200)[0] for depth in (64, 1024)]
    assert slope(*thin) == pytest.approx(deep_limits.SAMPLING.depth, abs=0.1)
    wide = [split(32, hidden, 200)[0] for hidden in (4, 64)]
    assert slope(*wide) == pytest.approx(deep_limits.SAMPLING.hidden, abs=0.1)
    euler = [split(depth, 256, 200)[1] for depth in (2, 32)]
    assert slope(*euler) == pytest.approx(deep_limits.EULER.depth, abs=0.2)


def test_deviation_splits_what_it_is_given() -> None:
    """A bias of 0.3 and a spread of 2, with one seed that is not finite."""
    rng = np.random.default_rng(0)
    limit = rng.normal(size=(5, 20))
    values = limit + 0.3 + 2.0 * rng.normal(size=(400, 5, 20))
    values[7, 0, 0] = np.nan
    parts = deviation(values, limit)
    assert (parts.alive, parts.diverged) == (399, 1)
    assert parts.sampling == pytest.approx(2.0, rel=0.02)
    assert parts.euler == pytest.approx(0.3, abs=0.05)
    assert parts.total == pytest.approx(np.sqrt(4.09), rel=0.02)
    assert np.isnan(deviation(values - 0.3, limit, limit_error=0.1).euler)
    with pytest.raises(WidthlabError, match="two are needed"):
        deviation(np.full((3, 2), np.nan), np.zeros(2))


@pytest.mark.parametrize(
    ("network", "seeds", "word"),
    [
        (ResidualNetwork(7, 4, 4), 4, "even"),
        (ResidualNetwork(8, 4, 4), 1, "2 seeds"),
        (ResidualNetwork(8, 4, 4), 4, "L·M at least 256"),
    ],
)
def test_references_that_are_none_are_refused(
    network: ResidualNetwork, seeds: int, word: str
) -> None:
    against = [ResidualNetwork(16, 2, 4)]
    with pytest.raises(WidthlabError, match=word):
        reference(
            network,
            plain.problem(4),
            eta=0.1,
            steps=1,
            seeds=seeds,
            against=against if "L·M" in word else (),
        )
