"""The report: values in, one self-contained HTML page out.

The page loads nothing: style, drawings and tables are inline, downloads are data URIs. Rebuilt
from the same values it is the same bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from widthlab.claims import Claim
from widthlab.report.figures import Figure
from widthlab.report.numbers import duration, measured, number
from widthlab.report.style import css_variables
from widthlab.report.tables import NumberTable, strip

Status = Literal["failed", "missing", "diverged", "done"]
Kind = Literal["data", "checkpoint", "cell", "sweep"]

STATUSES: tuple[Status, ...] = ("failed", "missing", "diverged", "done")
"""The order of the table of results: what needs attention comes first."""

HOLES = ("failed", "missing")
COLLAPSE = 50
"""Tables of results with more rows than this are folded."""


@dataclass(frozen=True)
class CellRow:
    """One piece of work of the study: what became of it."""

    experiment: str
    label: str
    address: str
    status: Status
    detail: str
    """Why it failed, where it diverged; may be empty."""
    seconds: float | None
    device: str | None
    kind: Kind


@dataclass(frozen=True, eq=False)
class Section:
    """One experiment: its question, how it was measured, and what came out."""

    experiment: str
    title: str
    question: str
    """In plain words."""
    method: str
    """What was measured, over how many draws or seeds."""
    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()
    note: str | None = None
    """What the reader should know first, as `no results yet: 3 of 12 cells missing`."""


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from, and how to build the page again."""

    study: str
    digest: str
    git_commit: str | None
    git_dirty: bool
    versions: dict[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    wall_seconds: float | None = None
    """Computing time of all results together, not the time that the study was waited for."""
    command: str = ""
    """The shell command that rebuilds the page."""
    results: str = ""
    """The folder of the results."""
    config: str = ""
    """The text of the study."""


def render(
    title: str, sections: Sequence[Section], rows: Iterable[CellRow], provenance: Provenance
) -> str:
    """Return the report of a study as one HTML document.

    rows come in any order. Raises ValueError where two figures or two claims have the same
    identifier, since links would lead to the wrong one.
    """
    figures = [figure for section in sections for figure in section.figures]
    claims = [claim for section in sections for claim in section.claims]
    _unique("figure", [figure.id for figure in figures])
    _unique("claim", [claim.id for claim in claims])
    tallies = {
        section.experiment: Counter(claim.verdict for claim in section.claims)
        for section in sections
    }
    ordered = sorted(rows, key=_row_order)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            css=Markup(f"{css_variables()}\n{_stylesheet()}"),
            sections=sections,
            claims=claims,
            groups=[
                (section, tallies[section.experiment]) for section in sections if section.claims
            ],
            tallies=tallies,
            verdicts=Counter(claim.verdict for claim in claims),
            numbers={figure.id: position for position, figure in enumerate(figures, 1)},
            rows=ordered,
            statuses=Counter(row.status for row in ordered),
            holes=[row for row in ordered if row.status in HOLES],
            provenance=provenance,
            collapse=COLLAPSE,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("widthlab.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["measured"] = lambda claim: measured(claim.measured, claim.low, claim.high)
    environment.filters["strip"] = strip
    environment.filters["duration"] = duration
    environment.filters["numbers"] = lambda figure: NumberTable.of(figure.table)
    environment.filters["inline"] = Markup
    environment.filters["anchor"] = _anchor
    return environment


def _stylesheet() -> str:
    loader = PackageLoader("widthlab.report", "templates")
    return loader.get_source(Environment(autoescape=True), "style.css")[0]


def _anchor(text: str) -> str:
    """Make a name safe as an identifier; distinct safe names stay distinct."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda m: f".{ord(m[0]):x}.", text)


def _row_order(row: CellRow) -> tuple[Any, ...]:
    pieces = re.split(r"(\d+)", row.label)
    natural = [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]
    return STATUSES.index(row.status), row.experiment, row.kind, natural, row.address


def _unique(what: str, identifiers: list[str]) -> None:
    twice = sorted(name for name, count in Counter(identifiers).items() if count > 1)
    if twice:
        raise ValueError(f"{what} identifiers must be unique, but several are {', '.join(twice)}")
