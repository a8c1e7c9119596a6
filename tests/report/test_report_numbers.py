"""Numbers on the page: four digits, a shared power of ten, dashes for what is not there."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthlab.report.numbers import duration, measured, number
from widthlab.report.tables import strip


def parse(markup: str) -> float:
    """Read a printed number back, as a person would."""
    text = markup.replace("\u202f", "").replace("−", "-").replace("&nbsp;", "")
    text = re.sub(r"×10<sup>(-?\d+)</sup>", r"e\1", text)
    return float(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (np.float32("nan"), "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (0.0, "0"),
        (-0.0, "0"),
        (5, "5"),
        (np.int64(5), "5"),
        (1797, "1797"),
        (50000, "50\u202f000"),
        (-1234567, "−1\u202f234\u202f567"),
        (0.39062, "0.3906"),
        (-0.98, "−0.98"),
        (9999.96, "10\u202f000"),
        (0.0001234, "1.234&nbsp;×&nbsp;10<sup>−4</sup>"),
        (-6.02214e23, "−6.022&nbsp;×&nbsp;10<sup>23</sup>"),
        (9.9999e-5, "1&nbsp;×&nbsp;10<sup>−4</sup>"),
        (True, "yes"),
        (np.False_, "no"),
        ("a<b", "a&lt;b"),
    ],
)
def test_number_is_written_as_a_person_would(value: object, text: str) -> None:
    assert number(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300) | st.floats(-1e300, -1e-300))
def test_number_keeps_four_significant_digits(value: float) -> None:
    # half a unit of the fourth digit, of a mantissa of at least 1
    assert parse(number(value)) == pytest.approx(value, rel=5.0001e-4, abs=0)


def test_interval_decides_the_decimals_and_shares_the_power() -> None:
    assert measured(4.9531, 4.8712, 5.0349) == "4.953 [4.871,&nbsp;5.035]"
    assert measured(0.83, 0.41, 1.27) == "0.83 [0.41,&nbsp;1.27]"
    assert measured(-0.98, -1.4, 0.2) == "−0.98 [−1.40,&nbsp;0.20]"
    assert measured(1234.0, 1100.0, 1400.0) == "1234 [1100,&nbsp;1400]"
    assert measured(2.5e-7, 1.6e-7, 3.4e-7) == (
        "2.50 [1.60,&nbsp;3.40]&nbsp;×&nbsp;10<sup>−7</sup>"
    )
    assert measured(1000.0004, 1000.0001, 1000.0007) == ("1000.00040 [1000.00010,&nbsp;1000.00070]")


@pytest.mark.parametrize("ends", [(None, None), (math.nan, 2.0), (1.5, 1.5), (2.0, 1.0)])
def test_without_a_proper_interval_the_value_stands_alone(ends: tuple[float, float]) -> None:
    assert measured(1.5, *ends) == "1.5"


def test_nothing_measured_is_a_dash() -> None:
    assert measured(None, None, None) == measured(math.nan, 0.0, 1.0) == "–"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_interval_read_back_is_the_interval(middle: float, below: float, above: float) -> None:
    low, high = middle - below, middle + above
    text = measured(middle, low, high)
    body, _, power = text.partition("]")
    numbers = re.findall(r"[−\d.\u202f]+", body)
    scale = parse("1" + power) if power else 1.0
    read = [parse(part) * scale for part in numbers]
    assert len(read) == 3
    # two digits of the half-width: an error of at most 5 % of it, or of the 12th decimal
    tolerance = 0.051 * (high - low) / 2 + 1e-12 * max(abs(low), abs(high), 1)
    assert np.abs(np.array(read) - [middle, low, high]).max() <= tolerance


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.123, "0.12 s"),
        (59.4, "59 s"),
        (59.9, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500.2, "2 h 5 min"),
        (3599.9, "1 h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


class Measured:
    def __init__(self, predicted: float | None, measured: float | None, low: float, high: float):
        self.predicted, self.measured, self.low, self.high = predicted, measured, low, high


def test_strip_places_the_prediction_relative_to_the_interval() -> None:
    inside = strip(Measured(0.5, 0.4, 0.0, 1.0), width=110)
    assert 'd="M5.0 7H105.0"' in inside
    assert 'd="M55.0 1V13"' in inside
    assert 'cx="45.0"' in inside
    outside = strip(Measured(2.0, 0.5, 0.0, 1.0), width=110)
    assert 'd="M5.0 7H55.0"' in outside
    assert 'd="M105.0 1V13"' in outside


def test_strip_is_empty_without_an_interval() -> None:
    assert strip(Measured(1.0, None, 0.0, 1.0)) == ""
    assert strip(Measured(1.0, 0.5, math.nan, 1.0)) == ""
    assert strip(Measured(1.0, 1.0, 1.0, 1.0)) == ""
    assert "tick" not in strip(Measured(None, 0.5, 0.0, 1.0))
