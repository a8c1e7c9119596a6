"""What people ask for at the shell: the plan, the results and the claims, as tables."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from widthlab import reporting
from widthlab.costs import START_SECONDS, Cost, memory_mb
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
    rows = [
        (words, stage, [w for w in every if w.stage == stage]) for stage, words in STAGES.items()
    ]
    for words, _, works in rows:
        table.add_row(words, *_row(plan, works))
    table.add_section()
    table.add_row("all", *_row(plan, every))
    console = Console()
    console.print(table)
    most = max(work.cost.files for work in plan.cells.values())
    console.print(
        "Jobs and what follows them are of what is still to do. Each job is one submission to a "
        "scheduler. Times (on one core, or of training and measuring on one GPU), memory (of the "
        f"largest job), disk and files are estimates; a cell has about {most} files at most."
    )


def _row(plan: Plan, works: list[Work]) -> list[str]:
    left = [work for work in works if not _done(plan, work)]
    jobs = {plan.batch_of[work.address].name: plan.batch_of[work.address] for work in left}
    costs = [work.cost for work in left]
    starting = START_SECONDS * len(jobs)
    on_gpu = [work for work in left if work.stage in ("train", "extract")]
    starting_gpu = START_SECONDS * len({plan.batch_of[w.address].name for w in on_gpu})
    return [
        str(len(works)),
        str(len(works) - len(left)),
        str(len(jobs)),
        _duration(starting + sum(cost.core_seconds for cost in costs)),
        _duration(starting_gpu + sum(w.cost.gpu_seconds for w in on_gpu)) if on_gpu else "–",
        f"{max(memory_mb([cost]) for cost in costs) / 1000:.1f} GB" if costs else "–",
        _bytes(sum(cost.disk for cost in costs)),
        f"{_files(costs):,}",
    ]


def _files(costs: Iterable[Cost]) -> int:
    return sum(cost.files for cost in costs)


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
