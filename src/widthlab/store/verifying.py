"""Verifying results: is every byte on disk what its manifest says it is?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from widthlab.errors import WidthlabError
from widthlab.store import publish
from widthlab.store.inventory import Entry, entries, holding, is_name, running
from widthlab.store.manifest import MANIFEST, read, tree_digest


@dataclass(frozen=True)
class Damage:
    """A result that is not what it says it is."""

    entry: Entry
    problem: str


@dataclass
class Verification:
    """What verifying found on disk."""

    intact: int = 0
    damaged: list[Damage] = field(default_factory=list)
    unfinished: list[Entry] = field(default_factory=list)
    """Folders without a result: a failed or interrupted attempt, or a job that runs."""
    absent: list[str] = field(default_factory=list)
    """Addresses that were asked for and have no folder or no result on disk."""


def verify(
    results: Path,
    addresses: Iterable[str] | None = None,
    track: Callable[[list[Entry]], Iterable[Entry]] = iter,
) -> Verification:
    """Compare every result on disk, or those with the given addresses, with its manifest.

    `track` is given the list and yields it again, to show progress.
    """
    found = Verification()
    every = entries(results)
    if addresses is not None:
        wanted = set(addresses)
        every = [entry for entry in every if entry.address in wanted]
        found.absent = sorted(wanted - {entry.address for entry in every})
    for entry in track(every):
        if not (entry.home / MANIFEST).exists() and (running(entry.home) or not entry.payloads()):
            found.unfinished.append(entry)
        elif (problem := examine(entry)) is None:
            found.intact += 1
        elif entry.home.exists():
            found.damaged.append(Damage(entry, problem))
    if addresses is not None:
        found.absent = sorted([*found.absent, *(e.address for e in found.unfinished)])
    return found


def examine(entry: Entry) -> str | None:
    """Return what is wrong with a result, or None where its bytes are those of its manifest."""
    if not (entry.home / MANIFEST).exists():
        return f"{entry.payloads()[0].name} has no manifest" if entry.payloads() else "is empty"
    manifest = read(entry.home)
    if manifest is None:
        return f"{MANIFEST} cannot be read"
    if (manifest.stage, manifest.address) != (entry.stage, entry.address):
        return f"{MANIFEST} is that of another result ({manifest.stage} {manifest.address})"
    if not is_name(manifest.payload):
        return f"{MANIFEST} names a payload elsewhere ({manifest.payload!r})"
    payload = entry.home / manifest.payload
    if not payload.exists():
        return f"{manifest.payload} is missing"
    try:
        digest = tree_digest(payload)
    except OSError as error:
        return f"{manifest.payload} cannot be read: {error.strerror}"
    if digest != manifest.digest:
        return f"{manifest.payload} differs from the digest in its manifest"
    return None


def set_aside(damage: Damage) -> list[Path]:
    """Move a damaged result aside within its folder, so that an ordinary run makes it again.

    Returns the new names; none where the result is whole by now. The manifest goes first: at no
    moment does the folder look finished. Raises WidthlabError where a job has it in hand or the
    folder cannot be written.
    """
    entry = damage.entry
    try:
        with holding(entry.home) as other:
            if other is not None:
                raise WidthlabError(f"{entry.name} was not moved aside: {other}")
            if examine(entry) is None:
                return []
            return publish.set_aside([entry.home / MANIFEST, *entry.payloads()])
    except OSError as error:
        raise WidthlabError(f"{entry.name} was not moved aside: {error.strerror}") from error
