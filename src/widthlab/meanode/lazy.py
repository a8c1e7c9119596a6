"""The lazy ODE: the mean ODE with blocks linearised in their weights about the initial law.

To it the mean ODE tends as α → ∞ (Chizat 2025). With δZ_k(s) the change of a weight after k steps,
dh/ds = E[∂φ/∂Z(h, Z_0) δZ_k(s)], and gradient descent makes δZ_k a sum over past steps of
∂φ/∂Zᵀ b. Averaged over the initial law only a kernel is left,

    dh/ds = −η f Σ_{k' < k} Σ_i k(h, h_{k',i}(s)) b_{k',i}(s),

k the tangent kernel of one block at two embeddings (`theory.deep_limits`), which is known: no
sampling, and no α. Linear in the weights but not in h; `tangent` is its linearisation in h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from widthlab.errors import WidthlabError
from widthlab.meanode.collocation import Collocation
from widthlab.meanode.network import ResidualNetwork, learning_rates, recorded_steps
from widthlab.meanode.problems import Problem
from widthlab.meanode.records import limit_dataset

TERMS = (32, 64, 128, 256, 512)
"""Odd Hermite coefficients that are kept of tanh: the first of these numbers that is enough."""
TAIL = 1e-8
"""Bound on m·c_m² of the last of them; the last number is enough for deviations of about 8."""


def solve_lazy(
    network: ResidualNetwork,
    problem: Problem,
    *,
    eta: float | tuple[float, float],
    steps: int,
    record: Sequence[int] | None = None,
    positions: Sequence[float] = (),
    order: int = 6,
    panels: int = 1,
) -> xr.Dataset:
    """Return the training of the lazy ODE in float64, in the layout of `limit.solve`.

    Exact up to its quadrature, so without errors. Raises WidthlabError for ReLU, whose kernel has a
    cusp where two embeddings meet, where the ODE is not solved, and where pre-activations are so
    large that the kernel of tanh does not converge.
    """
    if network.activation == "relu":
        raise WidthlabError(
            "no lazy ODE for relu: its tangent kernel has a cusp at equal embeddings, and the "
            "gradient by them does not exist; use tanh"
        )
    task = problem.to(torch.device("cpu"), torch.float64)
    rule = Collocation(order, panels)
    recorded = recorded_steps(steps, None if record is None else list(record))
    flow = _Flow(network, task, rule, *learning_rates(eta))
    rows = []
    for step in range(steps + 1):
        end, gradient = flow.forward()
        if step in recorded:
            values = {"loss": task.loss.evaluate(end)[0], "embedding": end}
            output = task.loss.outputs(end)
            if output is not None:
                values["output"] = output
            if positions:
                values["stream"] = rule.between(task.embedding, flow.slopes, list(positions))
            rows.append({name: value.numpy() for name, value in values.items()})
        if step < steps:
            flow.descend(gradient)
    stacked = {name: np.stack([row[name] for row in rows])[None] for name in rows[0]}
    return limit_dataset(stacked, recorded, list(positions), {"order": order, "panels": panels})


@dataclass
class _Flow:
    network: ResidualNetwork
    problem: Problem
    rule: Collocation
    eta_u: float
    eta_v: float
    h: Tensor = field(init=False)
    b: Tensor = field(init=False)
    slopes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.h = self.problem.embedding.expand(self.rule.count, -1, -1).clone()
        self.b = torch.zeros_like(self.h)
        self.slopes = torch.zeros_like(self.h)
        self._past: list[tuple[Tensor, Tensor]] = []

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return h(1) and the gradient of the loss by it."""
        self.h, self.slopes, end = self.rule.forward(self.problem.embedding, self._field, self.h)
        return end, self.problem.loss.evaluate(end)[1]

    def descend(self, gradient: Tensor) -> None:
        """Add h and b of this step to what the weights have learned."""
        self.b, _ = self.rule.backward(gradient, self._adjoint, self.b)
        self._past.append((self.h.clone(), self.b.clone()))

    def _field(self, h: Tensor, nodes: slice) -> Tensor:
        if not self._past:
            return torch.zeros_like(h)
        past, pulls = (torch.cat(parts, 1)[nodes] for parts in zip(*self._past, strict=True))
        kernel = block_kernel(self.network, h, past, self.eta_u, self.eta_v)
        return -self.network.limit_rate * (kernel @ pulls)

    def _adjoint(self, b: Tensor, nodes: slice) -> Tensor:
        """Return (∂(dh/ds)/∂h)ᵀ b, by autograd of the kernel."""
        with torch.enable_grad():
            h = self.h[nodes].detach().requires_grad_()
            product = (self._field(h, nodes) * b).sum()
            if not product.requires_grad:
                return torch.zeros_like(b)
            return torch.autograd.grad(product, h)[0]


