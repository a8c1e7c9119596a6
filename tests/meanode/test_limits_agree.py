"""Finite networks, the reference and the two solvers against each other, and against the rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plain_networks as plain
import pytest
import torch
import xarray as xr

from widthlab.errors import WidthlabError
from widthlab.meanode import (
    Deviation,
    Problem,
    ReadoutLoss,
    ResidualNetwork,
    deviation,
    reference,
    solve,
    solve_lazy,
    solve_tangent,
    stability_limit,
    train,
)
from widthlab.meanode.lazy import block_kernel
from widthlab.meanode.tangent import tangent_kernels
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
        assert expected < 0.1 * moved  # a rate that is off by a factor would be seen
        assert rms(first[step] - second[step]) < ALLOWED * expected


NETWORKS = {
    "two_layer": ResidualNetwork(64, 96, 4),
    "relu": ResidualNetwork(64, 96, 4, activation="relu", sigma_u=0.8, sigma_v=1.5),
    "alpha": ResidualNetwork(64, 96, 4, alpha=2.0, sigma_v=0.7),
    "perceptron": ResidualNetwork(64, 96, 4, "perceptron", sigma_u=0.7, sigma_v=1.2),
    "one_layer": ResidualNetwork(64, 32, 4, "one_layer", sigma_u=0.7, alpha=1.5),
}
ETA = {"two_layer": 0.3, "relu": 0.2, "alpha": 0.3, "perceptron": 0.3, "one_layer": 0.3}


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
    found = train(network, task, seeds=96, seed=3, companions=["tangent"], **options)
    truth = solve_tangent(network, task, **options)
    values = found.embedding_tangent
    error = values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
    # Their bias is of order 1/L and 1/(LM), below the noise here.
    assert_agree(values.mean("seed"), truth.embedding, error)


@pytest.mark.parametrize("name", ["two_layer", "perceptron", "one_layer"])
def test_networks_of_linearised_blocks_tend_to_the_lazy_ode(name: str) -> None:
    network, task = NETWORKS[name], plain.problem(4, inputs=3)
    options = {"eta": (ETA[name], ETA[name] / 2), "steps": 4, "record": [0, 1, 4]}
    found = train(network, task, seeds=96, seed=3, companions=["lazy"], **options)
    truth = solve_lazy(network, task, **options)
    values = found.embedding_lazy
    error = values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
    assert_agree(values.mean("seed"), truth.embedding, error)
    finer = solve_lazy(network, task, order=4, panels=3, **options)
    assert rms(finer.embedding - truth.embedding) < 1e-6


@pytest.mark.parametrize("block", ["two_layer", "one_layer"])
def test_the_mean_ode_tends_to_the_lazy_ode_as_alpha_grows(block: str) -> None:
    """As α^−2: the first order, α^−1, vanishes for laws that are symmetric in the output's sign.

    The slope comes to −2 from above; −1 is the rival. To the tangent ODE it does not tend.
    """
    task = plain.problem(4, inputs=3)
    options = {"eta": 0.3, "steps": 4, "record": [0, 4]}
    network = ResidualNetwork(1, 1, 4, block)
    lazy, tangent = (solver(network, task, **options) for solver in (solve_lazy, solve_tangent))
    to_lazy, to_tangent = [], []
    particles = {"two_layer": 4096, "one_layer": 1024}[block]
    for alpha in (2.0, 4.0, 8.0):
        found = solve(replace(network, alpha=alpha), task, particles=particles, seed=6, **options)
        last = found.embedding[-1]
        to_lazy.append(rms(last - lazy.embedding[-1]))
        to_tangent.append(rms(last - tangent.embedding[-1]))
    slopes = np.diff(np.log2(to_lazy))
    assert slopes[1] < -1.4
    assert to_tangent[-1] > 3 * to_lazy[-1]
    assert to_tangent[-1] > 0.5 * rms(lazy.embedding[-1] - tangent.embedding[-1])


def test_both_linear_odes_and_the_mean_ode_are_one_at_small_rates() -> None:
    """What they differ by is of second order in the rate: a quarter at half of it."""
    task = plain.problem(4, inputs=3)
    network = ResidualNetwork(1, 1, 4)
    distances = []
    for eta in (0.02, 0.01):
        options = {"eta": eta, "steps": 2}
        lazy = solve_lazy(network, task, **options)
        tangent = solve_tangent(network, task, **options)
        distances.append(rms(lazy.embedding[-1] - tangent.embedding[-1]))
        assert distances[-1] < 0.05 * rms(lazy.embedding[-1] - lazy.embedding[0])
    assert distances[0] / distances[1] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("deviation_of", [0.5, 2.0])
def test_the_kernel_of_a_block_is_that_of_the_theory(deviation_of: float) -> None:
    """Mehler's series against the quadrature of `theory.gaussian`, all rates and blocks."""
    h = plain.problem(4).embedding
    for block in ("two_layer", "perceptron", "one_layer"):
        network = ResidualNetwork(1, 1, 4, block, sigma_u=deviation_of / 2)
        problem = Problem(h, plain.problem(4).loss)
        inner, outer = tangent_kernels(network, problem)
        found = block_kernel(network, h, h, 0.7, 0.3)
        np.testing.assert_allclose(found, 0.7 * inner + 0.3 * outer, rtol=1e-7)


