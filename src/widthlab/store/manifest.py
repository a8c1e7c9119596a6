"""Manifests: what a result is, what made it, and the digest of its bytes.

A result is a folder named by its address. It holds a payload and, written last and by rename,
`manifest.json`: the commit point. A manifest carries a checksum of itself, so that a damaged one
is known for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import secrets
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from widthlab.address import canonical_json, digest

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """The record beside a payload."""

    address: str
    stage: str
    specification: Mapping[str, Any]
    inputs: list[str]
    code: str
    """Digest of the package code that made the payload."""
    payload: str
    """Name of the payload within the result's folder."""
    digest: str
    """SHA-256 over the payload's files."""
    status: str = "finished"
    """`finished`, or `diverged` for a training run that did."""
    detail: str = ""
    device: str = "cpu"
    seconds: float = 0.0
    """Wall time, in seconds."""
    peak_memory: int = 0
    """Largest resident memory of the process, in bytes."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions of Python and of the packages, git commit, and whether the tree was dirty."""

    def write(self, folder: Path) -> None:
        """Write the manifest, whole or not at all."""
        record = asdict(self)
        record["checksum"] = _checksum(record)
        text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
        replace_text(folder / MANIFEST, f"{text}\n")


def read(folder: Path) -> Manifest | None:
    """Return a folder's manifest, or None where there is none or it is damaged."""
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if record.pop("checksum") != _checksum(record):
            return None
        return Manifest(**record)
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _checksum(record: Mapping[str, Any]) -> str:
    return digest(canonical_json(record))


def replace_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it, so that it is there whole or not."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def tree_digest(path: Path) -> str:
    """Return one SHA-256 for a file or folder: names and contents of all files in it."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        name = "" if file == path else file.relative_to(path).as_posix()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def sync_tree(path: Path) -> None:
    """Have a file or folder written to the disk, before anything says that it is there."""
    for entry in [path, *(path.rglob("*") if path.is_dir() else ())]:
        _sync(entry)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Stopwatch:
    """Wall time since it was made, and the process's peak memory since then."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        # A process makes several results: where Linux lets it, it forgets the peak of the last.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def usage(self) -> dict[str, Any]:
        """Return `seconds` and `peak_memory` (bytes) for a manifest."""
        return {"seconds": round(time.perf_counter() - self._start, 3), "peak_memory": _peak()}


def _peak() -> int:
    """Return the largest resident memory in bytes, since it was last forgotten."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def environment() -> dict[str, Any]:
    """Return versions of Python and the packages that compute, and the state of git."""
    packages = ("widthlab", "torch", "torchvision", "numpy", "scipy", "xarray", "zarr", "snakemake")
    commit, dirty = git_state()
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
        "git_commit": commit,
        "git_dirty": dirty,
    }


def git_state() -> tuple[str | None, bool | None]:
    """Return the commit of the package's own checkout and whether its code differs from it."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed copy may lie in somebody else's repository.
        git("ls-files", "--error-unmatch", "manifest.py")
        top = git("rev-parse", "--show-toplevel")
        code = [f"{top}/{part}" for part in ("src", "workflow", "Snakefile")]
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "-uno", "--", *code))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
