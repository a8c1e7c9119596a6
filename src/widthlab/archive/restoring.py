"""Going back to a version: its study file, and what of its results is missing here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from widthlab.errors import WidthlabError
from widthlab.plan import Plan, Work
from widthlab.store.publish import finished
from widthlab.study import parse


@dataclass(frozen=True)
class Restored:
    """What a restored study still needs here."""

    file: Path
    missing: Sequence[str]
    """Addresses that an ordinary run makes."""
    anew: Sequence[str]
    """Those of them that are not the version's own, since the code or the data has changed."""

    @property
    def command(self) -> str:
        """The command that makes what is missing."""
        return f"snakemake --cores all --configfile {shlex.quote(str(self.file))}"


def write_study(config: dict[str, Any], file: Path) -> None:
    """Write a study to a new file; raises WidthlabError where there is one already."""
    try:
        with file.open("x", encoding="utf-8") as out:
            yaml.safe_dump(config, out, sort_keys=False, allow_unicode=True)
    except FileExistsError:
        raise WidthlabError(f"{file} is there already; give another file with --out") from None
    except OSError as error:
        raise WidthlabError(f"cannot write {file}: {error.strerror}") from None


def needed(config: dict[str, Any], file: Path, known: frozenset[str]) -> Restored:
    """Return what a run of a study would make here; `known` are the addresses of its version.

    What lies below a finished result is not needed. Raises WidthlabError where the present code
    cannot plan the study.
    """
    plan = Plan.of(parse(config, str(file)))
    missing: dict[str, None] = {}

    def visit(work: Work) -> None:
        if work.address in missing or finished(plan.results, work) is not None:
            return
        for source in work.inputs:
            visit(source)
        missing[work.address] = None

    for sweep in plan.sweeps.values():
        visit(sweep)
    return Restored(file, list(missing), [address for address in missing if address not in known])
