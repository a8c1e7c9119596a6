"""The record of an attempt that did not end well, beside where the result will be."""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from widthlab.store.manifest import replace_text

FAILURE = "failure.json"


def begin(folder: Path) -> None:
    """Say that an attempt began: all that is left of one that is killed."""
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    _write(
        folder,
        "Killed",
        f"the attempt that began at {now} on {platform.node()} did not come to an end (killed? out "
        "of memory or time?)",
    )


def record(folder: Path, error: BaseException) -> None:
    """Say why the attempt failed."""
    _write(folder, type(error).__name__, " ".join(str(error).split()) or type(error).__name__)


def clear(folder: Path) -> None:
    """Forget a failed attempt."""
    (folder / FAILURE).unlink(missing_ok=True)


def read(folder: Path) -> str | None:
    """Return why the last attempt failed, or None where it did not."""
    try:
        found = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
        return f"{found['error']}: {found['message']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, error: str, message: str) -> None:
    text = json.dumps({"error": error, "message": message[:2000]}, indent=1)
    # Where even that cannot be written, the failure itself is what to speak of.
    with suppress(OSError):
        replace_text(folder / FAILURE, f"{text}\n")
