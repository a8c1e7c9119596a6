"""Batches: the pieces of work that one job does one after another.

Starting a process and importing torch takes longer than most cells, so small pieces of work
share a job. What is cached, retried and lost is the single piece still: a batch is no result,
and its name only tells Snakemake's jobs apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from widthlab.address import HASH_LENGTH, digest
from widthlab.costs import Cost, memory_mb, minutes

if TYPE_CHECKING:
    from widthlab.plan import Stage, Work
    from widthlab.study import JobResources

SECONDS = 30.0
"""Estimated time after which a batch of no given size is full: a few imports of torch."""


@dataclass(frozen=True)
class Batch:
    """The works of one job, in order."""

    name: str
    """The address of its only work, or the slug of the first and a hash of all."""
    stage: Stage
    works: tuple[Work, ...]

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The estimated costs of its works."""
        return tuple(work.cost for work in self.works)

    def memory_mb(self, given: JobResources) -> int:
        """Return the megabytes to ask a scheduler for."""
        return given.memory_mb or memory_mb(self.costs)

    def minutes(self, given: JobResources, on_gpu: bool = False) -> int:
        """Return the minutes to ask a scheduler for, on one core or with a GPU."""
        return given.minutes or minutes(self.costs, on_gpu)


def batches(works: Iterable[Work], most: int | None, *, on_gpu: bool = False) -> dict[str, Batch]:
    """Return works of one stage in batches by name.

    A batch has at most `most` works; where that is None it is full after half a minute, by
    estimate, on a core or on a GPU. Which works share a batch depends on the plan and not on what
    is finished, so that every process that reads the study sees the same batches.
    """
    found = (_batch(members) for members in _split(works, most, on_gpu))
    return {batch.name: batch for batch in found}


def _split(works: Iterable[Work], most: int | None, on_gpu: bool) -> Iterator[tuple[Work, ...]]:
    members: list[Work] = []
    seconds = 0.0
    for work in works:
        own = work.cost.gpu_seconds if on_gpu else work.cost.core_seconds
        seconds += own
        full = len(members) == most if most is not None else seconds > SECONDS
        # A sweep should not wait for the cells of another.
        apart = members and members[0].specification.get("experiment") != (
            work.specification.get("experiment")
        )
        if members and (full or apart):
            yield tuple(members)
            members, seconds = [], own
        members.append(work)
    if members:
        yield tuple(members)


def _batch(works: tuple[Work, ...]) -> Batch:
    first = works[0]
    if len(works) == 1:
        return Batch(first.address, first.stage, works)
    slug = f"{first.address.rpartition('-')[0]}-and-{len(works) - 1}-more"
    members = digest("\n".join(work.address for work in works))
    return Batch(f"{slug}-{members[:HASH_LENGTH]}", first.stage, works)


def receipt(results: Path, batch: Batch) -> Path:
    """Return the file that tells Snakemake that a job of this run has ended well.

    It says nothing of results, whose manifests do: where one is not finished although the
    receipt is there, the receipt is of another time, and is removed.
    """
    from widthlab.store.publish import finished

    path = results / "receipts" / batch.stage / batch.name
    # In this order: a receipt is written after the results.
    if path.exists() and not all(finished(results, work) for work in batch.works):
        with suppress(OSError):
            path.unlink()
    return path
