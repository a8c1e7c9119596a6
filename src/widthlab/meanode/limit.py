"""The neural mean ODE, solved with particles in depth: independent of the finite networks.

dh/ds = α E φ(h, Z(s)), where every Z(s) follows gradient descent from the initial law:

    Z(s) ← Z(s) − (η·f/α)·(∂φ/∂Z)ᵀ b(s),   −db/ds = α E[(∂φ/∂h)ᵀ] b,   b(1) = ∂loss/∂h(1),

f = D for two_layer blocks and 1 for others. The initial law is a cubature of P particles at each of
a few Gauss nodes in depth: scrambled Sobol points, another scrambling at every node, half of them
with the sign of the output flipped, so that E φ = 0 holds exactly at initialisation (where the
activation of one_layer blocks is odd). Replicates with other scramblings tell the error. Source:
Chizat, The Hidden Width of Deep ResNets (2025), the mean ODE and its training dynamics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc
from torch import Tensor

from widthlab.errors import WidthlabError
from widthlab.meanode.collocation import Collocation
from widthlab.meanode.engine import activate_, chain_
from widthlab.meanode.network import ResidualNetwork, learning_rates, recorded_steps
from widthlab.meanode.problems import Problem
from widthlab.meanode.records import limit_dataset
from widthlab.statistics.draws import Seed, nth_seed


def solve(
    network: ResidualNetwork,
    problem: Problem,
    *,
    eta: float | tuple[float, float],
    steps: int,
    record: Sequence[int] | None = None,
    positions: Sequence[float] = (),
    particles: int = 4096,
    replicates: int = 8,
    order: int = 8,
    panels: int = 1,
    each: Sequence[str] = (),
    seed: Seed = 0,
    device: str | torch.device = "cpu",
) -> xr.Dataset:
    """Return the limit's training, in float64.

    Depth and hidden width of the network play no part. The dataset has `loss` (step), `embedding`
    (step, input, coordinate), `output` with a readout, and `stream` (step, position, input,
    coordinate): means over replicates; and `<name>_error` of the same shapes, the standard error
    of that mean; of the names in `each` also `<name>_replicates`. Particles are rounded up to a
    power of 2. Raises WidthlabError where the ODE is not solved, or for fewer than 2 replicates,
    which tell no error.
    """
    if replicates < 2:
        raise WidthlabError(f"replicates must be at least 2 to tell the error, not {replicates}")
    if particles < 2:
        raise WidthlabError(f"particles must be at least 2, not {particles}")
    if problem.embedding.shape[1] != network.width:
        raise WidthlabError(
            f"the network has width {network.width} and the embeddings have "
            f"{problem.embedding.shape[1]} coordinates; give both the same width D"
        )
    device = torch.device(device)
    task = problem.to(device, torch.float64)
    rule = Collocation(order, panels)
    recorded = recorded_steps(steps, None if record is None else list(record))
    found = []
    for replicate in range(replicates):
        law = [
            initial_law(network, particles, nth_seed(seed, replicate * rule.count + node))
            for node in range(rule.count)
        ]
        flow = Flow.start(network, task, rule, law)
        rows = []
        for step in range(steps + 1):
            end, gradient = flow.forward()
            if step in recorded:
                rows.append(_measure(task, end, flow, list(positions)))
            if step < steps:
                flow.descend(gradient, *learning_rates(eta))
        found.append({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return limit_dataset(
        {name: np.stack([values[name] for values in found]) for name in found[0]},
        recorded,
        list(positions),
        {"particles": particles, "replicates": replicates, "order": order, "panels": panels},
        each,
    )


def initial_law(network: ResidualNetwork, particles: int, seed: int) -> list[Tensor]:
    """Return particles of the initial law: u (P, D) and v (P, D), or Z (P, D, D) alone.

    P is `particles` rounded up to a power of 2; the second half is the first with v, or Z, negated.
    """
    half = max(0, (particles - 1).bit_length() - 1)
    width = network.width
    one_layer = network.block == "one_layer"
    dimension = width * width if one_layer else 2 * width
    points = qmc.Sobol(dimension, scramble=True, rng=seed).random_base2(half)
    normal = torch.from_numpy(ndtri(np.clip(points, 1e-16, 1 - 1e-16)))
    inner, outer = network.deviations
    if one_layer:
        z = normal.view(-1, width, width) * inner
        return [torch.cat([z, -z])]
    u, v = normal[:, :width] * inner, normal[:, width:] * outer
    return [torch.cat([u, u]), torch.cat([v, -v])]


@dataclass
class Flow:
    """Particles (nodes, P, …) at every node, and the ODE that they drive."""

    network: ResidualNetwork
    problem: Problem
    rule: Collocation
    particles: list[Tensor]
    h: Tensor
    """h at all nodes (nodes, inputs, D)."""
    b: Tensor
    """The gradient of the loss by h at all nodes."""
    slopes: Tensor

    @classmethod
    def start(
        cls, network: ResidualNetwork, problem: Problem, rule: Collocation, laws: list[list[Tensor]]
    ) -> Flow:
        """Return the flow before training, from particles of the initial law at every node."""
        h = problem.embedding.expand(rule.count, -1, -1).clone()
        particles = [torch.stack(tensors).to(h.device) for tensors in zip(*laws, strict=True)]
        return cls(network, problem, rule, particles, h, torch.zeros_like(h), torch.zeros_like(h))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return h(1) and the gradient of the loss by it."""
        self.h, self.slopes, end = self.rule.forward(self.problem.embedding, self._field, self.h)
        return end, self.problem.loss.evaluate(end)[1]

    def descend(self, gradient: Tensor, eta_u: float, eta_v: float) -> None:
        """Move every particle by one step of gradient descent."""
        net = self.network
        everything = slice(0, self.rule.count)
        a = self._activations(self.h, everything)

        def adjoint(b: Tensor, nodes: slice) -> Tensor:
            pulled = self._pull(b, a[nodes], nodes)
            inner = self.particles[0][nodes].flatten(1, -2)
            return net.alpha * net.inner_scale * (pulled @ inner) / self.particles[0].shape[1]

        self.b, _ = self.rule.backward(gradient, adjoint, self.b)
        pulled = self._pull(self.b, a, everything)
        rate = net.limit_rate / net.alpha
        inner = self.particles[0].flatten(1, -2)
        if len(self.particles) == 2:
            self.particles[1].baddbmm_(a.mT, self.b, alpha=-eta_v * rate)
        inner.baddbmm_(pulled.mT, self.h, alpha=-eta_u * rate * net.inner_scale)

    def _activations(self, h: Tensor, nodes: slice) -> Tensor:
        """Return s(κ u·h) (nodes, inputs, P), or s(Z h) (nodes, inputs, P·D)."""
        z = h @ self.particles[0][nodes].flatten(1, -2).mT
        return activate_(z.mul_(self.network.inner_scale), self.network.activation)

    def _field(self, h: Tensor, nodes: slice) -> Tensor:
        """Return α E φ."""
        a = self._activations(h, nodes)
        if len(self.particles) == 2:
            mean = a @ self.particles[1][nodes] / self.particles[1].shape[1]
        else:
            mean = a.view(*h.shape[:2], -1, self.network.width).mean(-2)
        return self.network.alpha * mean

    def _pull(self, b: Tensor, a: Tensor, nodes: slice) -> Tensor:
        """Return (∂φ/∂z)ᵀ b, of the shape of the activations."""
        if len(self.particles) == 2:
            pulled = b @ self.particles[1][nodes].mT
        else:
            pulled = b.repeat(1, 1, self.particles[0].shape[1])
        return chain_(pulled, a, self.network.activation)


def _measure(
    problem: Problem, end: Tensor, flow: Flow, positions: list[float]
) -> dict[str, NDArray[np.float64]]:
    values = {"loss": problem.loss.evaluate(end)[0], "embedding": end}
    output = problem.loss.outputs(end)
    if output is not None:
        values["output"] = output
    if positions:
        values["stream"] = flow.rule.between(problem.embedding, flow.slopes, positions)
    return {name: value.cpu().numpy() for name, value in values.items()}
