"""What `widthlab.certify` returns: certificates by insertion point, a table, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from widthlab.scaling import Interval
from widthlab.statistics.alignment.certificates import Certificate
from widthlab.statistics.alignment.pooling import Pooling

if TYPE_CHECKING:
    import xarray as xr

NAMED = 6
"""Insertion points of one outcome that a sentence names; the others are counted."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Certification:
    """The certificates of the insertion points of one network, in the network's order.

    `certification["layer1"]` is the `Certificate` of one point, with all its numbers; printing the
    whole gives a table by layer and the decision.
    """

    certificates: Mapping[str, Certificate]
    poolings: Mapping[str, Pooling]
    target: float
    """The largest tolerable Pr(μ_M·g_K ≤ 0)."""
    level: float
    simultaneous: bool
    """Whether `level` is that of all points together, or of each."""
    mismatches: Mapping[str, xr.Dataset]
    """Counted mismatches by budget, at each point; empty where they were not asked for."""
    repeated: int = 0
    """Test samples whose gradient is that of a training sample at all points, to rounding."""

    def __getitem__(self, point: str) -> Certificate:
        """Return the certificate of one insertion point."""
        return self.certificates[point]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the insertion points."""
        return iter(self.certificates)

    def __len__(self) -> int:
        """Return the number of insertion points."""
        return len(self.certificates)

    @property
    def budgets(self) -> tuple[tuple[int, int], ...]:
        """The pairs (M, K) that were asked for."""
        return next(iter(self.certificates.values())).budgets

    @property
    def samples(self) -> tuple[int, int]:
        """Training and test samples that were measured."""
        return next(iter(self.certificates.values())).samples

    @property
    def error_rate(self) -> float:
        """Error rate of each limit at each point: of noise, this share has a bound at most."""
        return (1 - next(iter(self.certificates.values())).level) / 2

    @property
    def certified(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """The budgets whose upper limit of Pr(μ_M·g_K ≤ 0) meets the target, by point.

        Points without one have an empty tuple.
        """
        return {
            name: tuple(
                budget
                for budget, met in zip(found.budgets, found.meets(self.target), strict=True)
                if met
            )
            for name, found in self.certificates.items()
        }

    def needed(self, target: float | None = None) -> dict[str, int | None]:
        """Return the smallest M = K whose upper limit is at most `target`, by point.

        None where there is no bound, so that no number can be told. `target` left out is that
        of the certification.
        """
        bound = self.target if target is None else target
        return {name: found.needed(bound) for name, found in self.certificates.items()}

    @property
    def decision(self) -> str:
        """One sentence: what is certified where, and how many samples the target needs."""
        needed = self.needed()
        met: dict[tuple[tuple[int, int], ...], list[str]] = {}
        more, none = [], []
        for name, budgets in self.certified.items():
            enough = f"{name} (M = K = {needed[name]:,} is enough)" if needed[name] else name
            if budgets:
                met.setdefault(budgets, []).append(enough)
            elif needed[name] is not None:
                more.append(f"{name} (M = K = {needed[name]:,})")
            else:
                none.append(name)
        where = [
            f"at (M, K) = {_listed([f'({m}, {k})' for m, k in budgets])} for {_named(names)}"
            for budgets, names in met.items()
        ]
        parts = [
            f"that a step harms the held-out loss with a probability of at most {self.target:g} is "
            f"certified {', and '.join(where) if met else 'at none of these (M, K)'}"
        ]
        if more:
            parts.append(f"more samples would do for {_named(more)}")
        if none:
            parts.append(f"there is no bound at any (M, K) for {_named(none)}")
        sentence = "; ".join(parts)
        return f"{sentence[0].upper()}{sentence[1:]}."

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the rows of the table by insertion point, as text."""
        last = self.budgets[-1]
        pooled = len({pooling.how for pooling in self.poolings.values()}) > 1
        headings = [
            "point",
            *(["pooling"] if pooled else []),
            "signal",
            "d_align",
            *(f"B({m}, {k}) ≤" for m, k in self.budgets),
            f"M = K for {self.target:g}",
            "noise bounded",
            f"plug-in B{last} (noise)",
            "verdict",
        ]
        certified, needed = self.certified, self.needed()
        rows = [
            [
                name,
                *([self.poolings[name].how] if pooled else []),
                _interval(found.signal),
                _interval(found.d_align),
                *(f"{limit:.3g}" for limit in found.b_exact_limit),
                "–" if needed[name] is None else f"{needed[name]:,}",
                f"{max(control.certified for control in found.controls):.1%}",
                f"{found.plug_in_b_exact[-1]:.2g} ({found.controls[0].plug_in_b_exact[-1]:.2g})",
                "certified"
                if certified[name]
                else "more samples"
                if found.has_bound
                else "no bound",
            ]
            for name, found in self.certificates.items()
        ]
        return headings, rows

    @property
    def title(self) -> str:
        """What was measured, in one line."""
        n1, n2 = self.samples
        laws = next(iter(self.certificates.values())).laws
        hows = sorted({pooling.how for pooling in self.poolings.values()})
        among = " of all points together" if self.simultaneous and len(self) > 1 else ""
        return (
            f"Alignment certificate from {n1:,} training and {n2:,} test samples ({laws} laws, "
            f"pooling {' and '.join(hows)}), intervals of {100 * self.level:g} %{among}"
        )

    @property
    def reasons(self) -> list[str]:
        """Why there is no bound below 1, one line for each such point."""
        return [
            f"{name}: {found.reason}" for name, found in self.certificates.items() if found.reason
        ]

    @property
    def cautions(self) -> list[str]:
        """What to bear in mind, one sentence each: chance among many points, repeated samples."""
        found = []
        if len(self) > 1 and not self.simultaneous:
            found.append(
                f"Each point errs at a rate of {100 * self.error_rate:.2g} %: without a signal "
                f"anywhere, {len(self) * self.error_rate:.2g} of these {len(self)} would have a "
                "bound on average; `simultaneous` allows for their number."
            )
        if self.repeated:
            found.append(
                f"{self.repeated} of {self.samples[1]} test samples have the gradients of a "
                "training sample: if they are the same samples, leave them out, for limits are too "
                "small where samples are not independent."
            )
        return found

    def to_dataset(self) -> xr.Dataset:
        """Return all numbers as one dataset, insertion points × budgets; see `dataset`."""
        from widthlab.certification.dataset import dataset_of

        return dataset_of(self)

    def __repr__(self) -> str:
        """Return the table by layer and the decision."""
        headings, rows = self.table()
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (headings, *rows)
        ]
        return "\n".join([self.title, *lines, *self.reasons, *self.cautions, self.decision])


def _interval(interval: Interval) -> str:
    if math.isnan(interval.value):
        return "–"
    return f"{interval.value:.2g} [{interval.low:.2g}, {interval.high:.2g}]"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _named(words: Sequence[str]) -> str:
    """List the first few, and count the others."""
    if len(words) <= NAMED:
        return _listed(words)
    return _listed([*words[: NAMED - 1], f"{len(words) - NAMED + 1} more"])
