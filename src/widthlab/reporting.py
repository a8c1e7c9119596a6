"""The report stage: from what is finished on disk to `reports/<study>/`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
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
    try:
        home.mkdir(parents=True, exist_ok=True)
        for old in home.glob(f".{plan.report.address.rpartition('-')[0]}-*"):
            old.unlink()
        replace_text(home / "claims.json", report.claims)
        replace_text(home / "index.html", report.page)
        if report.complete:
            replace_text(stamp(study, plan.report.address), "")
    except OSError as error:
        place = error.filename or home
        raise WidthlabError(f"cannot write the report {place}: {error.strerror}") from None
    return home / "index.html"


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
    from widthlab.claims import to_json
    from widthlab.report.page import render

    sections = [_section(plan, sweep) for sweep in plan.sweeps.values()]
    rows = list(_rows(plan))
    page = render(f"{plan.study.name}", sections, rows, _provenance(plan, source))
    claims = [claim for section in sections for claim in section.claims]
    # Inputs may be deleted once what was made of them is there.
    complete = all(finished(plan.results, sweep) for sweep in plan.sweeps.values())
    return Report(page, to_json(claims), complete)


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


def _section(plan: Plan, work: Work) -> Section:
    """Return one experiment's part of the report, over its finished cells."""
    from widthlab.claims import from_json
    from widthlab.report.page import Section
    from widthlab.store import datasets

    module = experiments.load(work.specification["experiment"])
    words = {
        "experiment": work.specification["experiment"],
        "title": module.TITLE,
        "question": module.QUESTION,
        "method": module.METHOD,
    }
    if finished(plan.results, work):
        note, dataset = None, datasets.open_dataset(payload(plan.results, work))
    else:
        cells = tuple(cell for cell in work.inputs if finished(plan.results, cell))
        if not cells:
            return Section(**words, note="no results yet: no cell is finished")
        note = f"{len(work.inputs) - len(cells)} of {len(work.inputs)} cells are missing"
        dataset = stages.collect(plan.results, work, cells)
    dataset = dataset.load()
    claims = from_json(dataset.attrs["claims"])
    return Section(**words, claims=claims, figures=module.figures(dataset), note=note)


def _rows(plan: Plan) -> Iterable[CellRow]:
    from widthlab.report.page import CellRow

    users: dict[str, set[str]] = {}
    needed: set[str] = set()
    for sweep in plan.sweeps.values():
        below = (*sweep.inputs, *(i for cell in sweep.inputs for i in cell.inputs))
        for work in (sweep, *below):
            users.setdefault(work.address, set()).add(sweep.specification["experiment"])
        if not finished(plan.results, sweep):
            needed.update(work.address for work in (sweep, *below))
    for work in plan.all_work():
        manifest = finished(plan.results, work)
        status, detail = status_of(plan.results, work)
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
    manifest = finished(results, work)
    if manifest is not None:
        return ("diverged" if manifest.status == "diverged" else "done"), manifest.detail
    home = folder(results, work)
    at_work = owner(home / LEASE)
    if at_work is not None:
        return "missing", f"being made by {at_work}"
    reason = failure.read(home)
    return ("failed", reason) if reason is not None else ("missing", "")


def _provenance(plan: Plan, source: str) -> Provenance:
    """Say where the numbers come from: from the manifests, so that a rebuilt page is the same."""
    from widthlab.report.page import Provenance

    manifests = [m for work in plan.all_work() if (m := finished(plan.results, work))]
    study = plan.study.model_dump(mode="json", exclude_none=True)
    commits = sorted({str(m.environment["git_commit"]) for m in manifests})
    return Provenance(
        study=plan.study.name,
        digest=digest(canonical_json(study)),
        git_commit=", ".join(commits) or None,
        git_dirty=any(m.environment["git_dirty"] for m in manifests),
        versions=_versions(manifests),
        devices=sorted({m.device for m in manifests}),
        wall_seconds=sum(m.seconds for m in manifests),
        command=_command(plan.study, source),
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


def _versions(manifests: list[Manifest]) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.environment.items():
            if version is not None and not name.startswith("git_"):
                found.setdefault(name, set()).add(str(version))
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}