def test_lazy_ode_is_refused_where_there_is_none() -> None:
    options = {"eta": 0.1, "steps": 2}
    with pytest.raises(WidthlabError, match="cusp"):
        solve_lazy(ResidualNetwork(1, 1, 4, activation="relu"), plain.problem(4), **options)
    with pytest.raises(WidthlabError, match="sigma_u"):
        solve_lazy(ResidualNetwork(1, 1, 4, sigma_u=0.0), plain.problem(4), **options)
    with pytest.raises(WidthlabError, match="smaller sigma_u"):
        solve_lazy(ResidualNetwork(1, 1, 4, sigma_u=500.0), plain.problem(4), **options)


@pytest.mark.parametrize("kind", ["squared", "embedding"])
def test_learning_rates_above_the_limit_are_unstable(kind: str) -> None:
    network, task = ResidualNetwork(1, 1, 4, sigma_v=1.7), plain.problem(4, kind=kind)
    limit = stability_limit(network, task)
    below, above = (
        solve_tangent(network, task, eta=factor * limit, steps=400) for factor in (0.98, 1.02)
    )
    assert float(below.loss[-1]) < float(below.loss[0])
    assert float(above.loss[-1]) > 100 * float(above.loss[0])


def test_curvature_is_that_of_the_loss() -> None:
    """Largest eigenvalue of autograd's Hessian; a bound for cross-entropy."""
    for kind in ("squared", "embedding", "cross_entropy"):
        task = plain.problem(4, inputs=3, kind=kind)

        def value(flat: torch.Tensor, task: Problem = task) -> torch.Tensor:
            return task.loss.evaluate(flat.view(3, 4))[0]

        hessian = torch.autograd.functional.hessian(value, task.embedding.flatten())
        largest = float(torch.linalg.eigvalsh(hessian)[-1])
        if kind == "cross_entropy":
            assert largest <= task.loss.curvature() < 4 * largest
        else:
            assert largest == pytest.approx(task.loss.curvature())


def test_tangent_ode_is_refused_where_there_is_none() -> None:
    network = ResidualNetwork(1, 1, 4, "one_layer", "relu")
    with pytest.raises(WidthlabError, match="no tangent ODE"):
        solve_tangent(network, plain.problem(4), eta=0.1, steps=1)


def parts_of_error(
    networks: list[ResidualNetwork], task: Problem, seeds: int, eta: float, steps: int
) -> list[Deviation]:
    """Return the deviations of networks of one width from the limit after training."""
    truth = solve(networks[0], task, eta=eta, steps=steps, record=[steps], particles=2048)
    parts = []
    for network in networks:
        found = train(network, task, eta=eta, steps=steps, seeds=seeds, seed=5, record=[steps])
        last = found.embedding[:, 0], truth.embedding[0], truth.embedding_error[0]
        parts.append(deviation(*last))
    return parts


def slope(first: float, second: float, factor: float) -> float:
    return float(np.log(second / first) / np.log(factor))


@pytest.mark.parametrize("sizes", ["depth", "hidden"])
def test_sampling_error_has_the_predicted_slope(sizes: str) -> None:
    """The spread falls as 1/√L at M = 1, and as 1/√M.

    Of 200 seeds each spread is known to 5 %, so that five standard errors of the slope are 0.13.
    """
    start = {"depth": ResidualNetwork(64, 1, 4), "hidden": ResidualNetwork(32, 4, 4)}[sizes]
    larger = replace(start, **{sizes: 16 * getattr(start, sizes)})
    task = plain.problem(4, inputs=3)
    thin, thick = parts_of_error([start, larger], task, 200, eta=0.3, steps=4)
    expected = getattr(deep_limits.SAMPLING, sizes)
    assert slope(thin.sampling, thick.sampling, 16.0) == pytest.approx(expected, abs=0.13)
    # M = 1 converges: bias too.
    assert thick.total < thin.total / 3


def test_euler_error_has_the_predicted_slope() -> None:
    """The bias falls as 1/L at M large, with room for the next order, 1/L²; −½ is excluded."""
    networks = [ResidualNetwork(depth, 512, 8) for depth in (4, 16)]
    shallow, deep = parts_of_error(networks, plain.problem(8), 64, eta=0.5, steps=10)
    assert deep.euler**2 > 10 * deep.noise_square
    found = slope(shallow.euler, deep.euler, 4.0)
    assert found == pytest.approx(deep_limits.EULER.depth, abs=0.25)


def test_reference_is_rid_of_the_euler_error() -> None:
    """At depth 8, where the mean over seeds is off by many standard errors."""
    network, task = ResidualNetwork(8, 512, 8), plain.problem(8)
    options = {"eta": 0.5, "steps": 10, "record": [10]}
    truth = solve(network, task, particles=2048, **options).embedding[0]
    found = reference(network, task, seeds=64, seed=1, **options)
    bias = rms(found.embedding_mean[0] - truth)
    assert bias > 5 * float(found.sampling[0])
    assert bias == pytest.approx(float(found.euler[0]), rel=0.5)
    assert rms(found.embedding[0] - truth) < bias / 2


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
