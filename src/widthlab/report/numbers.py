"""Numbers as a person writes them: four significant digits, proper minus signs, × 10ⁿ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from markupsafe import Markup

NOTHING = "–"
_THIN = "\u202f"


def number(value: Any, digits: int = 4) -> Markup:
    """Write a number with `digits` significant digits; None and NaN are a dash.

    Whole numbers keep all their digits, grouped in threes from 10 000 on. Text and booleans
    are passed through, escaped.
    """
    if value is None:
        return Markup(NOTHING)
    if isinstance(value, bool | np.bool_):
        return Markup("yes" if value else "no")
    if isinstance(value, int | np.integer):
        return Markup(_grouped(str(int(value))))
    if not isinstance(value, float | np.floating):
        return Markup.escape(value)
    real = float(value)
    if not math.isfinite(real):
        return Markup(NOTHING if math.isnan(real) else "∞" if real > 0 else "−∞")
    exponent = _exponent(real, digits)
    if -4 < exponent < 5:
        text = f"{real:.{max(0, digits - 1 - exponent)}f}"
        return Markup(_grouped(text.rstrip("0").rstrip(".") if "." in text else text))
    mantissa = f"{real / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
    return Markup(f"{_signed(mantissa)}{_power(exponent)}")


def measured(value: float | None, low: float | None, high: float | None) -> Markup:
    """Write a measured value with its interval: `4.95 [4.87, 5.03]`.

    The interval's half-width decides the decimals (two of its digits are shown); all three
    numbers share one power of ten. Without a finite interval it is the number alone.
    """
    if value is None or low is None or high is None:
        return number(value)
    numbers = (float(value), float(low), float(high))
    if not all(math.isfinite(part) for part in numbers) or high <= low:
        return number(float(value))
    exponent = _exponent(max(numbers, key=abs), 4)
    power = exponent if not -4 < exponent < 5 else 0
    parts = [part / 10.0**power for part in numbers]
    half = (parts[2] - parts[1]) / 2
    decimals = min(max(0, 1 - math.floor(math.log10(half))), 12)
    middle, left, right = (_grouped(f"{part:.{decimals}f}") for part in parts)
    return Markup(f"{middle} [{left},&nbsp;{right}]{_power(power) if power else ''}")


def duration(seconds: float | None) -> str:
    """Write a time in the two units that matter: `0.82 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _exponent(value: float, digits: int) -> int:
    """Return the decimal exponent of a value after rounding to `digits` digits."""
    return int(f"{value:.{digits - 1}e}".split("e")[1]) if value else 0


def _power(exponent: int) -> str:
    return f"&nbsp;×&nbsp;10<sup>{_signed(str(exponent))}</sup>"


def _signed(text: str) -> str:
    """Use the minus sign, and none on a rounded zero."""
    if text.startswith("-") and not text.strip("-0."):
        return text[1:]
    return text.replace("-", "−")


def _grouped(text: str) -> str:
    """Group the whole part in threes from five digits on."""
    text = _signed(text)
    sign, body = ("−", text[1:]) if text.startswith("−") else ("", text)
    whole, point, part = body.partition(".")
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", _THIN)
    return f"{sign}{whole}{point}{part}"
