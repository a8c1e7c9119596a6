"""The register of a results folder: which studies run on it, and what they need.

Several studies may share a folder, and `gc` is run for one of them. So every run notes what its
study needs before its first job; what a study needs is kept for some time after its last run,
whether or not it has finished or was archived.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from widthlab.address import HASH_LENGTH, canonical_json, digest
from widthlab.errors import WidthlabError
from widthlab.plan import Plan
from widthlab.store.manifest import replace_text

STUDIES = "studies"
DAYS = 30.0
"""How long a study is known after its last run."""


@dataclass(frozen=True)
class Entry:
    """What a study that ran here needs."""

    study: str
    addresses: frozenset[str]
    receipts: frozenset[str]
    """Names of its jobs."""


def enter(plan: Plan) -> None:
    """Note what a study needs, as it begins to run."""
    record = {
        "study": plan.study.name,
        "addresses": sorted(work.address for work in plan.all_work()),
        "receipts": sorted(name for jobs in plan.batches.values() for name in jobs),
    }
    text = canonical_json(record)
    home = plan.results / STUDIES
    try:
        home.mkdir(parents=True, exist_ok=True)
        replace_text(home / f"{plan.study.name}-{digest(text)[:HASH_LENGTH]}.json", text)
    except OSError as error:
        raise WidthlabError(f"cannot write {error.filename or home}: {error.strerror}") from error


def entries(results: Path, now: float | None = None) -> Iterator[Entry]:
    """Yield what the studies need that ran here in the last thirty days.

    `now` is in seconds since 1970. Raises WidthlabError where an entry cannot be read: then it is
    not known what its study needs.
    """
    since = (time.time() if now is None else now) - DAYS * 86400
    for path in sorted((results / STUDIES).glob("*.json")):
        if path.stat().st_mtime < since:
            continue
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            yield Entry(
                record["study"], frozenset(record["addresses"]), frozenset(record["receipts"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WidthlabError(
                f"cannot read {path}, which says what a study needs ({error}); run the study "
                "again, or remove the file if it is over"
            ) from None
