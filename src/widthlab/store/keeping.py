"""What to keep of a folder of results, and letting go of the rest.

Kept is what the current study, another that ran here lately, an archived version or a running
job needs, what is young, and every input of a result that is kept. The rest can be deleted: an
ordinary run makes it again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from widthlab.plan import FOLDERS, Plan
from widthlab.store import inventory, register
from widthlab.store.failure import FAILURE
from widthlab.store.inventory import DAMAGED, TEMPORARY, Entry, Size, children
from widthlab.store.manifest import MANIFEST, read

Kind = Literal[
    "results", "unfinished results", "training states", "damaged copies", "leftovers", "receipts"
]

RECEIPTS = "receipts"
SCRATCH = "scratch"
DAY = 86400.0


@dataclass(frozen=True)
class Item:
    """Something that can be deleted as a whole."""

    kind: Kind
    path: Path
    size: Size
    touched: float
    """File time, in seconds since 1970: of the manifest, or the latest in it."""
    home: Path | None = None
    """The result's folder whose lease guards it."""


@dataclass(frozen=True)
class Needs:
    """Addresses that must stay, by who needs them."""

    current: Collection[str]
    archived: Collection[str]
    inputs: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Inputs of planned work, by address: a running job has no manifest yet that names them."""
    receipts: Collection[str] = ()
    """Names of the receipts by which Snakemake knows what these studies need not run."""

    @classmethod
    def of(
        cls, plan: Plan, archived: Iterable[str] = (), others: Iterable[register.Entry] = ()
    ) -> Needs:
        """Return what a plan, the archive's versions and other studies need."""
        works = list(plan.all_work())
        inputs = {work.address: [source.address for source in work.inputs] for work in works}
        addresses, receipts = set(inputs), {name for jobs in plan.batches.values() for name in jobs}
        for other in others:
            addresses |= other.addresses
            receipts |= other.receipts
        return cls(frozenset(addresses), frozenset(archived), inputs, frozenset(receipts))


@dataclass(frozen=True)
class Surplus:
    """What can be deleted, largest first, and why other things stay."""

    items: list[Item]
    running: list[Entry]
    """Results that jobs have in hand."""
    guarded: list[Entry]
    """Results that stay because a running job may need them: its inputs are not known."""
    young: int
    """How many items and results stay only because they, or what was made of them, are young."""

    @property
    def size(self) -> Size:
        """Bytes and files of all items."""
        return total(self.items)


def total(items: Iterable[Item]) -> Size:
    """Return the size of all items together."""
    sizes = [item.size for item in items]
    return Size(sum(size.bytes for size in sizes), sum(size.files for size in sizes))


def surplus(results: Path, needs: Needs, days: float, now: float | None = None) -> Surplus:
    """Return what of a results folder is needed by nobody and at least `days` old.

    Changes nothing. `now` is in seconds since 1970.
    """
    entries = inventory.entries(results)
    running = [entry for entry in entries if inventory.running(entry.home)]
    deadline = (time.time() if now is None else now) - days * DAY

    def old(touched: float) -> bool:
        return days == 0 or touched <= deadline

    found = _Search(entries, running, needs)
    needed = found.kept(())
    fresh = [e for e in entries if e.address in found.finished and not old(e.touched())]
    kept = found.kept(fresh)
    items: list[Item] = []
    for entry in entries:
        if entry.address in found.running:
            continue
        if entry.address in kept or entry.stage in found.guarded_stages:
            items.extend(_parts(entry))
        else:
            finished = entry.address in found.finished
            kind: Kind = "results" if finished else "unfinished results"
            size = inventory.size(entry.home)
            items.append(Item(kind, entry.home, size, entry.touched(), entry.home))
    # A run of another study lives by its receipts, and goes on from its training states.
    if not found.strangers:
        items.extend(_states(results, found))
        for path in (path for stage in children(results / RECEIPTS) for path in children(stage)):
            if path.name not in needs.receipts:
                items.append(_item("receipts", path))
    ready = [item for item in items if old(item.touched)]
    guarded = [e for e in entries if e.stage in found.guarded_stages and e.address not in kept]
    young = len(items) - len(ready) + sum(e.address in kept - needed for e in entries)
    largest_first = sorted(ready, key=lambda item: (-item.size.bytes, str(item.path)))
    return Surplus(largest_first, running, guarded, young)


