"""The version that `--config version=NAME` asks for, and where its report lies."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widthlab.archive.repository import Version
    from widthlab.study import Study

KEY = "version"


def asked(config: MutableMapping[str, Any], arguments: Sequence[str]) -> str | None:
    """Take the version's name out of a configuration if it was typed; None where it was not.

    Snakemake reads `version=1.10` as a number; the name is what was typed. A key of this name in
    a study's file stays, to be refused as one that no study has.
    """
    words = (word.removeprefix("--config=") for word in arguments)
    typed = [word.partition("=")[2] for word in words if word.startswith(f"{KEY}=")]
    if not typed:
        return None
    config.pop(KEY, None)
    return typed[-1].strip("'\"")


def report_files(study: Study, name: str, version: Version | None = None) -> dict[str, str]:
    """Return the page and the claims of a version's report; looks it up unless it is given.

    Raises WidthlabError where the study's archive has no such version.
    """
    if version is None:
        from widthlab.archive.repository import Archive

        version = Archive.open(study).find(name)
    folder = Path(study.reports) / f"{version.study}@{name}"
    return {"page": str(folder / "index.html"), "claims": str(folder / "claims.json")}
