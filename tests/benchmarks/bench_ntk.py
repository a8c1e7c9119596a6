"""How much faster the layerwise NTK is than contracting a full Jacobian, one thread, one run.

`python tests/benchmarks/bench_ntk.py` prints the table; `rows()` returns it. The slow way is that
of the torch.func tutorial on neural tangent kernels: vmap(jacrev) of the functional network, then
the contraction of the Jacobian of every parameter with itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from widthlab import models, specs
from widthlab.statistics.ntk import empirical_ntk


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


def _compare(name: str, model: nn.Module, x: Tensor, required: float | None) -> dict[str, Any]:
    model.eval()
    fast, kernel = _best(lambda: empirical_ntk(model, x), 5)
    slow, expected = _best(lambda: jacobian_ntk(model, x), 1)
    error = float((kernel - expected).norm() / kernel.norm())
    if error > 1e-4:
        raise RuntimeError(f"the two kernels of {name} differ by {error:.1e}")
    return {
        "name": name,
        "fast_s": fast,
        "slow_s": slow,
        "ratio": slow / fast,
        "required": required,
    }


def rows() -> list[dict[str, Any]]:
    """Return one row per network: name, fast_s, slow_s, ratio, and the ratio required or None."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        generator = torch.Generator().manual_seed(0)
        mlp = models.build(
            specs.Network(architecture=specs.MLP(), width=512, depth=3), (64,), 10, seed=0
        )
        resnet = models.build(
            specs.Network(architecture=specs.ResNet20(), width=16, depth=20),
            (3, 32, 32),
            10,
            seed=0,
        )
        digits = models.build(
            specs.Network(architecture=specs.ResNet20(), width=16, depth=20), (1, 8, 8), 10, seed=0
        )
        return [
            _compare(
                "ntk, mlp width 512 depth 3, 64 inputs, 10 outputs",
                mlp,
                torch.randn(64, 64, generator=generator),
                100.0,
            ),
            _compare(
                "ntk, resnet20 width 16, 16 images 3×32×32, 10 outputs",
                resnet,
                torch.randn(16, 3, 32, 32, generator=generator),
                None,
            ),
            _compare(
                "ntk, resnet20 width 16, 64 images 1×8×8, 10 outputs",
                digits,
                torch.randn(64, 1, 8, 8, generator=generator),
                None,
            ),
        ]
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """Print the table."""
    for row in rows():
        required = f", required {row['required']:.0f}" if row["required"] else ""
        print(
            f"{row['name']}: {row['fast_s']:.3f} s, torch.func {row['slow_s']:.3f} s, "
            f"ratio {row['ratio']:.1f}{required}"
        )


if __name__ == "__main__":
    main()
