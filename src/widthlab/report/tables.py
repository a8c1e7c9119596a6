"""Small inline pieces of the page: a figure's numbers, and the picture of an interval."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Protocol

import pandas as pd
from markupsafe import Markup

from widthlab.report.numbers import number

SHOWN_ROWS = 200


@dataclass(frozen=True)
class NumberTable:
    """The numbers behind a figure, as rows to read and as a CSV to take along."""

    columns: list[str]
    rows: list[list[Markup]]
    """The first SHOWN_ROWS rows, formatted."""
    numeric: list[bool]
    total: int
    csv: str
    """All rows at full precision, as a data URI."""

    @classmethod
    def of(cls, table: pd.DataFrame) -> NumberTable:
        """Format a tidy table; its index is left out."""
        shown = table.head(SHOWN_ROWS)
        columns = [[number(_plain(value)) for value in shown[name]] for name in shown]
        text = table.to_csv(index=False, lineterminator="\n")
        encoded = base64.b64encode(text.encode()).decode()
        return cls(
            columns=[str(name) for name in table],
            rows=[list(row) for row in zip(*columns, strict=True)],
            numeric=[pd.api.types.is_numeric_dtype(table[name]) for name in table],
            total=len(table),
            csv=f"data:text/csv;charset=utf-8;base64,{encoded}",
        )


def _plain(value: object) -> object:
    return None if value is pd.NA or value is pd.NaT else value


class Interval(Protocol):
    """What a picture of an interval needs of a claim."""

    @property
    def predicted(self) -> float | None: ...  # noqa: D102
    @property
    def measured(self) -> float | None: ...  # noqa: D102
    @property
    def low(self) -> float | None: ...  # noqa: D102
    @property
    def high(self) -> float | None: ...  # noqa: D102


def strip(claim: Interval, width: int = 132, height: int = 14) -> Markup:
    """Draw the measured interval as a line with a dot, and the prediction as a tick across it.

    Empty where the interval or the measured value is missing. The numbers stand beside it, so
    it is hidden from screen readers.
    """
    ends = (claim.low, claim.high, claim.measured)
    if any(value is None or not math.isfinite(value) for value in ends):
        return Markup("")
    low, high, middle = (float(value) for value in ends if value is not None)
    marks = [low, high, middle]
    predicted = claim.predicted
    if predicted is not None and math.isfinite(predicted):
        marks.append(predicted)
    left, right = min(marks), max(marks)
    if right <= left:
        return Markup("")
    inset = 5

    def place(value: float) -> str:
        return f"{inset + (width - 2 * inset) * (value - left) / (right - left):.1f}"

    centre = f"{height / 2:g}"
    tick = ""
    if len(marks) == 4:
        at = place(marks[3])
        tick = f'<path class="tick" d="M{at} 1V{height - 1}"/>'
    return Markup(
        f'<svg class="strip" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<path class="range" d="M{place(low)} {centre}H{place(high)}"/>{tick}'
        f'<circle cx="{place(middle)}" cy="{centre}" r="3.2"/></svg>'
    )
