"""How the experiments on deep residual networks tabulate roots of mean squares over seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

Array = NDArray[np.float64]

WORDS = {"embedding": "embedding h_L", "output": "output f"}
"""What is measured of a network, in words."""
ENDS = {"": "", "_low": ", lower end", "_high": ", upper end"}
"""Endings of the names of a value and of its 95 % interval, and of their descriptions."""


def said(text: str, units: str = "1") -> dict[str, str]:
    """Return the attributes of a variable."""
    return {"units": units, "description": text}


def ends(squares: Array) -> tuple[float, float, float]:
    """Return the root of the mean of squares (seeds,), and the ends of its 95 % interval.

    Student's, for seeds are few.
    """
    mean, count = float(squares.mean()), len(squares)
    half = float(student.ppf(0.975, count - 1) * squares.std(ddof=1) / np.sqrt(count))
    return (
        float(np.sqrt(mean)),
        float(np.sqrt(max(mean - half, 0.0))),
        float(np.sqrt(mean + half)),
    )
