"""The report stage: from what is finished on disk to `reports/<study>/`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from widthlab import experiments, stages
from widthlab.address import canonical_json, digest
from widthlab.errors import WidthlabError
from widthlab.plan import Plan, Work
from widthlab.store import failure
from widthlab.store.lease import owner
from widthlab.store.manifest import Manifest, replace_text
from widthlab.store.publish import LEASE, finished, folder, intact, payload
from widthlab.study import Study
from widthlab.study import read as read_study

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.claims import Claim
    from widthlab.report.page import CellRow, Kind, Provenance, Section, Status

KINDS: dict[str, Kind] = {
    "data": "data",
    "train": "checkpoint",
    "extract": "cell",
    "sweep": "sweep",
}


@dataclass(frozen=True)
class Report:
    """A report's files as texts, and whether everything that the study asks for is in it."""

    page: str
    claims: str
    complete: bool


@dataclass(frozen=True, eq=False)
class Part:
    """One experiment's sweep for the report, and what the reader should know first."""

    experiment: str
    sweep: xr.Dataset | None
    """None where no cell is finished."""
    note: str | None = None


def stamp(study: Study, address: str) -> Path:
    """Return the file that says which report lies in the folder: its address is its name."""
    return report_folder(study) / f".{address}"


def report_folder(study: Study) -> Path:
    """Return the folder of a study's report."""
    return Path(study.reports) / study.name


def publish(study: Study, source: str) -> Path:
    """Build the report from what is finished, write it, and return the page's path.

    `source` is the study's file, for the command that rebuilds the page. The stamp of a complete
    report is written last; an incomplete one has none, so that snakemake builds it again.
    """
    plan = Plan.of(study)
    for sweep in plan.sweeps.values():
        _verify(plan, sweep)
    report = build(plan, source)
    home = report_folder(study)
    with _explained(home):
        home.mkdir(parents=True, exist_ok=True)
        for old in home.glob(f".{plan.report.address.rpartition('-')[0]}-*"):
            old.unlink(missing_ok=True)
        write(report, home)
        if report.complete:
            replace_text(stamp(study, plan.report.address), "")
    return home / "index.html"


def write(report: Report, home: Path) -> None:
    """Write a report's claims and page into a folder; raises WidthlabError where it cannot."""
    with _explained(home):
        home.mkdir(parents=True, exist_ok=True)
        replace_text(home / "claims.json", report.claims)
        replace_text(home / "index.html", report.page)


