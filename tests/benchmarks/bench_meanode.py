"""How much faster hand-written steps of deep residual networks are than autograd, one thread.

`python tests/benchmarks/bench_meanode.py` prints the table; `rows()` returns it. The plain way is
the loop over layers that one would write, with a leaf for every layer's weights and one fused
update of all of them; the second comparison is with the same loop in batched products that add and
scale as they go, the best that was found with autograd.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from pairs import Pair, core_seconds, in_turns, peak_mb, print_table
from torch import Tensor

from widthlab import meanode
from widthlab.meanode.engine import Stack
from widthlab.meanode.weights import draw

WIDTH, HIDDEN, SEEDS, INPUTS = 16, 4, 32, 8
DEPTH = 1024
STEPS = 3
ETA = 0.1
FASTER = 3.0
"""What is required of the ratio at depth 1,024, D = 16, M = 4 and 32 seeds."""
MOST_GROWTH = 8.0 * 1.1
"""What is allowed of memory at eight times the depth: linear, with a tenth for noise."""


def problem() -> meanode.Problem:
    """Return a small regression task."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(INPUTS, 10, generator=generator)
    y = torch.randn(INPUTS, 1, generator=generator)
    loss = meanode.ReadoutLoss(meanode.readout(WIDTH, 1, seed=1), y.double())
    return meanode.Problem(meanode.embed(x, WIDTH, seed=2), loss).to(
        torch.device("cpu"), torch.float32
    )


def _weights(depth: int) -> tuple[meanode.ResidualNetwork, Tensor, Tensor]:
    network = meanode.ResidualNetwork(depth, HIDDEN, WIDTH)
    u, v = draw(network, range(SEEDS), 0, torch.device("cpu"), torch.float32)
    assert v is not None
    return network, u, v


def by_hand(depth: int) -> Callable[[], Tensor]:
    """Return a function that takes STEPS steps and returns the embeddings before the last."""
    network, u, v = _weights(depth)
    task = problem()
    stack = Stack(network, u, v, task.embedding)
    rate = ETA * network.raw_rate

    def steps() -> Tensor:
        for _ in range(STEPS):
            h = stack.forward()
            stack.descend(task.loss.evaluate(h)[1], rate, rate)
        return h

    return steps


def by_autograd(depth: int, *, fused: bool = False) -> Callable[[], Tensor]:
    """Return the same by autograd."""
    network, u, v = _weights(depth)
    task = problem()
    leaves = [w.clone().requires_grad_() for w in (*u, *v)]
    inner, outer = leaves[:depth], leaves[depth:]
    rate = ETA * network.raw_rate

    def steps() -> Tensor:
        for _ in range(STEPS):
            h = task.embedding.expand(SEEDS, -1, -1)
            for u_l, v_l in zip(inner, outer, strict=True):
                if fused:
                    a = torch.tanh(torch.bmm(h, u_l.mT) / WIDTH)
                    h = torch.baddbmm(h, a, v_l, alpha=network.branch_scale)
                else:
                    h = h + torch.tanh(h @ u_l.mT / WIDTH) @ v_l * network.branch_scale
            gradients = torch.autograd.grad(task.loss.evaluate(h)[0].sum(), leaves)
            with torch.no_grad():
                torch._foreach_add_(leaves, gradients, alpha=-rate)
        return h.detach()

    return steps


def rows() -> Iterator[Pair]:
    """Measure, and yield the comparison with autograd and the growth of memory with depth.

    Raises RuntimeError where the two ways end up in different places.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for slow, required in (("autograd", FASTER), ("fused autograd", None)):
            plain, fast = WAYS[slow](DEPTH), by_hand(DEPTH)
            first, second = plain(), fast()
            error = float((first - second).norm() / second.norm())
            if not error < 1e-4:
                raise RuntimeError(f"the embeddings of the two ways differ by {error:.1e}")
            times = in_turns(partial(core_seconds, plain), partial(core_seconds, fast), turns=7)
            peaks = _peak(slow, DEPTH), _peak("by hand", DEPTH)
            name = f"{STEPS} steps, depth {DEPTH}, D = {WIDTH}, M = {HIDDEN}, {SEEDS} seeds"
            yield Pair(name, slow, "by hand", *times, at_least=required, peaks_mb=peaks)
        yield _growth(1024, 8192)
    finally:
        torch.set_num_threads(threads)


def _growth(small: int, large: int) -> Pair:
    """Compare two depths, and say the exponent of memory in depth; the ratio is that of memory."""
    times = (core_seconds(by_hand(large)), core_seconds(by_hand(small)))
    peaks = _peak("by hand", large), _peak("by hand", small)
    ratio = peaks[0] / peaks[1]
    exponent = math.log(ratio) / math.log(large / small)
    return Pair(
        f"steps by hand: memory grows as depth^{exponent:.2f} (ratio of peaks)",
        f"depth {large}",
        f"depth {small}",
        *times,
        ratio,
        at_most=MOST_GROWTH,
        peaks_mb=peaks,
    )


WAYS: dict[str, Callable[[int], Callable[[], Tensor]]] = {
    "autograd": by_autograd,
    "fused autograd": partial(by_autograd, fused=True),
    "by hand": by_hand,
}


def _print_peak(way: str, depth: int) -> None:
    """Print by how many MB some steps raise the peak memory of this process."""
    torch.set_num_threads(1)
    WAYS[way](8)()  # loads what is loaded on first use
    before = peak_mb()
    WAYS[way](depth)()
    print(f"{peak_mb() - before:.2f}")


def _peak(way: str, depth: int) -> float:
    """Return what `_print_peak` prints in a process of its own."""
    command = [sys.executable, __file__, "--peak", way, str(depth)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        _print_peak(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(0 if print_table(rows()) else 1)