class _Search:
    """Who needs what."""

    def __init__(self, entries: list[Entry], running: list[Entry], needs: Needs) -> None:
        self.needs = needs
        self.finished = {
            entry.address: manifest for entry in entries if (manifest := entry.finished())
        }
        self.running = {entry.address for entry in running}
        # A job that runs for another study does not say what it reads: all that it may read stays.
        order = inventory.KEPT_STAGES
        self.strangers = [
            entry
            for entry in running
            if entry.address not in needs.inputs and entry.address not in self.finished
        ]
        highest = max((order.index(entry.stage) for entry in self.strangers), default=0)
        self.guarded_stages = set(order[:highest])

    def kept(self, young: Iterable[Entry]) -> set[str]:
        """Return the addresses that stay, with the inputs of all that is there of them."""
        kept: set[str] = set()
        ahead = [
            *self.needs.current,
            *self.needs.archived,
            *self.running,
            *(entry.address for entry in young),
        ]
        while ahead:
            address = ahead.pop()
            if address in kept:
                continue
            kept.add(address)
            ahead.extend(self.needs.inputs.get(address, ()))
            if address in self.finished:
                ahead.extend(self.finished[address].inputs)
        return kept


def _parts(entry: Entry) -> Iterator[Item]:
    """Yield what can go of a result that stays."""
    for path in children(entry.home):
        if DAMAGED.fullmatch(path.name):
            yield _item("damaged copies", path, entry.home)
        elif path.name.endswith(TEMPORARY):
            yield _item("leftovers", path, entry.home)


def _states(results: Path, found: _Search) -> Iterator[Item]:
    """Yield the training states from which nobody will go on."""
    for path in children(results / SCRATCH):
        wanted = path.name in found.needs.current or path.name in found.needs.archived
        if path.name in found.running or (wanted and path.name not in found.finished):
            continue
        home = results / FOLDERS["train"] / path.name
        yield _item("training states", path, home if home.exists() else None)


def _item(kind: Kind, path: Path, home: Path | None = None) -> Item:
    return Item(kind, path, inventory.size(path), inventory.touched(path), home)


@dataclass
class Deletion:
    """What became of the items that were to be deleted."""

    deleted: list[Item] = field(default_factory=list)
    skipped: list[tuple[Item, str]] = field(default_factory=list)
    """Items that are still there, and why."""


def delete(items: Iterable[Item]) -> Deletion:
    """Delete items, but for what a job has taken in hand or made anew since they were listed.

    A result's manifest goes first and its payload is renamed next, so that a process killed at
    any moment leaves nothing that looks finished and is not.
    """
    done = Deletion()
    for item in items:
        try:
            with inventory.holding(item.home) if item.home else nullcontext() as other:
                if other is not None:
                    done.skipped.append((item, other))
                elif _changed(item):
                    done.skipped.append((item, "it has changed since it was listed"))
                else:
                    _remove(item)
                    done.deleted.append(item)
        except OSError as error:
            done.skipped.append((item, f"{error.filename or item.path}: {error.strerror}"))
            continue
        if item.path == item.home:
            _remove_empty(item.path)
    return done


def _changed(item: Item) -> bool:
    """Whether an item is gone or has been written to since it was listed."""
    if not item.path.exists():
        return True
    if item.kind == "unfinished results":
        return (item.path / MANIFEST).exists() and read(item.path) is not None
    if item.kind == "results":
        return Entry("data", item.path).touched() != item.touched
    return inventory.touched(item.path) != item.touched


def _remove(item: Item) -> None:
    if item.path != item.home:
        _remove_tree(item.path)
        return
    for name in (MANIFEST, FAILURE):
        (item.path / name).unlink(missing_ok=True)
    for path in children(item.path):
        # It is there until it is given back.
        if not inventory.is_lease(path.name):
            _remove_tree(path)


def _remove_tree(path: Path) -> None:
    """Delete a file or a folder; a folder is out of sight before the first file of it is gone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.endswith(TEMPORARY):
        aside = path.with_name(f"{path.name}{TEMPORARY}")
        if aside.exists():
            shutil.rmtree(aside)
        path = path.rename(aside)
    shutil.rmtree(path)


def _remove_empty(home: Path) -> None:
    try:
        home.rmdir()
    except OSError:
        # Somebody has begun to make it again.
        return
