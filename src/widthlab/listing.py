"""What people ask for at the shell: the plan, the results and the claims, as tables."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from widthlab import reporting
from widthlab.batches import Batch
from widthlab.costs import START_SECONDS
from widthlab.plan import Plan, Work
from widthlab.study import Study

STAGES = {"data": "data sets", "train": "checkpoints", "extract": "cells", "sweep": "sweeps"}
COLOURS = {
    "holds": "green",
    "fails": "red",
    "undecided": "yellow",
    "done": "green",
    "diverged": "yellow",
    "failed": "red",
    "missing": "dim",
}


def print_plan(study: Study) -> None:
    """Print what a study will run, by stage: how much is done, and what the rest will cost."""
    plan = Plan.of(study)
    title = f"study {study.name}: results in {study.results}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("all", "done", "jobs", "core", "GPU", "memory", "disk", "files"):
        table.add_column(heading, justify="right", no_wrap=True)
    every = list(plan.all_work())
    for stage, words in STAGES.items():
        table.add_row(words, *_row(plan, [work for work in every if work.stage == stage]))
    table.add_section()
    table.add_row("all", *_row(plan, every))
    console = Console()
    console.print(table)
    most = max(work.cost.files for work in plan.cells.values())
    console.print(
        "Jobs and what follows them are of what is still to do. To a scheduler each job of "
        "checkpoints, cells and sweeps is one submission. Times (on one core, or of training and "
        "measuring on one GPU), memory (of the largest job), disk and files are estimates; a cell "
        f"has about {most} files at most."
    )


def _row(plan: Plan, works: list[Work]) -> list[str]:
    left = [work for work in works if not _done(plan, work)]
    on_gpu = [work for work in left if work.stage in ("train", "extract")]
    jobs = _jobs(plan, left)
    memory = max((_memory_mb(plan, job) for job in jobs), default=None)
    core = START_SECONDS * len(jobs) + sum(work.cost.core_seconds for work in left)
    gpu = START_SECONDS * len(_jobs(plan, on_gpu)) + sum(w.cost.gpu_seconds for w in on_gpu)
    return [
        str(len(works)),
        str(len(works) - len(left)),
        str(len(jobs)),
        _duration(core),
        _duration(gpu) if on_gpu else "–",
        f"{memory / 1000:.1f} GB" if memory else "–",
        _bytes(sum(work.cost.disk for work in left)),
        f"{sum(work.cost.files for work in left):,}",
    ]


def _jobs(plan: Plan, works: Iterable[Work]) -> list[Batch]:
    """Return the jobs that make these works."""
    jobs = {job.name: job for work in works for job in [plan.batch_of[work.address]]}
    return list(jobs.values())


def _memory_mb(plan: Plan, job: Batch) -> int:
    return job.memory_mb(getattr(plan.study.resources, job.stage))


def _done(plan: Plan, work: Work) -> bool:
    return reporting.status_of(plan.results, work)[0] in ("done", "diverged")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def print_results(study: Study, missing: bool) -> None:
    """Print every result of a study with its status, a line each."""
    plan = Plan.of(study)
    for work in plan.all_work():
        status, detail = reporting.status_of(plan.results, work)
        if missing and status in ("done", "diverged"):
            continue
        words = f"{status:9}{work.stage:9}{work.address}{'  ' if detail else ''}{detail}"
        click.echo(words)


def print_claims(study: Study, as_json: bool) -> None:
    """Print the claims of a study's report: for people, or as the JSON of claims.json."""
    from widthlab.claims import to_json

    claims = reporting.claims(study)
    if as_json:
        click.echo(to_json(claims), nl=False)
        return
    table = Table(show_lines=True)
    for heading in ("verdict", "claim", "predicted", "measured"):
        table.add_column(heading, justify="right" if heading == "predicted" else "left")
    for claim in claims:
        colour = COLOURS[claim.verdict]
        table.add_row(
            f"[{colour}]{claim.verdict}[/]",
            f"{claim.statement}\n[dim]{claim.id}: {claim.reason}[/]",
            _number(claim.predicted),
            f"{_number(claim.measured)} [{_number(claim.low)}, {_number(claim.high)}]".replace(
                "[", r"\["
            ),
        )
    Console().print(table)
    found = [claim.verdict for claim in claims]
    click.echo(", ".join(f"{found.count(v)} {v}" for v in ("holds", "fails", "undecided")))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
