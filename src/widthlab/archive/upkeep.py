"""Looking after an archive: which results its versions need, and whether all of it can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import icechunk

from widthlab.archive.location import Location
from widthlab.archive.repository import Archive, Version
from widthlab.errors import WidthlabError
from widthlab.plan import FOLDERS
from widthlab.store import datasets, verifying
from widthlab.store.inventory import Entry
from widthlab.study import Study

Sweep = tuple[Version, str]
"""An experiment's sweep in a version."""


def existing(study: Study) -> Archive | None:
    """Open a study's archive, or return None where there is none yet.

    Raises WidthlabError where it cannot be known or read: none is not the same as out of reach.
    """
    location = Location.of(study)
    if location.folder is not None and not location.folder.is_dir():
        return None
    icechunk.set_logs_filter("error")
    try:
        if not icechunk.Repository.exists(location.storage()):
            return None
    except icechunk.IcechunkError as error:
        reason = " ".join(str(error).split())
        raise WidthlabError(f"cannot read the archive {location.address}: {reason}") from error
    return Archive.open(study)


def needed(archive: Archive, tagged_only: bool = False) -> set[str]:
    """Return the addresses of all results that the versions, or those with a tag, were made of.

    Raises WidthlabError where a version cannot be read.
    """
    addresses: set[str] = set()
    for version in archive.versions():
        if tagged_only and not version.tags:
            continue
        addresses.update(version.sweeps.values(), addresses_of(archive, version))
    return addresses


def addresses_of(archive: Archive, version: Version) -> list[str]:
    """Return the addresses of all results of a version; raises WidthlabError as `needed`."""
    try:
        found: list[str] = archive.results(version)["address"].values.tolist()
    except Exception as error:  # whatever a damaged store raises
        raise WidthlabError(
            f"cannot read the results of version {version.id} in the archive "
            f"{archive.location.address}: {_words(error)}"
        ) from error
    return found


def tags_and_heads(archive: Archive) -> list[Version]:
    """Return the versions that have a tag, and the newest one of every study."""
    seen: set[str] = set()
    found = []
    for version in archive.versions():
        if version.tags or version.study not in seen:
            found.append(version)
        seen.add(version.study)
    return found


def unreadable(
    archive: Archive,
    versions: Iterable[Version],
    results: Path,
    track: Callable[[list[Sweep]], Iterable[Sweep]] = iter,
) -> Iterator[str]:
    """Read all of these versions and yield what cannot be read, a sentence each.

    A sweep that is intact on disk, too, must be equal to the archived one: compressed numbers may
    be damaged and still be numbers. What several versions share is read once.
    """
    sweeps: dict[tuple[str, str], Sweep] = {}
    for version in versions:
        try:
            archive.results(version)
        except Exception as error:  # whatever a damaged store raises
            yield f"version {version.id}: its results cannot be read: {_words(error)}"
        for name, digest in version.digests.items():
            sweeps.setdefault((name, digest), (version, name))
    for version, name in track(list(sweeps.values())):
        problem = _read(archive, version, name, results)
        if problem is not None:
            yield f"version {version.id}: the sweep of {name} {problem}"


def _read(archive: Archive, version: Version, name: str, results: Path) -> str | None:
    """Return what is wrong with an archived sweep, or None."""
    try:
        archived = archive.sweeps(version)[name].load()
    except Exception as error:  # whatever a damaged store raises
        return f"cannot be read: {_words(error)}"
    entry = Entry("sweep", results / FOLDERS["sweep"] / version.sweeps[name])
    manifest = entry.finished()
    if manifest is None or manifest.digest != version.digests[name] or verifying.examine(entry):
        return None
    with datasets.open_dataset(entry.home / manifest.payload) as on_disk:
        if not archived.equals(on_disk.load()):
            return f"differs from the one on disk ({entry.name})"
    return None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
