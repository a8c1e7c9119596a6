"""Versions and their differences, as people see them at the shell."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from widthlab.archive.differences import CellChange, ClaimChange, Differences
from widthlab.claims import Claim, Verdict
from widthlab.listing import COLOURS

if TYPE_CHECKING:
    from widthlab.archive.differences import Holdings
    from widthlab.archive.repository import Version

CELLS_SHOWN = 40
"""Cells that are named one by one; the rest is counted."""
VERDICTS: tuple[Verdict, ...] = ("holds", "fails", "undecided")


def print_versions(versions: Iterable[Version]) -> None:
    """Print the history, newest first: two lines for each version."""
    for version in versions:
        marks = ", ".join([*version.tags, f"git {_commit(version)}"])
        when = f"{version.written_at:%Y-%m-%d %H:%M}"
        click.echo(f"{when}  {version.id}  {version.study}  {marks}\n    {version.message}")


def print_version(version: Version, holdings: Holdings, statuses: Iterable[str]) -> None:
    """Print one version: what it is, what it holds, and its verdicts."""
    console = Console(soft_wrap=True, highlight=False)
    lines = {
        "version": version.id,
        "tags": ", ".join(version.tags) or "none",
        "study": version.study,
        "written": f"{version.written_at:%Y-%m-%d %H:%M:%S} UTC",
        "git commit": _commit(version, whole=True),
        "what changed": version.message,
        "results": ", ".join(f"{n} {word}" for word, n in sorted(Counter(statuses).items())),
        "claims": _verdicts(holdings.claims),
    }
    for word, value in lines.items():
        console.print(f"{word:13} {escape(value)}")
    cells = Counter(cell.experiment for cell in holdings.cells)
    for name, address in version.sweeps.items():
        claims = [claim for claim in holdings.claims if claim.experiment == name]
        console.print(f"{name}: {address}, {cells[name]} cells, {_verdicts(claims)}")


def print_differences(old: Version, new: Version, found: Differences) -> None:
    """Print what differs between two versions: flipped verdicts, numbers, cells, text."""
    console = Console()
    console.print(f"from {_named(old)}\n  to {_named(new)}", highlight=False)
    if not found:
        console.print("nothing differs")
        return
    if found.claims:
        console.print(_claims(found.claims))
    flipped = sum(change.change == "flipped" for change in found.claims)
    console.print(f"claims: {len(found.claims)} differ, {flipped} with another verdict")
    for name, (before, after) in found.sweeps.items():
        what = f"{before} → {after}" if before and after else f"{'added' if after else 'removed'}"
        console.print(f"experiment {name}: {what}", soft_wrap=True)
    _print_cells(console, found.cells)
    if found.text:
        table = Table(title="the study", title_justify="left")
        for heading in ("key", "old", "new"):
            table.add_column(heading)
        for key, (before, after) in found.text.items():
            table.add_row(escape(key), _text(before), _text(after))
        console.print(table)


def _claims(changes: Sequence[ClaimChange]) -> Table:
    table = Table(show_lines=True)
    for heading in ("verdict", "claim"):
        table.add_column(heading)
    for heading in ("old", "new", "difference", "in standard errors"):
        table.add_column(heading, justify="right")
    for change in changes:
        size = change.standard_errors
        known = change.difference is not None
        table.add_row(
            _verdict(change),
            f"{escape(change.claim.statement)}\n[dim]{escape(change.claim.id)}[/]",
            _measured(change.old),
            _measured(change.new),
            _number(change.difference, "+"),
            _number(size, "+", 2) if size is not None else "exact" if known else "–",
        )
    return table


def _print_cells(console: Console, changes: Sequence[CellChange]) -> None:
    kinds: dict[str, list[CellChange]] = {"added": [], "removed": [], "made anew": []}
    for change in changes:
        both = change.old is not None and change.new is not None
        kinds["made anew" if both else "added" if change.new else "removed"].append(change)
    count = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
    console.print(f"cells: {count}")
    for kind, found in kinds.items():
        for change in found[:CELLS_SHOWN]:
            label = f" ({change.cell.label})" if change.cell.label else ""
            words = f"{kind:10}{change.cell.address}{label}"
            if change.same_bytes is not None:
                words += f", {'the same' if change.same_bytes else 'other'} numbers"
            console.print(f"  {escape(words)}", soft_wrap=True, highlight=False)
        if len(found) > CELLS_SHOWN:
            console.print(f"  … and {len(found) - CELLS_SHOWN} more {kind}")


def _verdict(change: ClaimChange) -> str:
    sides = [f"[{COLOURS[c.verdict]}]{c.verdict}[/]" for c in (change.old, change.new) if c]
    if change.change == "flipped":
        return " → ".join(sides)
    return sides[0] if change.change == "changed" else f"{sides[0]} ({change.change})"


def _measured(claim: Claim | None) -> str:
    if claim is None:
        return "–"
    number = _number(claim.measured)
    if claim.low is None or claim.high is None:
        return number
    return escape(f"{number} [{_number(claim.low)}, {_number(claim.high)}]")


def _number(value: float | None, sign: str = "", digits: int = 4) -> str:
    return "–" if value is None else f"{value:{sign}.{digits}g}"


def _verdicts(claims: Iterable[Claim]) -> str:
    found = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)


def _text(value: Any) -> str:
    return "–" if value is None else escape(json.dumps(value, ensure_ascii=False))


def _commit(version: Version, whole: bool = False) -> str:
    if version.git_commit is None:
        return "unknown"
    commit = version.git_commit if whole else version.git_commit[:10]
    return f"{commit}, changed" if version.git_dirty else commit


def _named(version: Version) -> str:
    tags = f" ({', '.join(version.tags)})" if version.tags else ""
    when = f"{version.written_at:%Y-%m-%d %H:%M} UTC"
    return f"{version.id}{tags}, {version.study}, {when}, git {_commit(version)}"
