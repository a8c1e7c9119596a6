"""Publishing a result: one writer per address, whole or not at all, never twice."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from widthlab.errors import WidthlabError
from widthlab.interruption import Interrupted
from widthlab.plan import FOLDERS, Work
from widthlab.store import failure
from widthlab.store.lease import Lease, Lost
from widthlab.store.manifest import (
    MANIFEST,
    Manifest,
    Stopwatch,
    environment,
    read,
    sync_tree,
    tree_digest,
)

PAYLOADS = {
    "data": "data.safetensors",
    "train": "snapshots",
    "extract": "statistics.zarr",
    "sweep": "sweep.zarr",
}
"""Name of each stage's payload in its result's folder."""
LEASE = ".lease"
"""Name of the file in a result's folder that says who is making it."""

Log = Callable[[str], None]


class NotWritable(WidthlabError):  # noqa: N818 - named for what is wrong
    """The results folder takes nothing more: full, read-only, or not ours."""


@dataclass(frozen=True)
class Outcome:
    """How the making of a payload ended, for its manifest."""

    status: str = "finished"
    detail: str = ""
    device: str = "cpu"


def folder(results: Path, work: Work) -> Path:
    """Return the folder of a result."""
    return results / FOLDERS[work.stage] / work.address


def payload(results: Path, work: Work) -> Path:
    """Return the payload of a result."""
    return folder(results, work) / PAYLOADS[work.stage]


def scratch(results: Path, work: Work) -> Path:
    """Return the folder of the state from which an interrupted stage goes on.

    It is no declared output, so neither a failed job nor `--rerun-incomplete` deletes it.
    """
    return results / "scratch" / work.address


def finished(results: Path, work: Work) -> Manifest | None:
    """Return the manifest of a result that is there, payload included, or None."""
    manifest = read(folder(results, work))
    return manifest if manifest is not None and payload(results, work).exists() else None


_intact: set[Path] = set()
"""Results that this process has found intact; reading a data set once is enough."""


def intact(results: Path, work: Work, log: Log) -> bool:
    """Return whether a result is there with the very bytes that its manifest speaks of.

    Where a payload or a manifest is damaged, both are moved aside, and the result is missing.
    Raises WidthlabError where it cannot be read, as another user's in a folder that is not shared.
    """
    home = folder(results, work)
    if home.resolve() in _intact and finished(results, work):
        return True
    if _is_intact(results, work):
        _intact.add(home.resolve())
        return True
    if not home.exists():
        return False
    with _writing(home):
        if _is_intact(results, work):
            return True
        for aside in set_aside([home / MANIFEST, payload(results, work)]):
            log(f"{work.address} is damaged: what was there is {aside} now")
    return False


def _is_intact(results: Path, work: Work) -> bool:
    manifest = finished(results, work)
    if manifest is None:
        return False
    try:
        return tree_digest(payload(results, work)) == manifest.digest
    except FileNotFoundError:
        return False  # deleted while it was read
    except OSError as error:
        place = error.filename or payload(results, work)
        raise WidthlabError(f"cannot read {place}: {error.strerror}") from error


def publish(
    results: Path, work: Work, make: Callable[[Path], Outcome], log: Log, *, wait: bool = True
) -> Manifest:
    """Make a result unless it is there, and return its manifest.

    `make` is given a fresh path to write the payload to. A second process that asks for the same
    result waits and finds it done, or with `wait=False` gets `lease.Taken`. A payload without a
    valid manifest is moved aside.
    """
    home = folder(results, work)
    while True:
        with _writing(home, wait) as lease:
            done = finished(results, work)
            if done is not None:
                log(f"{work.address} is already there")
                failure.clear(home)
                _remove(scratch(results, work))
                return done
            try:
                return _publish(results, work, make, log, lease)
            except Lost:
                # We were held up for so long that another process took over.
                log(f"{work.address} was taken over by another process; waiting for it")
                wait = True


def _publish(
    results: Path, work: Work, make: Callable[[Path], Outcome], log: Log, lease: Lease
) -> Manifest:
    home, target = folder(results, work), payload(results, work)
    for left in home.glob("*.tmp"):
        _remove(left)
    # A name of our own, so that no writer who lost its lease can mix in.
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(6)}.tmp")
    watch = Stopwatch()
    failure.begin(home)
    try:
        outcome = make(temporary)
        sync_tree(temporary)
        digest = tree_digest(temporary)
    except (Interrupted, KeyboardInterrupt):
        failure.clear(home)
        raise
    except Exception as error:
        lease.check()
        failure.record(home, error)
        raise
    lease.check()
    if target.exists():
        for aside in set_aside([target]):
            log(f"{target} had no valid manifest: it was moved to {aside}")
    manifest = Manifest(
        address=work.address,
        stage=work.stage,
        specification=work.specification,
        inputs=[source.address for source in work.inputs],
        code=work.code,
        payload=target.name,
        digest=digest,
        status=outcome.status,
        detail=outcome.detail,
        device=outcome.device,
        environment=environment(),
        **watch.usage(),
    )
    temporary.replace(target)
    manifest.write(home)
    failure.clear(home)
    _remove(scratch(results, work))
    return manifest


@contextmanager
def _writing(home: Path, wait: bool = True) -> Iterator[Lease]:
    """Hold the right to write one result; wait where another process has it."""
    try:
        with ExitStack() as stack:
            yield _taken(stack, home, wait)
    except Exception as error:
        number = _error_number(error)
        if number not in _NOT_WRITABLE:
            raise
        place = getattr(error, "filename", None) or home
        raise NotWritable(
            f"cannot write {place}: {os.strerror(number)}; nothing is lost"
        ) from error


def _taken(stack: ExitStack, home: Path, wait: bool) -> Lease:
    """Take a result's lease for a while; `gc` may remove its folder as empty at any moment."""
    for _ in range(10):
        home.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return stack.enter_context(Lease(home / LEASE, wait=wait))
    raise WidthlabError(f"{home} vanishes again and again: find out what removes it")


def check_writable(results: Path) -> None:
    """Raise NotWritable unless the results folder takes a file."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results, buffering=0) as file:
            file.write(b" " * 4096)
            os.fsync(file.fileno())
    except OSError as error:
        raise NotWritable(f"cannot write {results}: {error.strerror}; nothing is lost") from error


def _error_number(error: Exception) -> int:
    """Return the system's number of an error, 0 if it has none."""
    if isinstance(error, OSError):
        return error.errno or 0
    # Safetensors tells it in words only; it is not imported, so that the store stays light.
    named = type(error).__name__ == "SafetensorError"
    found = re.search(r"\(os error (\d+)\)", str(error)) if named else None
    return int(found[1]) if found else 0


_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def set_aside(paths: Iterable[Path]) -> list[Path]:
    """Rename those files and folders that are there, all with one number; return the new names.

    Give a manifest first, so that at no moment its folder looks finished.
    """
    there = [path for path in paths if path.exists()]
    number = 1
    while any(_aside(path, number).exists() for path in there):
        number += 1
    return [path.rename(_aside(path, number)) for path in there]


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.damaged-{number}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
