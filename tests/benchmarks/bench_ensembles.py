"""How much faster random networks are without their weights, one thread, one run.

`python tests/benchmarks/bench_ensembles.py` prints the table; `rows()` returns it. Both engines
measure the same of the same networks: signals, gradients and tangent kernel of three inputs in
tanh perceptrons. Times are for one draw.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from pairs import Pair, core_seconds, in_turns, peak_mb, print_table

from widthlab import ensembles, models, specs
from widthlab.statistics.ntk import empirical_ntk
from widthlab.statistics.over_draws import over_draws

INPUTS, DIMENSION = 3, 64
DEPTH = 500
FASTER = 100.0
"""What is required of the ratio at width 1,024 and depth 500."""
MEMORY_LIMIT_MB = 1024.0
"""Of the whole process at width 16,384 and depth 500."""


def _inputs() -> torch.Tensor:
    x = torch.randn(INPUTS, DIMENSION, generator=torch.Generator().manual_seed(0))
    return x * (DIMENSION**0.5 / x.norm(dim=1, keepdim=True))


def _network(width: int, depth: int) -> specs.Network:
    return specs.Network(architecture=specs.MLP(activation="tanh"), width=width, depth=depth)


def weightfree(width: int, depth: int, draws: int) -> float:
    """Return core seconds of one draw, of several that run together."""
    run = partial(
        ensembles.sample,
        _network(width, depth),
        _inputs(),
        draws,
        seed=0,
        measure=["signals", "gradients", "ntk"],
    )
    return core_seconds(run) / draws


def dense(width: int, depth: int, draws: int) -> float:
    """Return core seconds of one draw, without building the network first."""
    model = models.build(_network(width, depth), (DIMENSION,), outputs=1, seed=0)
    run = partial(
        over_draws,
        model,
        _inputs(),
        draws,
        seed=0,
        measure=["signals", "gradients"],
        kernel=empirical_ntk,
    )
    return core_seconds(run) / draws


def rows() -> Iterator[Pair]:
    """Measure, and yield the comparison of engines and the growth of each with width."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        weightfree(64, 4, 1)  # loads what is loaded on first use
        fast = partial(weightfree, 1024, DEPTH, 40)
        times = in_turns(partial(dense, 1024, DEPTH, 1), fast, turns=3)
        name = f"random networks, tanh, width 1024, depth {DEPTH}, {INPUTS} inputs"
        peaks = _peak("dense", 1024, 1), _peak("weightfree", 1024, 40)
        yield Pair(name, "dense", "weightfree", *times, at_least=FASTER, peaks_mb=peaks)
        wide = partial(weightfree, 16384, DEPTH, 1)
        narrow = partial(weightfree, 4096, DEPTH, 4)
        peaks = _peak("weightfree", 16384, 1), _peak("weightfree", 4096, 4)
        yield _growth(
            "weightfree", (4096, narrow), (16384, wide), peaks, peak_limit_mb=MEMORY_LIMIT_MB
        )
        yield _growth(
            "dense", (512, partial(dense, 512, 100, 2)), (2048, partial(dense, 2048, 100, 1))
        )
    finally:
        torch.set_num_threads(threads)


def _growth(
    engine: str,
    small: tuple[int, Callable[[], float]],
    large: tuple[int, Callable[[], float]],
    peaks: tuple[float, float] | None = None,
    peak_limit_mb: float | None = None,
) -> Pair:
    """Compare one engine at two widths, and say the exponent of its time in width."""
    times = in_turns(large[1], small[1], turns=3)
    exponent = math.log(times[2]) / math.log(large[0] / small[0])
    return Pair(
        f"{engine}: time of a draw grows as width^{exponent:.2f}",
        f"width {large[0]}",
        f"width {small[0]}",
        *times,
        peaks_mb=peaks,
        peak_limit_mb=peak_limit_mb,
    )


def _peak(engine: str, width: int, draws: int) -> float:
    """Return the peak memory in MB of a process that draws once."""
    command = [sys.executable, __file__, "--peak", engine, str(width), str(draws)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        torch.set_num_threads(1)
        {"dense": dense, "weightfree": weightfree}[sys.argv[2]](
            int(sys.argv[3]), DEPTH, int(sys.argv[4])
        )
        print(f"{peak_mb():.0f}")
    else:
        sys.exit(0 if print_table(rows()) else 1)
