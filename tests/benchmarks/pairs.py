"""One line of the benchmark: two things measured in turns in one run, and their ratio.

Times are core seconds (user and system) of one thread, which other work on the machine disturbs
less than wall time; ratios are medians over turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Pair:
    """A long and a short measurement, with what is required of them."""

    what: str
    long: str
    short: str
    long_s: float
    short_s: float
    ratio: float
    """Long over short."""
    at_least: float | None = None
    at_most: float | None = None
    """Bounds on the ratio."""
    long_limit_s: float | None = None
    """Bound on the long time, in seconds."""
    peaks_mb: tuple[float, float] | None = None
    """Peak memory of both, in MB."""
    peak_limit_mb: float | None = None
    """Bound on the peak memory of the long one, in MB."""

    @property
    def required(self) -> str:
        """The requirement in words."""
        words = [
            f"{name} {bound:g}{unit}"
            for name, bound, unit in (
                ("ratio ≥", self.at_least, ""),
                ("ratio ≤", self.at_most, ""),
                ("≤", self.long_limit_s, " s"),
                ("≤", self.peak_limit_mb, " MB"),
            )
            if bound is not None
        ]
        return ", ".join(words)

    @property
    def met(self) -> bool:
        """Whether the requirement is met."""
        return (
            (self.at_least is None or self.ratio >= self.at_least)
            and (self.at_most is None or self.ratio <= self.at_most)
            and (self.long_limit_s is None or self.long_s <= self.long_limit_s)
            and (
                self.peak_limit_mb is None
                or self.peaks_mb is None
                or self.peaks_mb[0] <= self.peak_limit_mb
            )
        )


def core_seconds(function: Callable[[], object]) -> float:
    """Return the core seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def peak_mb() -> float:
    """Return the largest resident memory of this process so far, in MB (Linux)."""
    # Not ru_maxrss, which a child process takes over from its parent.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def in_turns(
    long: Callable[[], float], short: Callable[[], float], turns: int
) -> tuple[float, float, float]:
    """Return the median times of two measurements and the median ratio, taken in turns."""
    times = [(long(), short()) for _ in range(turns)]
    ratios = statistics.median(one / other for one, other in times)
    return (
        statistics.median(one for one, _ in times),
        statistics.median(other for _, other in times),
        ratios,
    )


def print_table(pairs: Iterable[Pair]) -> bool:
    """Print the measurements, each as it comes too; return whether all requirements are met."""
    table = Table(title="One thread, core seconds, medians of runs in turns", title_justify="left")
    table.add_column("measurement")
    table.add_column("long")
    table.add_column("s", justify="right")
    table.add_column("short")
    table.add_column("s", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("required")
    table.add_column("peak memory", justify="right")
    kept = True
    for pair in pairs:
        print(f"{pair.what}: ratio {pair.ratio:.1f}", file=sys.stderr, flush=True)
        kept &= pair.met
        colour = "green" if pair.met else "red"
        words = f"[{colour}]{pair.required}{'' if pair.met else ': missed'}[/]"
        memory = " and ".join(f"{peak:.0f}" for peak in pair.peaks_mb) if pair.peaks_mb else ""
        table.add_row(
            pair.what,
            pair.long,
            f"{pair.long_s:.3g}",
            pair.short,
            f"{pair.short_s:.3g}",
            f"{pair.ratio:.1f}",
            words if pair.required else "",
            f"{memory} MB" if memory else "",
        )
    console = Console()
    Console(width=max(console.width, 160)).print(table)
    return kept
