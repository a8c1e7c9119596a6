"""What an alignment certificate costs, one thread, one run.

`python tests/benchmarks/bench_alignment.py` prints the table; `rows()` returns it. `certify` is all
of it, from batches to certificates with their noise controls, and is compared with one plain pass
over the same batches (forward, and backward to the parameters, as training does) and with the
direct way: one sequence at a time, its activation gradient by a hook, then mean and covariance as
they are written. The direct way is that of one insertion point, repeated for each; a row without a
requirement says what it costs where it catches all points in one pass.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from pairs import Pair, core_seconds, in_turns, peak_mb, print_table
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import widthlab
from widthlab import models, specs
from widthlab.certification.losses import BatchLosses
from widthlab.statistics.alignment.gradients import activation_gradients

SAMPLES = 512
AT_MOST = 1.3
"""Required of certify over one plain pass."""
FASTER = 10.0
"""Required against the direct way, at width 512 and 512 sequences."""
DIRECT_SEQUENCES = 16
"""Sequences that the direct way is timed on; its passes over all take as many times longer."""
FEW = 512
"""Samples of the smaller run that measures memory; the larger has eight times as many."""
GRAMS = 1.5
"""Growth of memory that is allowed, in Gram matrices of the larger run: itself, and to work with
its centred part."""

Case = tuple[nn.Module, list[tuple[Tensor, Tensor]], list[str]]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def images() -> Case:
    """ResNet-20 of width 16 with all its signals, and images in batches of 32."""
    spec = specs.Network(architecture=specs.ResNet20(), width=16, depth=20)
    model = models.build(spec, (3, 32, 32), 10, seed=0)
    x = torch.randn(SAMPLES, 3, 32, 32, generator=_generator())
    y = torch.randint(0, 10, (SAMPLES,), generator=_generator())
    return model.eval(), list(zip(x.split(32), y.split(32), strict=True)), list(model.signals)


def text(width: int = 256, length: int = 64, samples: int = 128) -> Case:
    """GPT-NeoX with its embedding and six blocks, and sequences in batches of 16."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=1024,
        hidden_size=width,
        num_hidden_layers=6,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=length,
        use_cache=False,
    )
    tokens = torch.randint(0, 1024, (samples, length + 1), generator=_generator())
    batches = list(zip(tokens[:, :-1].split(16), tokens[:, 1:].split(16), strict=True))
    points = ["gpt_neox.embed_in", *(f"gpt_neox.layers.{i}" for i in range(6))]
    return GPTNeoXForCausalLM(config).eval(), batches, points


def certify(case: Case) -> object:
    """Certify all points, with half of the batches for training and half for testing."""
    model, batches, points = case
    half = len(batches) // 2
    return widthlab.certify(model, points, "cross_entropy", batches[:half], batches[half:])


def plain(case: Case) -> None:
    """Run one forward and one backward pass over all batches."""
    model, batches, _ = case
    losses = BatchLosses("cross_entropy")
    for batch in batches:
        model.zero_grad()
        losses(model, batch).mean().backward()


