"""Manifests: what a result is, what made it, and the digest of its bytes.

A result is a folder named by its address. It holds a payload and, written last and by rename,
`manifest.json`: the commit point, and the file that Snakemake knows. A twin of the manifest
under a hidden name lets a result whose manifest Snakemake deleted (before a rerun that turns
out to be needless) be published again instead of computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from widthlab.errors import WidthlabError

MANIFEST = "manifest.json"
TWIN = ".manifest.json"


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
        """Write the manifest and its twin; the manifest comes last and whole."""
        text = json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"
        replace_text(folder / TWIN, text)
        replace_text(folder / MANIFEST, text)


def read(folder: Path, name: str = MANIFEST) -> Manifest | None:
    """Return a folder's manifest, or None where there is none or it is damaged."""
    try:
        return Manifest(**json.loads((folder / name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def load(folder: Path) -> Manifest:
    """Return a folder's manifest; raises WidthlabError where it is missing or damaged.

    The twin stands in while a second Snakemake has the manifest away to make the result again.
    """
    manifest = read(folder) or read(folder, TWIN)
    if manifest is None:
        raise WidthlabError(
            f"{folder} holds no finished result (no valid {MANIFEST}); run snakemake to make it"
        )
    return manifest


def replace_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it, so that it is there whole or not."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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


class Stopwatch:
    """Wall time since it was made, and the process's peak memory."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def usage(self) -> dict[str, Any]:
        """Return `seconds` and `peak_memory` (bytes) for a manifest."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": round(time.perf_counter() - self._start, 3), "peak_memory": peak}


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
