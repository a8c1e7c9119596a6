"""The tangent ODE: the mean ODE as a whole linearised in its weights about the initial law.

At initialisation E φ = 0, so that the stream stays at h_0 and its gradient at b(1) for all s: the
kernel is the same at every depth, deterministic and known in closed form or by one quadrature
(`theory.deep_limits`), and gradient descent is a recursion of the last embedding alone. It does not
depend on α. The mean ODE tends to it as the learning rate falls, and not as α grows: then it tends
to the lazy ODE (`lazy`), in which the stream moves by O(1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from widthlab.errors import WidthlabError
from widthlab.meanode.network import ResidualNetwork, learning_rates, recorded_steps
from widthlab.meanode.problems import Problem
from widthlab.meanode.records import limit_dataset
from widthlab.theory.deep_limits import matrix_tangent_kernel, perceptron_tangent_kernel


def solve_tangent(
    network: ResidualNetwork,
    problem: Problem,
    *,
    eta: float | tuple[float, float],
    steps: int,
    record: Sequence[int] | None = None,
    positions: Sequence[float] = (),
) -> xr.Dataset:
    """Return the training of the tangent ODE in float64, in the layout of `limit.solve`.

    Exact, so without errors. Raises WidthlabError for one_layer blocks with an activation that is
    not odd, whose mean at initialisation is not zero.
    """
    task = problem.to(torch.device("cpu"), torch.float64)
    eta_u, eta_v = learning_rates(eta)
    inner, outer = tangent_kernels(network, task)
    kernel = torch.from_numpy(network.limit_rate * (eta_u * inner + eta_v * outer))
    recorded = recorded_steps(steps, None if record is None else list(record))
    h0, h = task.embedding, task.embedding.clone()
    along = torch.tensor(list(positions), dtype=torch.float64)[:, None, None]
    rows = []
    for step in range(steps + 1):
        loss, gradient = task.loss.evaluate(h)
        if step in recorded:
            values = {"loss": loss, "embedding": h}
            output = task.loss.outputs(h)
            if output is not None:
                values["output"] = output
            if positions:
                values["stream"] = h0 + along * (h - h0)
            rows.append({name: value.numpy() for name, value in values.items()})
        h = h - kernel @ gradient
    stacked = {name: np.stack([row[name] for row in rows])[None] for name in rows[0]}
    return limit_dataset(stacked, recorded, list(positions), {})


def stability_limit(network: ResidualNetwork, problem: Problem) -> float:
    """Return 2/λ, the η above which gradient descent of the tangent ODE is unstable.

    λ is the largest eigenvalue of the kernel of both weights times the curvature of the loss; for
    cross-entropy a bound on it, so that η is on the safe side. Makes learning rates comparable over
    σ_u, σ_v and D. Raises WidthlabError like `solve_tangent`, and where nothing can be learned.
    """
    largest = float(np.linalg.eigvalsh(sum(tangent_kernels(network, problem)))[-1])
    if not largest > 0:
        raise WidthlabError(
            "no learning rate is unstable, since the tangent kernel is zero; use sigma_u or "
            "sigma_v above 0"
        )
    return 2 / (network.limit_rate * largest * problem.loss.curvature())


def tangent_kernels(network: ResidualNetwork, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernels (inputs, inputs) of inner and of outer weights, without learning rates."""
    h = problem.embedding.double().cpu().numpy()
    deviation_u, deviation_v = network.deviations
    if network.block == "one_layer":
        try:
            kernel = matrix_tangent_kernel(h @ h.T, network.activation, deviation=deviation_u)
        except ValueError as error:
            raise WidthlabError(
                f"no tangent ODE for one_layer blocks with {network.activation}, whose mean at "
                "initialisation is not zero; use tanh, or two_layer blocks"
            ) from error
        return kernel, np.zeros_like(kernel)
    return perceptron_tangent_kernel(
        h @ h.T,
        network.activation,
        inner_deviation=deviation_u,
        outer_deviation=deviation_v,
        inner_scale=network.inner_scale,
    )