def passes(case: Case, points: list[str], sequences: int) -> dict[str, list[Tensor]]:
    """Return the activation gradients of single sequences, summed over tokens, the direct way."""
    model, batches, _ = case
    found: dict[str, list[Tensor]] = {point: [] for point in points}

    def hook(point: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            output.register_hook(lambda g: found[point].append(g[0].sum(0)))

        return keep

    handles = [model.get_submodule(p).register_forward_hook(hook(p)) for p in points]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for i in range(sequences):
        model.zero_grad()
        outputs = model(x[i : i + 1]).logits
        F.cross_entropy(outputs[0], y[i]).backward()
    for handle in handles:
        handle.remove()
    return found


def check(case: Case) -> None:
    """Raise RuntimeError where the direct way and the library have different gradients."""
    model, batches, points = case
    expected = passes(case, points, 4)
    losses = BatchLosses("cross_entropy")
    with activation_gradients(model, points, losses, batches[:2]) as found:
        for point, rows in expected.items():
            difference = torch.stack(rows) - torch.tensor(found.rows[point][:4])
            error = float(difference.norm() / torch.stack(rows).norm())
            if not error < 1e-4:
                raise RuntimeError(f"gradients at {point} differ by {error:.1e}")


def moments(rows: Tensor) -> tuple[float, float, float]:
    """Return |μ|², μ'Σμ and tr Σ² with an explicit covariance."""
    mean = rows.mean(0)
    centred = rows - mean
    covariance = centred.T @ centred / (len(rows) - 1)
    return float(mean @ mean), float(mean @ covariance @ mean), float((covariance**2).sum())


def direct(case: Case, *, together: bool) -> float:
    """Return the core seconds of the direct way, for training and test sequences at all points."""
    _, batches, points = case
    runs = [points] if together else [[point] for point in points]
    scale = sum(len(x) for x, _ in batches) / DIRECT_SEQUENCES
    total = 0.0
    for run in runs:
        total += scale * core_seconds(partial(passes, case, run, DIRECT_SEQUENCES))
    rows = torch.randn(SAMPLES // 2, 512, dtype=torch.float64, generator=_generator())
    return total + core_seconds(lambda: [moments(rows) for _ in points for _ in range(2)])


def rows() -> Iterator[Pair]:
    """Measure, and yield what certificates cost against plain passes, memory, the direct way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, case in (
            (f"certify, resnet20 width 16, {SAMPLES} images 3×32×32", images()),
            ("certify, GPT-NeoX width 256, 6 blocks, 128 sequences of 64", text()),
        ):
            small = case[0], case[1][:4], case[2]
            plain(small)
            certify(small)
            times = in_turns(
                partial(core_seconds, partial(certify, case)),
                partial(core_seconds, partial(plain, case)),
                turns=3,
            )
            what = f"{name}, {len(case[2])} points"
            yield Pair(what, "certify", "forward, backward", *times, at_most=AT_MOST)
        yield _memory()
        case = text(512, 16, SAMPLES)
        check(case)
        fast = partial(core_seconds, partial(certify, case))
        name = f"GPT-NeoX width 512, 6 blocks, {SAMPLES} sequences of 16, {len(case[2])} points"
        for together, required in ((False, FASTER), (True, None)):
            slow = partial(direct, case, together=together)
            way = "direct, all points in a pass" if together else "direct, point by point"
            yield Pair(
                name,
                way,
                "certify",
                *in_turns(slow, fast, turns=1 if together else 2),
                at_least=required,
            )
    finally:
        torch.set_num_threads(threads)


def _memory() -> Pair:
    """Compare n samples with eight times as many of a wide network."""
    (few_s, few_mb), (many_s, many_mb) = _peak(FEW), _peak(8 * FEW)
    gram = (8 * FEW) ** 2 * 8 / 2**20
    return Pair(
        f"memory of certify, width 4096, 2 points; Gram matrix of {8 * FEW:,}: {gram:.0f} MB",
        f"{8 * FEW:,} samples",
        f"{FEW} samples",
        many_s,
        few_s,
        many_s / few_s,
        peaks_mb=(many_mb, few_mb),
        peak_limit_mb=few_mb + GRAMS * gram,
    )


def _wide(samples: int) -> Case:
    """A wide perceptron, whose batches are made when they are asked for."""
    model = nn.Sequential(nn.Linear(16, 4096), nn.Tanh(), nn.Linear(4096, 4))
    x = torch.randn(samples, 16, generator=_generator())
    y = torch.randint(0, 4, (samples,), generator=_generator())
    return model, list(zip(x.split(32), y.split(32), strict=True)), ["0", "1"]


def _print_peak(samples: int) -> None:
    """Print the core seconds of certify, and by how many MB it raises the peak memory."""
    torch.set_num_threads(1)
    certify(_wide(128))
    case, before = _wide(samples), peak_mb()
    seconds = core_seconds(partial(certify, case))
    print(f"{seconds:.4f} {peak_mb() - before:.0f}")


def _peak(samples: int) -> tuple[float, float]:
    """Return what `_print_peak` prints in a process of its own."""
    command = [sys.executable, __file__, "--peak", str(samples)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, megabytes = map(float, out.split())
    return seconds, megabytes


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        _print_peak(int(sys.argv[2]))
    else:
        sys.exit(0 if print_table(rows()) else 1)