@contextmanager
def _explained(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = error.filename or home
        raise WidthlabError(f"cannot write the report {place}: {error.strerror}") from None


def _verify(plan: Plan, sweep: Work) -> None:
    """Look at the bytes that will be shown; collect a damaged sweep anew from its cells."""

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    there = finished(plan.results, sweep)
    if there and intact(plan.results, sweep, say):
        return
    # A list, so that every cell is looked at: the report is made of those that there are.
    cells = [finished(plan.results, c) and intact(plan.results, c, say) for c in sweep.inputs]
    if there and all(cells):
        stages.make(plan.results, sweep, "cpu", say)


def build(plan: Plan, source: str) -> Report:
    """Return the report of a plan's finished results; reads results, computes no cell."""
    found = manifests(plan)
    parts = (_part(plan, sweep) for sweep in plan.sweeps.values())
    provenance = replace(provenance_of(plan, found), command=_command(plan.study, source))
    # Inputs may be deleted once what was made of them is there.
    complete = all(sweep in found for sweep in plan.sweeps)
    return assemble(plan.study.name, parts, rows(plan, found), provenance, complete)


def assemble(
    title: str,
    parts: Iterable[Part],
    rows: Iterable[CellRow],
    provenance: Provenance,
    complete: bool = True,
) -> Report:
    """Return the report of these sweeps and rows, wherever they come from."""
    from widthlab.claims import to_json
    from widthlab.report.page import render

    sections = [_section(part) for part in parts]
    claims = [claim for section in sections for claim in section.claims]
    return Report(render(title, sections, rows, provenance), to_json(claims), complete)


def claims(study: Study) -> list[Claim]:
    """Return the claims of the study's report as it was last built."""
    from widthlab.claims import from_json

    path = report_folder(study) / "claims.json"
    try:
        return list(from_json(path.read_text(encoding="utf-8")))
    except OSError:
        raise WidthlabError(
            f"there are no claims yet at {path}: run snakemake, or 'widthlab report' to build "
            "the report from what is finished"
        ) from None


def _part(plan: Plan, work: Work) -> Part:
    """Return one experiment's sweep, over its finished cells where it is not there itself."""
    from widthlab.store import datasets

    name = work.specification["experiment"]
    if finished(plan.results, work):
        return Part(name, datasets.open_dataset(payload(plan.results, work)))
    cells = tuple(cell for cell in work.inputs if finished(plan.results, cell))
    if not cells:
        return Part(name, None, "no results yet: no cell is finished")
    note = f"{len(work.inputs) - len(cells)} of {len(work.inputs)} cells are missing"
    return Part(name, stages.collect(plan.results, work, cells), note)


def _section(part: Part) -> Section:
    """Return one experiment's section of the page."""
    from widthlab.claims import from_json
    from widthlab.report.page import Section

    module = experiments.load(part.experiment)
    words = {
        "experiment": part.experiment,
        "title": module.TITLE,
        "question": module.QUESTION,
        "method": module.METHOD,
        "note": part.note,
    }
    if part.sweep is None:
        return Section(**words)
    sweep = part.sweep.load()
    claims = from_json(sweep.attrs["claims"])
    return Section(**words, claims=claims, figures=module.figures(sweep))


def manifests(plan: Plan) -> dict[str, Manifest]:
    """Return the manifests of all finished work by address, read once."""
    found = ((work.address, finished(plan.results, work)) for work in plan.all_work())
    return {address: manifest for address, manifest in found if manifest is not None}


def rows(plan: Plan, found: Mapping[str, Manifest]) -> Iterator[CellRow]:
    """Yield what became of every piece of work, given the manifests that there are."""
    from widthlab.report.page import CellRow

    users: dict[str, set[str]] = {}
    needed: set[str] = set()
    for sweep in plan.sweeps.values():
        below = (*sweep.inputs, *(i for cell in sweep.inputs for i in cell.inputs))
        for work in (sweep, *below):
            users.setdefault(work.address, set()).add(sweep.specification["experiment"])
        if sweep.address not in found:
            needed.update(work.address for work in (sweep, *below))
    for work in plan.all_work():
        manifest = found.get(work.address)
        status, detail = _status(plan.results, work, manifest)
        if status == "missing" and work.address not in needed:
            status, detail = "done", "deleted since; what was made of it is there"
        yield CellRow(
            experiment=", ".join(sorted(users[work.address])),
            label=work.address.rpartition("-")[0],
            address=work.address,
            status=status,
            detail=detail,
            seconds=manifest.seconds if manifest else None,
            device=manifest.device if manifest else None,
            kind=KINDS[work.stage],
        )


def status_of(results: Path, work: Work) -> tuple[Status, str]:
    """Return what became of a piece of work, and why where that is known."""
    return _status(results, work, finished(results, work))


def _status(results: Path, work: Work, manifest: Manifest | None) -> tuple[Status, str]:
    if manifest is not None:
        return ("diverged" if manifest.status == "diverged" else "done"), manifest.detail
    home = folder(results, work)
    at_work = owner(home / LEASE)
    if at_work is not None:
        return "missing", f"being made by {at_work}"
    reason = failure.read(home)
    return ("failed", reason) if reason is not None else ("missing", "")


def provenance_of(plan: Plan, found: Mapping[str, Manifest]) -> Provenance:
    """Say where the numbers come from: from the manifests, so that a rebuilt page is the same."""
    from widthlab.report.page import Provenance

    study = plan.study.model_dump(mode="json", exclude_none=True)
    commits = sorted({commit for m in found.values() if (commit := m.environment["git_commit"])})
    return Provenance(
        study=plan.study.name,
        digest=digest(canonical_json(study)),
        git_commit=", ".join(commits) or None,
        git_dirty=any(m.environment["git_dirty"] for m in found.values()),
        versions=_versions(found.values()),
        devices=sorted({m.device for m in found.values()}),
        wall_seconds=sum(m.seconds for m in found.values()),
        results=str(plan.results),
        config=yaml.safe_dump(study, sort_keys=False, allow_unicode=True),
    )


def _command(study: Study, source: str) -> str:
    """Return the command that builds this very page, to be typed where snakemake runs."""
    path, here = Path(source).absolute(), Path.cwd()
    file = shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
    try:
        same = read_study(path) == study
    except WidthlabError:
        same = False
    if same:
        return f"widthlab report {file}"
    # Values were given on Snakemake's command line, too.
    spec = canonical_json(study.model_dump(mode="json", exclude_none=True))
    return f"widthlab report --spec {shlex.quote(spec)} {file}"


def _versions(manifests: Iterable[Manifest]) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.environment.items():
            if version is not None and not name.startswith("git_"):
                found.setdefault(name, set()).add(str(version))
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}
