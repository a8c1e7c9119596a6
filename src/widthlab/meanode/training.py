"""Training of finite residual networks at the limit's learning rates, many seeds at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from widthlab.errors import WidthlabError
from widthlab.meanode.companions import Companion, Trained, companion
from widthlab.meanode.engine import Stack
from widthlab.meanode.layers import LayerChanges
from widthlab.meanode.network import ResidualNetwork, learning_rates, recorded_steps
from widthlab.meanode.problems import Problem
from widthlab.meanode.records import Record
from widthlab.meanode.weights import draw
from widthlab.statistics.draws import Seed

MEMORY = 2**28
"""Bytes of weights, embeddings and activations of the seeds that run together."""


def train(
    network: ResidualNetwork,
    problem: Problem,
    *,
    eta: float | tuple[float, float],
    steps: int,
    seeds: int | Sequence[int],
    seed: Seed = 0,
    record: Sequence[int] | None = None,
    positions: Sequence[float] = (),
    layers: bool = False,
    companions: Sequence[Companion] = (),
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    memory: int = MEMORY,
) -> xr.Dataset:
    """Train networks by full-batch gradient descent, and measure them along training.

    Raw learning rates are η·L·M·D/α² for two_layer blocks and η·L·M/α² for others; a pair η is for
    inner and outer weights. `seeds` are a number of seeds, or their numbers; seed r of the root
    `seed` is the same network in any batch. Measured before step 0 and after the steps in `record`
    (all, if left out):

    - `loss` (seed, step), `embedding` (seed, step, input, coordinate), `output` with a readout;
    - with `positions` s in [0, 1]: `stream` (seed, step, position, input, coordinate), h at layer
      round(s·L), whose exact position is the coordinate;
    - with `layers`: the variables of `LayerChanges`, and `backward_gain` (seed, step), the rms of
      the gradient by h_0 over that by h_L;
    - with `companions` "tangent", "lazy" or both: `embedding_tangent`, `loss_tangent`,
      `embedding_lazy`, `loss_lazy`, of the same networks with all of them, or every block,
      linearised about their initial weights, trained at the same rates (see `companions`).

    `diverged` (seed) is the first step, recorded or not, whose loss or embedding is not finite, −1
    where there is none: such a seed is NaN from there on and touches no other. Raises WidthlabError
    for values that make no run. Statistics are in float64; seeds run in batches of `memory` bytes.
    """
    numbers = _numbers(seeds)
    eta_u, eta_v = learning_rates(eta)
    run = _Run(
        network,
        problem.to(torch.device(device), dtype),
        eta_u * network.raw_rate,
        eta_v * network.raw_rate,
        steps,
        recorded_steps(steps, None if record is None else list(record)),
        _layer_numbers(positions, network.depth),
        layers,
        tuple(companions),
    )
    run.check()
    results = Record(run.recorded, numbers)
    most = max(1, int(memory // run.bytes_per_seed()))
    size = math.ceil(len(numbers) / math.ceil(len(numbers) / most))  # batches of one size
    for first in range(0, len(numbers), size):
        batch = numbers[first : first + size]
        run(results, first, *draw(network, batch, seed, torch.device(device), dtype))
    return results.dataset(
        positions=[layer / network.depth for layer in run.layer_numbers],
        attributes={"dtype": str(dtype).removeprefix("torch."), "device": str(device)},
    )


@dataclass(frozen=True)
class _Run:
    """One training run, for any batch of seeds."""

    network: ResidualNetwork
    problem: Problem
    rate_u: float
    rate_v: float
    steps: int
    recorded: list[int]
    layer_numbers: list[int]
    layers: bool
    companions: tuple[Companion, ...]

    def check(self) -> None:
        """Raise WidthlabError where network and problem do not fit."""
        unknown = set(self.companions) - set(get_args(Companion))
        if unknown:
            raise WidthlabError(
                f"unknown companion {sorted(unknown)[0]!r}; choose among "
                f"{', '.join(get_args(Companion))}"
            )
        width = self.problem.embedding.shape[1]
        if width != self.network.width:
            raise WidthlabError(
                f"the network has width {self.network.width} and the embeddings have {width} "
                "coordinates; give both the same width D"
            )

    def bytes_per_seed(self) -> int:
        """Return the bytes that one seed needs at once."""
        net, inputs = self.network, len(self.problem.embedding)
        weights = net.depth * net.units * net.width * (1 if net.block == "one_layer" else 2)
        pass_ = net.depth * inputs * (net.width + net.units)
        more = len(self.companions)
        numbers = weights + pass_ + more * (2 * weights + 2 * pass_)
        numbers += self.layers * (weights + 3 * net.depth * inputs * net.units)
        return numbers * self.problem.embedding.element_size()

    def __call__(self, results: Record, first: int, u: Tensor, v: Tensor | None) -> None:
        """Train one batch of seeds, the first of which is row `first` of the results."""
        others = {kind: self._companion(kind, u, v) for kind in self.companions}
        stack = Stack(self.network, u, v, self.problem.embedding)
        h = stack.forward()
        changes = LayerChanges(stack) if self.layers else None
        for step in range(self.steps + 1):
            if step > 0:
                h = stack.forward()
            loss, gradient = self.problem.loss.evaluate(h)
            results.living(first, step, loss, h)
            wanted = step in self.recorded
            if wanted:
                self._measure(results, first, step, stack, loss)
                if changes is not None:
                    results.add(first, step, **changes.measure())
            for kind, other in others.items():
                self._companion_step(results, first, step, kind, other, wanted)
            if step < self.steps or (wanted and self.layers):
                top = gradient.square().mean((-2, -1))
                # The last pass backward is for the gain alone.
                last = step == self.steps
                bottom = stack.descend(
                    gradient, 0.0 if last else self.rate_u, 0.0 if last else self.rate_v
                )
                if wanted and self.layers:
                    gain = (bottom.square().mean((-2, -1)) / top).sqrt()
                    results.add(first, step, backward_gain=gain)

    def _measure(self, results: Record, first: int, step: int, stack: Stack, loss: Tensor) -> None:
        h = stack.h[-1]
        results.add(first, step, loss=loss, embedding=h)
        output = self.problem.loss.outputs(h)
        if output is not None:
            results.add(first, step, output=output)
        if self.layer_numbers:
            stream = stack.h[self.layer_numbers].transpose(0, 1)
            results.add(first, step, stream=stream)

    def _companion(self, kind: Companion, u: Tensor, v: Tensor | None) -> Trained:
        copy = None if v is None else v.clone()
        return companion(kind, Stack(self.network, u.clone(), copy, self.problem.embedding))

    def _companion_step(
        self, results: Record, first: int, step: int, kind: str, other: Trained, wanted: bool
    ) -> None:
        h = other.forward()
        loss, gradient = self.problem.loss.evaluate(h)
        if wanted:
            results.add(first, step, **{f"loss_{kind}": loss, f"embedding_{kind}": h})
        if step < self.steps:
            other.descend(gradient, self.rate_u, self.rate_v)


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    """Return the numbers of the seeds, checked."""
    numbers = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(seeds)
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise WidthlabError(
            f"seeds must be a number of at least 1, or different numbers from 0 on, not {seeds}"
        )
    return numbers


def _layer_numbers(positions: Sequence[float], depth: int) -> list[int]:
    """Return the layers nearest to positions in [0, 1], each once."""
    if any(not 0 <= position <= 1 for position in positions):
        raise WidthlabError(f"positions must lie between 0 and 1, not {list(positions)}")
    return sorted({round(position * depth) for position in positions})
