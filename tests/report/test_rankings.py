"""Ranked dot plots stand in order, keep what they cannot draw, and share colours over panels."""

import numpy as np
import pandas as pd
import pytest

from widthlab.report import plots
from widthlab.report.figures import canvas
from widthlab.report.rankings import ranked

ROWS = pd.DataFrame(
    {"who": ["b", "c", "a", "lost"], "x": [3.0, 1.0, 2.0, np.nan], "low": 0.5, "high": 4.0}
)
ENDS = {"name": "who", "x": "x", "low": "low", "high": "high", "label": "size"}


def names(axes):
    return [text.get_text() for text in axes.get_yticklabels()]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_rows_are_ranked_from_below_and_what_is_missing_keeps_its_name(scale):
    points = pd.DataFrame({"who": ["a", "a", "b", "lost"], "x": [1.5, 2.5, -1.0, np.nan]})
    with canvas() as page:
        (axes,) = page.axes
        ranked(axes, ROWS, **ENDS, points=points, scale=scale, reference=1.0)
        assert names(axes) == ["c", "a", "b", "lost"]
        middle = axes.get_lines()[-1]
        np.testing.assert_array_equal(middle.get_xdata(), [1.0, 2.0, 3.0])
        assert page.finish("one", "One", "A caption.", "What it shows.", ROWS).svg


def test_nothing_finite_says_so():
    for rows in (ROWS.iloc[3:], ROWS.iloc[:0]):
        with canvas() as page:
            (axes,) = page.axes
            ranked(axes, rows, **ENDS, scale="log")
            assert axes.texts[0].get_text() == "no finite values"
            assert page.finish("none", "None", "A caption.", "Nothing.", rows).svg


def test_an_order_gives_panels_with_gaps_the_same_colours():
    data = pd.DataFrame({"x": [1, 2, 1, 2], "y": [1.0, 2.0, np.nan, np.nan], "who": list("bbaa")})
    with canvas(ncols=2) as page:
        for axes, column in zip(page.axes, ("y", "x"), strict=True):
            plots.series(axes, data, x="x", y=column, hue="who", kind="category", order=["a", "b"])
        drawn = [
            {line.get_label(): line.get_color() for line in axes.get_lines()} for axes in page.axes
        ]
    assert drawn[0]["b"] == drawn[1]["b"] != drawn[1]["a"]
