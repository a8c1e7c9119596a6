"""Publishing a result: one writer per address, whole or not at all, never twice."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from widthlab.errors import WidthlabError
from widthlab.interruption import Interrupted
from widthlab.plan import FOLDERS, Work
from widthlab.store import failure
from widthlab.store.manifest import (
    MANIFEST,
    TWIN,
    Manifest,
    Stopwatch,
    environment,
    read,
    tree_digest,
)

PAYLOADS = {
    "data": "data.safetensors",
    "train": "snapshots",
    "extract": "statistics.zarr",
    "sweep": "sweep.zarr",
}
"""Name of each stage's payload in its result's folder."""


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


def publish(
    results: Path, work: Work, make: Callable[[Path], Outcome], log: Callable[[str], None]
) -> Manifest:
    """Make a result unless it is there, and return its manifest.

    `make` is given a fresh path to write the payload to. A second process that asks for the same
    result waits and finds it done. A payload without a valid manifest is moved aside; one whose
    manifest alone is gone is checked against its digest and published again.
    """
    home = folder(results, work)
    with _writing(home):
        done = _recover(home, work, log)
        if done is not None:
            failure.clear(home)
            _remove(scratch(results, work))
            return done
        target = home / PAYLOADS[work.stage]
        temporary = target.with_name(f"{target.name}.tmp")
        _remove(temporary)
        watch = Stopwatch()
        try:
            outcome = make(temporary)
        except Interrupted:
            raise
        except Exception as error:
            failure.record(home, error)
            raise
        if target.exists():
            _set_aside(target, log)
        manifest = Manifest(
            address=work.address,
            stage=work.stage,
            specification=work.specification,
            inputs=[source.address for source in work.inputs],
            code=work.code,
            payload=target.name,
            digest=tree_digest(temporary),
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
def _writing(home: Path) -> Iterator[None]:
    """Hold the right to write one result; wait where another process has it."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"):
            yield
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        place = error.filename or home
        raise WidthlabError(f"cannot write {place}: {error.strerror}; nothing is lost") from error


_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def _recover(home: Path, work: Work, log: Callable[[str], None]) -> Manifest | None:
    """Return the manifest of a payload that is already there and whole."""
    for name in (MANIFEST, TWIN):
        manifest = read(home, name)
        target = home / PAYLOADS[work.stage]
        if manifest is None or manifest.address != work.address or not target.exists():
            continue
        if name == MANIFEST:
            log(f"{work.address} is already there")
            return manifest
        if tree_digest(target) == manifest.digest:
            log(f"{work.address} was whole but for its manifest, which is written again")
            manifest.write(home)
            return manifest
    return None


def _set_aside(path: Path, log: Callable[[str], None]) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    log(f"{path} had no valid manifest and was moved to {aside.name}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
