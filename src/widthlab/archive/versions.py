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
    """Take the version's name out of a configuration; None where there is none.

    Snakemake reads `version=1.10` as a number; the name is what was typed.
    """
    value = config.pop(KEY, None)
    if value is None:
        return None
    typed = (word.partition("=")[2] for word in arguments if word.startswith(f"{KEY}="))
    name = next(typed, str(value))
    return name.strip("'\"")


def report_files(study: Study, name: str, version: Version | None = None) -> dict[str, str]:
    """Return the page and the claims of a version's report; looks it up unless it is given.

    Raises WidthlabError where the study's archive has no such version.
    """
    if version is None:
        from widthlab.archive.repository import Archive

        version = Archive.open(study).find(name)
    folder = Path(study.reports) / f"{version.study}@{name}"
    return {"page": str(folder / "index.html"), "claims": str(folder / "claims.json")}
