"""The commands of the archive: the history, tags, comparing, and going back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from widthlab.errors import WidthlabError

if TYPE_CHECKING:
    from widthlab.archive.repository import Archive, Version

STUDY = click.option(
    "--study",
    "file",
    default="config.yaml",
    show_default=True,
    type=Path,
    help="The study whose archive it is.",
)


def _archive(file: Path) -> Archive:
    from widthlab.archive.repository import Archive
    from widthlab.study import read

    return Archive.open(read(file))


@click.command()
@click.argument("name", metavar="[STUDY]", required=False)
@STUDY
def versions(name: str | None, file: Path) -> None:
    """List the versions in the archive, newest first: of the study named STUDY, or of all."""
    from widthlab.archive.tables import print_versions

    archive = _archive(file)
    found = archive.versions(name)
    if not found:
        known = sorted({version.study for version in archive.versions()})
        of = f" of a study {name!r}; there are {', '.join(known)}" if name and known else ""
        raise WidthlabError(f"the archive {archive.location.address} has no version{of}")
    print_versions(found)


@click.command()
@click.argument("name")
@click.argument("version", required=False)
@STUDY
def tag(name: str, version: str | None, file: Path) -> None:
    """Give a VERSION the tag NAME for good; without VERSION, the study's newest."""
    from widthlab.study import read

    archive = _archive(file)
    found = archive.newest(read(file).name) if version is None else archive.find(version)
    archive.tag(name, found)
    click.echo(f"{name} is version {found.id} of {found.study}")


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@STUDY
def diff(old: str, new: str, file: Path) -> None:
    """Say what changed from version A to B: claims with numbers, cells, and the study's text."""
    from widthlab.archive.differences import compare, holdings
    from widthlab.archive.tables import print_differences

    archive = _archive(file)
    before, after = archive.find(old), archive.find(new)
    print_differences(before, after, compare(holdings(archive, before), holdings(archive, after)))


@click.command()
@click.argument("name")
@STUDY
def show(name: str, file: Path) -> None:
    """Describe the version NAME: its experiments, results and verdicts."""
    from widthlab.archive.differences import holdings
    from widthlab.archive.tables import print_version

    archive = _archive(file)
    version = archive.find(name)
    statuses = archive.results(version)["status"].values.tolist()
    print_version(version, holdings(archive, version), statuses)


@click.command()
@click.argument("name")
@click.option("--out", type=Path, help="The file to write; <study>@<NAME>.yaml by default.")
@STUDY
def restore(name: str, out: Path | None, file: Path) -> None:
    """Write the study file of the version NAME, and say what of its results is missing here."""
    from widthlab.archive import contents, restoring

    archive = _archive(file)
    version = archive.find(name)
    results = archive.results(version)
    config = contents.config_of(results)
    target = out or Path(f"{version.study}@{name}.yaml")
    restoring.write_study(config, target)
    click.echo(f"wrote {target}, the study of version {version.id}")
    same_code = _same_code(version)
    known = frozenset(results["address"].values.tolist())
    try:
        found = restoring.needed(config, target, known)
    except WidthlabError as error:
        raise WidthlabError(
            f"the present code cannot plan {target}; {same_code}: {error}"
        ) from None
    for address in found.missing:
        anew = ", made anew" if address in found.anew else ""
        click.echo(f"missing{anew}  {address}")
    if found.anew:
        click.echo(
            f"{len(found.anew)} results would be made anew, since the code or the data has "
            f"changed; {same_code}"
        )
    if found.missing:
        click.echo(f"to make what is missing: {found.command}")
    else:
        click.echo("nothing of it is missing here")


def _same_code(version: Version) -> str:
    """Say where the code is that made a version."""
    if version.git_commit is None:
        return "which git commit had the very same code is not known"
    dirty = " (it had changes that were not committed)" if version.git_dirty else ""
    return f"for the very same code, check out git commit {version.git_commit}{dirty}"


COMMANDS = (versions, tag, diff, show, restore)
