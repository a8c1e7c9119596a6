"""Receipts: which version holds a study's sweeps, as the declared output of the rule `archive`.

Light, since the Snakefile reads them; the archive itself is opened by the stage only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthlab.address import HASH_LENGTH, canonical_json, digest, slugify
from widthlab.archive.location import Location
from widthlab.code_digest import code_digest
from widthlab.errors import WidthlabError
from widthlab.plan import Plan
from widthlab.store.manifest import replace_text
from widthlab.store.publish import Log, finished, intact

if TYPE_CHECKING:
    from widthlab.archive.repository import Version


def receipt(plan: Plan) -> Path:
    """Return the receipt of a plan's sweeps: named by what is archived, where, by what code."""
    location = Location.of(plan.study).address
    if Location.of(plan.study).folder is not None:
        # Results may be moved together with the archive beside them.
        location = os.path.relpath(location, plan.results)
    code = code_digest("widthlab.archive.repository:Archive")
    asked = [location, plan.study.name, plan.study.seed, sorted(plan.sweeps), code]
    name = f"{slugify(plan.study.name)}-{digest(canonical_json(asked))[:HASH_LENGTH]}"
    return plan.results / "archived" / f"{name}.json"


def discard_stale(plan: Plan) -> None:
    """Remove a receipt that is no longer true.

    So it is where a local archive was removed, and where a sweep was made again with other
    numbers since.
    """
    path = receipt(plan)
    if not path.exists():
        return
    folder = Location.of(plan.study).folder
    if (folder is None or folder.is_dir()) and _true(plan, path):
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WidthlabError(
            f"{path} names a version that is no longer there, and cannot be removed: "
            f"{error.strerror}"
        ) from None


def _true(plan: Plan, path: Path) -> bool:
    try:
        digests = dict(json.loads(path.read_text(encoding="utf-8"))["digests"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    for sweep in plan.sweeps.values():
        manifest = finished(plan.results, sweep)
        # A sweep that was deleted since is in the archive.
        if manifest is not None and manifest.digest != digests.get(sweep.address):
            return False
    return True


def archive(plan: Plan, log: Log) -> tuple[Version, bool]:
    """Archive a plan's sweeps, write the receipt, and return the version and whether it is new.

    A sweep that is damaged is moved aside and made again first.
    """
    from widthlab import stages
    from widthlab.archive.repository import Archive

    for sweep in plan.sweeps.values():
        if finished(plan.results, sweep) and not intact(plan.results, sweep, log):
            stages.make(plan.results, sweep, plan.study.device, log)
    home = Archive.create(plan.study)
    committed = home.commit(plan)
    version = committed or home.newest(plan.study.name)
    content: dict[str, Any] = {
        "version": version.id,
        "study": version.study,
        "archive": home.location.address,
        "digests": {address: version.digests[name] for name, address in version.sweeps.items()},
    }
    path = receipt(plan)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise WidthlabError(f"cannot write {path}: {error.strerror}") from None
    return version, committed is not None
