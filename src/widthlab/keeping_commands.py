"""The commands that look after results: verify, gc and export."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from widthlab.errors import WidthlabError

if TYPE_CHECKING:
    from widthlab.archive.repository import Archive
    from widthlab.store.keeping import Deletion, Item, Surplus
    from widthlab.store.verifying import Verification
    from widthlab.study import Study

T = TypeVar("T")
SHOWN = 20
"""How many of a long list are named."""

study_option = click.option(
    "--study", default="config.yaml", show_default=True, type=Path, help="The study's file."
)


@click.command()
@click.argument("name", required=False)
@study_option
@click.option(
    "--set-aside",
    is_flag=True,
    help="Move damaged results aside, so that a run that needs them makes them again.",
)
def verify(name: str | None, study: Path, set_aside: bool) -> None:
    """Compare all results on disk with the digests in their manifests, and read the archive.

    All results in the study's folder, whatever study they are of; with the NAME of a version only
    what that version was made of. Of the archive, every number of the version, or of all tagged
    and newest versions, is read. Exits with 1 where something is damaged.
    """
    from widthlab.archive import upkeep
    from widthlab.store import verifying
    from widthlab.study import read

    parsed = read(study)
    results = Path(parsed.results)
    archive = _named(parsed, name) if name is not None else upkeep.existing(parsed)
    versions = [] if archive is None else upkeep.tags_and_heads(archive)
    addresses = None
    if archive is not None and name is not None:
        versions = [archive.find(name)]
        addresses = upkeep.addresses_of(archive, versions[0])
    found = verifying.verify(results, addresses, _progress("verifying results"))
    _print_found(found)
    if set_aside:
        _set_aside(found)
    problems: list[str] = []
    if archive is not None:
        track = _progress("reading the archive")
        problems = list(upkeep.unreadable(archive, versions, track))
        click.echo(f"archive: {len(versions)} versions read, {len(problems)} problems")
        for problem in problems:
            click.echo(f"  {problem}")
    if found.damaged and not set_aside:
        words = ["widthlab", "verify", *([name] if name else []), "--set-aside", *_study(study)]
        click.echo(
            f"to move them aside, so that a run that needs them makes them again: "
            f"{shlex.join(words)}"
        )
    if found.damaged or problems:
        raise SystemExit(1)


def _print_found(found: Verification) -> None:
    click.echo(
        f"results: {found.intact} intact, {len(found.damaged)} damaged, "
        f"{len(found.unfinished)} unfinished"
    )
    for damage in found.damaged:
        click.echo(f"  {damage.entry.name}: {damage.problem}")
    if found.absent:
        click.echo(f"not on disk: {len(found.absent)} (a run that needs them makes them again)")
        for address in found.absent:
            click.echo(f"  {address}")


def _set_aside(found: Verification) -> None:
    from widthlab.store import verifying

    for damage in found.damaged:
        try:
            for path in verifying.set_aside(damage):
                click.echo(f"moved to {damage.entry.name}/{path.name}")
        except WidthlabError as error:
            click.echo(f"  {error}")


@click.command()
@study_option
@click.option(
    "--keep-tags",
    is_flag=True,
    help="Of the archived versions, keep only what those with a tag were made of.",
)
@click.option(
    "--older-than",
    "days",
    default=1.0,
    show_default=True,
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="Keep what is younger, by the times of the file system; 0 keeps nothing for its age.",
)
@click.option("--delete", is_flag=True, help="Delete; without it nothing is changed.")
def gc(study: Path, keep_tags: bool, days: float, delete: bool) -> None:
    """Say which results nobody needs, and with --delete delete them.

    Needed is what the study, any other that ran on the same results folder in the last 30 days,
    an archived version or a running job was or is made of. All else in the folder can go: results,
    training states from which nobody will go on, damaged copies, leftovers of killed processes,
    receipts of batches. Downloads, logs and the archive stay.
    """
    from widthlab.archive import upkeep
    from widthlab.plan import Plan
    from widthlab.store import keeping, register
    from widthlab.study import read

    try:
        plan = Plan.of(read(study))
    except WidthlabError as error:
        raise WidthlabError(
            f"{error}\nNothing was deleted: gc must know the study to know what it needs; "
            "give its file with --study"
        ) from None
    archive = upkeep.existing(plan.study)
    if archive is None and plan.study.archive is not None:
        raise WidthlabError(
            f"there is no archive at {plan.study.archive}, so it is not known what versions need; "
            "nothing was deleted"
        )
    archived = upkeep.needed(archive, keep_tags) if archive is not None else set()
    others = list(register.entries(plan.results))
    found = keeping.surplus(plan.results, keeping.Needs.of(plan, archived, others), days)
    _print_surplus(found, plan.study, archive, keep_tags)
    if delete:
        done = keeping.delete(_progress("deleting")(found.items))
        _print_deletion(done)
        if done.skipped:
            raise SystemExit(1)
    elif found.items:
        words = ["widthlab", "gc", *(["--keep-tags"] if keep_tags else [])]
        words += ["--older-than", f"{days:g}", "--delete", *_study(study)]
        click.echo(f"nothing was deleted; to do so: {shlex.join(words)}")


def _print_surplus(found: Surplus, study: Study, archive: Archive | None, keep_tags: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from widthlab.store.keeping import total

    kept = "tagged versions" if keep_tags else "all archived versions"
    versions = kept if archive is not None else "no versions, for there is no archive yet"
    click.echo(
        f"{study.results}: kept is what the study {study.name} and others that ran here lately "
        f"need, {versions}, {len(found.running)} running jobs, and what is young ({found.young})"
    )
    if found.guarded:
        click.echo(
            f"{len(found.guarded)} results stay because a running job of another study may read "
            "them"
        )
    table = Table()
    table.add_column("what")
    for heading in ("how many", "files", "bytes"):
        table.add_column(heading, justify="right")
    kinds: dict[str, list[Item]] = {}
    for item in found.items:
        kinds.setdefault(item.kind, []).append(item)
    sizes = {kind: total(items) for kind, items in kinds.items()}
    for kind, size in sorted(sizes.items(), key=lambda pair: -pair[1].bytes):
        table.add_row(kind, f"{len(kinds[kind]):,}", f"{size.files:,}", f"{size.bytes:,}")
    if found.items:
        Console().print(table)
    for item in found.items[:SHOWN]:
        click.echo(f"{item.size.bytes:>16,}  {item.path}")
    if len(found.items) > SHOWN:
        click.echo(f"{'':16}  and {len(found.items) - SHOWN:,} smaller ones")
    click.echo(f"can be freed: {found.size.bytes:,} bytes in {found.size.files:,} files")


def _print_deletion(done: Deletion) -> None:
    from widthlab.store.keeping import total

    freed = total(done.deleted)
    click.echo(f"freed: {freed.bytes:,} bytes in {freed.files:,} files")
    for item, reason in done.skipped:
        click.echo(f"kept {item.path}: {reason}")


@click.command()
@click.argument("name")
@study_option
@click.option("--with-checkpoints", is_flag=True, help="Add the weights that are on disk.")
@click.option(
    "--out", type=Path, metavar="FILE.zip", help="The file; <study>-<NAME>.zip if not given."
)
def export(name: str, study: Path, with_checkpoints: bool, out: Path | None) -> None:
    """Write the version NAME as one RO-Crate, a zip that is read without widthlab.

    It holds the sweeps in zarr, the claims, the study, the table of all results, manifests, the
    environment and the report. Author and licence are those in CITATION.cff of the checkout.
    """
    from widthlab.export import export as write_crate
    from widthlab.study import read

    parsed = read(study)
    archive = _named(parsed, name)
    done = write_crate(archive, name, Path(parsed.results), out, with_checkpoints=with_checkpoints)
    click.echo(done.path)
    if done.without_manifest:
        click.echo(f"{done.without_manifest} results are not on disk: without their manifests")
    if done.no_page is not None:
        click.echo(f"the claims are in it, but not the report's page: {done.no_page}")
    if done.missing:
        click.echo(f"{len(done.missing)} checkpoints are not in it:")
        for address, problem in sorted(done.missing.items()):
            click.echo(f"  {address}: {problem}")
        raise SystemExit(1)


COMMANDS = (verify, gc, export)


def _named(study: Study, name: str) -> Archive:
    """Open the archive in which a version was named; raises WidthlabError where there is none."""
    from widthlab.archive.repository import Archive

    archive = Archive.open(study)
    archive.find(name)
    return archive


def _study(study: Path) -> list[str]:
    return [] if str(study) == "config.yaml" else ["--study", str(study)]


def _progress(words: str) -> Callable[[list[T]], Iterable[T]]:
    """Return what yields a list's items with a line of progress, on a terminal only."""

    def track(items: list[T]) -> Iterable[T]:
        from rich.console import Console
        from rich.progress import track as rich_track

        console = Console(stderr=True)
        return rich_track(
            items, words, console=console, transient=True, disable=not console.is_terminal
        )

    return track
