"""What lies in a folder of results, whatever study it is of."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from widthlab.plan import FOLDERS, Stage
from widthlab.store import lease
from widthlab.store.failure import FAILURE
from widthlab.store.manifest import MANIFEST, Manifest, read
from widthlab.store.owner import Owner
from widthlab.store.publish import LEASE

DAMAGED = re.compile(r".+\.damaged-\d+")
"""Names of what was moved aside."""
TEMPORARY = ".tmp"
"""Ending of what is not whole yet."""
FORGOTTEN = 86400.0
"""Seconds without a beat after which another machine's lease is no longer that of a running job."""
KEPT_STAGES: tuple[Stage, ...] = ("data", "train", "extract", "sweep")
"""Stages whose results lie in the results folder, inputs first."""


@dataclass(frozen=True)
class Entry:
    """The folder of one result, finished or not."""

    stage: Stage
    home: Path

    @property
    def address(self) -> str:
        """The address that the folder is named by."""
        return self.home.name

    @property
    def name(self) -> str:
        """Kind and address, for people."""
        return f"{FOLDERS[self.stage]}/{self.address}"

    def finished(self) -> Manifest | None:
        """Return the manifest of a result that is there, payload included, or None."""
        manifest = read(self.home)
        if manifest is None or not is_name(manifest.payload):
            return None
        return manifest if (self.home / manifest.payload).exists() else None

    def payloads(self) -> list[Path]:
        """Return what looks like a payload, whatever a manifest says."""
        return [p for p in children(self.home) if is_payload(p.name)]

    def touched(self) -> float:
        """Return the file time of the manifest, or the latest one where there is none."""
        try:
            return (self.home / MANIFEST).stat().st_mtime
        except OSError:
            return touched(self.home)


@dataclass(frozen=True)
class Size:
    """How much something takes: bytes of its files, and how many there are."""

    bytes: int = 0
    files: int = 0


def entries(results: Path) -> list[Entry]:
    """Return the folders of all results on disk, in order of stage and address."""
    return [
        Entry(stage, home)
        for stage in KEPT_STAGES
        for home in children(results / FOLDERS[stage])
        if home.is_dir() and not home.is_symlink()
    ]


def children(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing where there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_name(text: str) -> bool:
    """Whether a text names something right in a folder, and nothing elsewhere."""
    return Path(text).name == text and text not in ("", ".", "..")


def is_payload(name: str) -> bool:
    """Whether a name in a result's folder is neither record nor leftover."""
    return not (
        name in (MANIFEST, FAILURE)
        or name.startswith(".")
        or name.endswith(TEMPORARY)
        or DAMAGED.fullmatch(name)
    )


def running(home: Path) -> bool:
    """Whether a job has a result in hand, as far as can be told without waiting."""
    owner = lease.owner(home / LEASE)
    if owner is None:
        return False
    here = Owner.here()
    if (owner.host, owner.place) == (here.host, here.place):
        return True
    try:
        return time.time() - (home / LEASE).stat().st_mtime < FORGOTTEN
    except OSError:
        return False


@contextmanager
def holding(home: Path) -> Iterator[str | None]:
    """Hold a result's lease; yields None, or in words who has it where it cannot be had."""
    with ExitStack() as stack:
        words = None
        try:
            stack.enter_context(lease.Lease(home / LEASE, wait=False))
        except lease.Taken as error:
            words = f"process {error.owner.pid or 'unknown'} on {error.owner.host} has it in hand"
        yield words


def is_lease(name: str) -> bool:
    """Whether a name in a result's folder is that of its lease, or of one in the making."""
    return name == LEASE or name.startswith(f"{LEASE}.")


def size(path: Path) -> Size:
    """Return the size of a file or a folder; what vanishes meanwhile does not count."""
    total = count = 0
    for _, status in _walk(path):
        if not stat.S_ISDIR(status.st_mode):
            total, count = total + status.st_size, count + 1
    return Size(total, count)


def touched(path: Path) -> float:
    """Return the latest file time of a file, or of a folder and all that is in it."""
    return max((status.st_mtime for _, status in _walk(path)), default=0.0)


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a path and all below it, links not followed."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    yield str(path), status
    if not stat.S_ISDIR(status.st_mode):
        return
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = f"{folder}{os.sep}{name}"
            try:
                yield place, os.lstat(place)
            except FileNotFoundError:
                continue
