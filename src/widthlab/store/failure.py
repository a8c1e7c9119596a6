"""The record of a failed attempt, beside where the result will be; gone once it is there."""

from __future__ import annotations

import json
from pathlib import Path

from widthlab.store.manifest import replace_text

FAILURE = "failure.json"


def record(folder: Path, error: BaseException) -> None:
    """Say why the last attempt failed; where even that cannot be written, say nothing."""
    words = " ".join(str(error).split()) or type(error).__name__
    text = json.dumps({"error": type(error).__name__, "message": words[:2000]}, indent=1)
    try:
        replace_text(folder / FAILURE, text + "\n")
    except OSError:
        return


def clear(folder: Path) -> None:
    """Forget a failed attempt."""
    (folder / FAILURE).unlink(missing_ok=True)


def read(folder: Path) -> str | None:
    """Return why the last attempt failed, or None where it did not."""
    try:
        found = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
        return f"{found['error']}: {found['message']}"
    except (OSError, ValueError, KeyError):
        return None
