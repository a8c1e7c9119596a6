"""The command line: one command per stage, which the rules call, and those that people type."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from widthlab import __version__, certify_command, keeping_commands, version_commands
from widthlab.errors import WidthlabError
from widthlab.plan import Stage

if TYPE_CHECKING:
    from widthlab.plan import Work
    from widthlab.study import Study


class _Group(click.Group):
    """Commands whose user errors are one message, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except WidthlabError as error:
            click.echo(f"Error: {error}", err=True)
            raise SystemExit(1) from None
        except BrokenPipeError:
            # The reader of a pipe (head, less) has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None


@click.group(cls=_Group, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="widthlab")
def main() -> None:
    """A laboratory for finite-width effects in deep residual networks."""


# ── the stages, as the rules call them ──────────────────────────────────────────────────────


def _stage_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--spec", help="What to make, as JSON."),
        click.option("--address", help="The address that the plan gave it; checked if given."),
        click.option("--study", help="With --batch: the study as JSON."),
        click.option("--batch", help="Name of the study's job of many pieces of work."),
        click.option("--results", default="results", show_default=True, type=Path),
        click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"])),
        click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1)),
        click.option("--log", type=Path, help="A file for all that it says but errors."),
    ):
        function = option(function)
    return function


def _stage(
    stage: Stage,
    spec: str | None,
    address: str | None,
    study: str | None,
    batch: str | None,
    results: Path,
    device: str,
    threads: int,
    log: Path | None,
) -> None:
    # Before torch is imported: more threads than cores is very slow.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    from widthlab import stages
    from widthlab.interruption import RETRY, Interrupted, interruptible

    with _log_to(log) as say:
        say(shlex.join(["widthlab", *sys.argv[1:]]))
        works = _works(stage, spec, address, study, batch)
        try:
            with interruptible(say):
                stages.make_all(results, works, device, say)
        except Interrupted as error:
            say(str(error))
            raise SystemExit(RETRY) from None


def _works(
    stage: Stage, spec: str | None, address: str | None, study: str | None, batch: str | None
) -> tuple[Work, ...]:
    """Return the works that a stage's command asks for."""
    from widthlab import stages
    from widthlab.plan import Plan
    from widthlab.study import parse

    if batch is not None and study is not None:
        return Plan.of(parse(_object("--study", study), "--study")).batch(stage, batch).works
    if spec is None:
        raise WidthlabError("give --spec, or --study and --batch: the lines in logs have them")
    work = stages.work_of(stage, _object("--spec", spec))
    if address is not None and address != work.address:
        raise WidthlabError(
            f"{address} is now {work.address}: the code or the specification has changed since "
            "the plan was made; run snakemake again"
        )
    return (work,)


def _object(option: str, text: str) -> dict[str, Any]:
    """Return the JSON object of an option."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise WidthlabError(f"{option} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise WidthlabError(f"{option} must be a JSON object in braces, not {text[:50]!r}")
    return found


@contextmanager
def _log_to(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Yield what writes a line to a log, or to the terminal where there is none."""
    if path is None:
        yield lambda line: print(line, flush=True)
        return
    file: TextIO | None = None

    def give_up(error: OSError) -> None:
        nonlocal file
        file = None
        words = f"cannot write the log {path}: {error.strerror}; what it would say follows"
        click.echo(f"Warning: {words}", err=True)

    def say(line: str) -> None:
        if file is not None:
            try:
                print(line, file=file, flush=True)
                return
            except OSError as error:
                give_up(error)
        print(line, flush=True)

    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w", encoding="utf-8")
            # What a full disk did not take would be tried again.
            stack.callback(_close, file)
        except OSError as error:
            give_up(error)
        yield say


def _close(file: TextIO) -> None:
    with suppress(OSError):
        file.close()


@main.command()
@_stage_options
def data(**options: Any) -> None:
    """Prepare a data set."""
    _stage("data", **options)


@main.command()
@_stage_options
def train(**options: Any) -> None:
    """Train one network to a checkpoint."""
    _stage("train", **options)


@main.command()
@_stage_options
def extract(**options: Any) -> None:
    """Measure one cell."""
    _stage("extract", **options)


@main.command()
@_stage_options
def sweep(**options: Any) -> None:
    """Collect the cells of an experiment."""
    _stage("sweep", **options)


_SPEC = click.option("--spec", help="The study as JSON, where it is not the file's own.")
_STUDY = click.argument("study", default="config.yaml", type=Path)


@main.command()
@_SPEC
@click.option("--version", help="Of this version in the archive: its tag, or how its id begins.")
@_STUDY
def report(spec: str | None, version: str | None, study: Path) -> None:
    """Build the report of a STUDY (config.yaml) from what is finished; computes no cell.

    Missing and failed cells are listed as holes. With --version, the report is that of a version
    in the study's archive, from the archive alone.
    """
    parsed = _study(spec, study)
    if version is not None:
        from widthlab.archive import pages

        click.echo(pages.publish(parsed, version))
        return
    from widthlab import reporting

    click.echo(reporting.publish(parsed, str(study)))


@main.command()
@_SPEC
@_STUDY
def archive(spec: str | None, study: Path) -> None:
    """Commit the sweeps of a STUDY (config.yaml) to its archive, unless they are in it."""
    from widthlab.archive import receipts
    from widthlab.plan import Plan

    version, new = receipts.archive(Plan.of(_study(spec, study)), click.echo)
    what = f"is new: {version.message}" if new else "holds these sweeps already"
    click.echo(f"version {version.id} of {version.study} {what}")


def _study(spec: str | None, file: Path) -> Study:
    from widthlab.study import parse, read

    return parse(_object("--spec", spec), str(file)) if spec else read(file)


# ── the commands that people type ───────────────────────────────────────────────────────────


@main.command()
@click.argument("study", default="config.yaml", type=Path)
def plan(study: Path) -> None:
    """Say what a STUDY will run: cells, how many are done, work, memory and files."""
    from widthlab import listing
    from widthlab.study import read

    listing.print_plan(read(study))


@main.command()
@click.argument("study", default="config.yaml", type=Path)
@click.option("--missing", is_flag=True, help="Only what is not finished.")
def ls(study: Path, missing: bool) -> None:
    """List all results of a STUDY with their status."""
    from widthlab import listing
    from widthlab.study import read

    listing.print_results(read(study), missing)


@main.command()
@click.argument("study", default="config.yaml", type=Path)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def claims(study: Path, as_json: bool) -> None:
    """Show the claims of a STUDY's report with their verdicts."""
    from widthlab import listing
    from widthlab.study import read

    listing.print_claims(read(study), as_json)


@main.command()
@click.argument("study", default="config.yaml", type=Path)
def where(study: Path) -> None:
    """Print where the report of a STUDY is."""
    from widthlab import reporting
    from widthlab.study import read

    click.echo(reporting.report_folder(read(study)) / "index.html")


@main.command()
def schema() -> None:
    """Print the JSON schema of a study."""
    from widthlab.study import schema as study_schema

    click.echo(json.dumps(study_schema(), indent=2))


for _command in (
    *version_commands.COMMANDS,
    *keeping_commands.COMMANDS,
    *certify_command.COMMANDS,
):
    main.add_command(_command)
