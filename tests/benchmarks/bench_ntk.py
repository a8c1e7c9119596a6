"""How much faster the layerwise NTK is than contracting a full Jacobian, one thread, one run.

`python tests/benchmarks/bench_ntk.py` prints the table; `rows()` returns it. The slow way is that
of the torch.func tutorial on neural tangent kernels: vmap(jacrev) of the functional network, then
the contraction of the Jacobian of every parameter with itself.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
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


def _best(function: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    """Return the smallest of some wall times, in seconds, and the result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


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


def rows() -> list[dict[str, Any]]:
    """Return one row per network: name, fast_s, slow_s, ratio, and the ratio required or None.

    Raises RuntimeError where the two kernels differ by more than single precision explains.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    try:
        for name, (make, required) in CASES.items():
            model, x = make()
            model.eval()
            fast, kernel = _best(partial(empirical_ntk, model, x), 5)
            slow, expected = _best(partial(jacobian_ntk, model, x), 1)
            error = float((kernel - expected).norm() / kernel.norm())
            if not error < 1e-4:
                raise RuntimeError(f"the two kernels of {name} differ by {error:.1e}")
            ratio = slow / fast
            found.append(
                {"name": name, "fast_s": fast, "slow_s": slow, "ratio": ratio, "required": required}
            )
    finally:
        torch.set_num_threads(threads)
    return found


def _peak_so_far() -> int:
    """Return the largest resident memory of this process so far, in kB (Linux)."""
    # Not ru_maxrss, which a child process takes over from its parent.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def _print_peak(case: str, way: str) -> None:
    """Print by how many MB one way raises the peak memory of this process."""
    torch.set_num_threads(1)
    model, x = CASES[case][0]()
    before = _peak_so_far()
    WAYS[way](model.eval(), x)
    print(f"{(_peak_so_far() - before) / 1024:.0f}")


def _peak(case: str, way: str) -> str:
    """Return what `_print_peak` prints in a process of its own."""
    command = [sys.executable, __file__, "--peak", case, way]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Print the table, and the memory that each way needs."""
    if sys.argv[1:2] == ["--peak"]:
        _print_peak(sys.argv[2], sys.argv[3])
        return
    for row in rows():
        required = f", required {row['required']:.0f}" if row["required"] else ""
        peaks = " and ".join(f"{_peak(row['name'], way)} MB" for way in WAYS)
        print(
            f"{row['name']}: {row['fast_s']:.3f} s, torch.func {row['slow_s']:.3f} s, "
            f"ratio {row['ratio']:.1f}{required}; peak memory {peaks}"
        )


if __name__ == "__main__":
    main()