def block_kernel(
    network: ResidualNetwork, h: Tensor, other: Tensor, eta_u: float, eta_v: float
) -> Tensor:
    """Return the tangent kernel of one block, times learning rates, at h and other embeddings.

    h (…, n, D) and other (…, N, D) give (…, n, N); differentiable in both.
    """
    gram = h @ other.mT
    deviation_u, deviation_v = network.deviations
    scale = (network.inner_scale * deviation_u) ** 2
    cross = scale * gram
    first, second = (scale * x.square().sum(-1) for x in (h, other))
    values, slopes = _pair_moments(network.activation, first, second, cross)
    if network.block == "one_layer":
        return eta_u * gram * slopes
    return eta_v * values + eta_u * (network.inner_scale * deviation_v) ** 2 * gram * slopes


def _pair_moments(
    activation: str, first: Tensor, second: Tensor, cross: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ⟨s s'⟩ and ⟨s' s'⟩ of Gaussian pairs by Hermite coefficients c_m of s(√K x).

    ⟨s(z) s(z')⟩ = Σ_m c_m c'_m ρ^m (Mehler), and ⟨s'(z) s'(z')⟩ is its derivative by the
    covariance (Price).
    """
    if activation == "linear":
        return cross, torch.ones_like(cross)
    deviations = (first.sqrt()[..., :, None], second.sqrt()[..., None, :])
    if not bool((first > 0).all() and (second > 0).all()):
        raise WidthlabError(
            "the lazy ODE needs embeddings and sigma_u that are not zero; use sigma_u > 0"
        )
    rho = cross / (deviations[0] * deviations[1])
    for terms in TERMS:
        x, basis, degrees = _hermite(terms)
        coefficients = [torch.tanh(k.sqrt()[..., None] * x) @ basis for k in (first, second)]
        tails = [(degrees[-8:] * c.detach()[..., -8:].square()).max() for c in coefficients]
        if max(tails) < TAIL:
            break
    else:
        raise WidthlabError(
            f"the kernel of tanh does not converge at pre-activations of deviation "
            f"{float(max(k.detach().max() for k in (first, second)) ** 0.5):.3g}; use a smaller "
            "sigma_u"
        )
    products = coefficients[0][..., :, None, :] * coefficients[1][..., None, :, :]
    powers = rho[..., None] ** (degrees - 1)
    values = (products * powers).sum(-1) * rho
    slopes = (products * powers * degrees).sum(-1) / (deviations[0] * deviations[1])
    return values, slopes


@lru_cache
def _hermite(terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes x, weights (nodes, terms) that give c_m = ⟨s(x) he_m(x)⟩, and odd degrees m.

    he_m are normalised Hermite polynomials; the trapezoidal rule is spectrally accurate here.
    """
    step = 0.04
    x = torch.arange(-12.0, 12.0 + step / 2, step, dtype=torch.float64)
    before, now = torch.zeros_like(x), torch.exp(-0.5 * x**2) * step / np.sqrt(2 * np.pi)
    columns = []
    for m in range(2 * terms):
        if m % 2:
            columns.append(now)
        before, now = now, (x * now - np.sqrt(m) * before) / np.sqrt(m + 1)
    return x, torch.stack(columns, 1), torch.arange(1, 2 * terms, 2, dtype=torch.float64)
