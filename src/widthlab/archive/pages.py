"""The report of a version, from the archive alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from widthlab import experiments, reporting
from widthlab.archive import contents
from widthlab.archive.repository import Archive, Version
from widthlab.archive.versions import report_files
from widthlab.errors import WidthlabError
from widthlab.reporting import Part, Report
from widthlab.study import Study


def publish(study: Study, name: str) -> Path:
    """Build the report of a version in a study's archive, write it, and return the page's path."""
    archive = Archive.open(study)
    version = archive.find(name)
    report = build(archive, version, name)
    page = Path(report_files(study, name, version)["page"])
    reporting.write(report, page.parent)
    return page


def build(archive: Archive, version: Version, name: str) -> Report:
    """Return the report of a version; `name` is how it was asked for."""
    unknown = sorted(set(version.sweeps) - set(experiments.names()))
    if unknown:
        raise WidthlabError(
            f"version {name} has the experiment {unknown[0]!r}, which this widthlab does not "
            f"have; check out git commit {version.git_commit} to see its report"
        )
    results = archive.results(version)
    order = [n for n in experiments.names() if n in version.sweeps]
    sweeps = archive.sweeps(version)
    return reporting.assemble(
        f"{version.study} · {name}",
        (Part(experiment, sweeps[experiment]) for experiment in order),
        contents.rows(results),
        replace(
            contents.provenance(results),
            command=f"snakemake --cores 1 report --config version={name}",
        ),
    )
