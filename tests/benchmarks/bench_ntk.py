"""How much faster the layerwise NTK is than contracting a full Jacobian, one thread, one run.

`python tests/benchmarks/bench_ntk.py` prints the table; `rows()` returns it. The slow way is that
of the torch.func tutorial on neural tangent kernels: vmap(jacrev) of the functional network, then
the contraction of the Jacobian of every parameter with itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from pairs import Pair, core_seconds, in_turns, peak_mb, print_table
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from widthlab import models, specs
from widthlab.statistics.ntk import empirical_ntk

Case = tuple[nn.Module, Tensor]


def jacobian_ntk(model: nn.Module, x: Tensor) -> Tensor:
    """Return the full NTK (n·C, n·C) by torch.func, in the precision of the model."""
    parameters = {key: p.detach() for key, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def output(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        result: Tensor = functional_call(model, (parameters, buffers), (sample[None],))
        return result[0]

    jacobians: dict[str, Tensor] = vmap(jacrev(output), (None, 0))(parameters, x)
    total: Tensor | None = None
    for jacobian in jacobians.values():
        rows = jacobian.flatten(2).flatten(0, 1)
        part = rows @ rows.T
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _mlp() -> Case:
    spec = specs.Network(architecture=specs.MLP(), width=512, depth=3)
    return models.build(spec, (64,), 10, seed=0), _normal(64, 64)


def _resnet20(samples: int, *shape: int) -> Case:
    spec = specs.Network(architecture=specs.ResNet20(), width=16, depth=20)
    return models.build(spec, shape, 10, seed=0), _normal(samples, *shape)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


CASES: dict[str, tuple[Callable[[], Case], float | None]] = {
    "ntk, mlp width 512 depth 3, 64 inputs, 10 outputs": (_mlp, 100.0),
    "ntk, resnet20 width 16, 16 images 3×32×32, 10 outputs": (
        lambda: _resnet20(16, 3, 32, 32),
        None,
    ),
    "ntk, resnet20 width 16, 64 images 1×8×8, 10 outputs": (lambda: _resnet20(64, 1, 8, 8), None),
}
"""Networks with their inputs, and the ratio that is required."""

WAYS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "layerwise": empirical_ntk,
    "torch.func": jacobian_ntk,
}


def rows() -> Iterator[Pair]:
    """Measure, and yield one row per network.

    Raises RuntimeError where the two kernels differ by more than single precision explains.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, (make, required) in CASES.items():
            model, x = make()
            model.eval()
            # Compared in the first calls, which also warm both up.
            kernel, expected = empirical_ntk(model, x), jacobian_ntk(model, x)
            error = float((kernel - expected).norm() / kernel.norm())
            if not error < 1e-4:
                raise RuntimeError(f"the two kernels of {name} differ by {error:.1e}")
            times = in_turns(
                partial(core_seconds, partial(jacobian_ntk, model, x)),
                partial(core_seconds, partial(empirical_ntk, model, x)),
                turns=3,
            )
            peaks = _peak(name, "torch.func"), _peak(name, "layerwise")
            yield Pair(name, "torch.func", "layerwise", *times, at_least=required, peaks_mb=peaks)
    finally:
        torch.set_num_threads(threads)


def _print_peak(case: str, way: str) -> None:
    """Print by how many MB one way raises the peak memory of this process."""
    torch.set_num_threads(1)
    model, x = CASES[case][0]()
    before = peak_mb()
    WAYS[way](model.eval(), x)
    print(f"{peak_mb() - before:.0f}")


def _peak(case: str, way: str) -> float:
    """Return what `_print_peak` prints in a process of its own."""
    command = [sys.executable, __file__, "--peak", case, way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        _print_peak(sys.argv[2], sys.argv[3])
    else:
        sys.exit(0 if print_table(rows()) else 1)
