"""Signal variance at initialisation, against depth and width.

Networks are drawn at random and run on a few real inputs, scaled to |x|² = d. The signal
variance q_l = |h_l|²/N of the carried signal is compared with the block law of infinite width,
its logarithm with the exact laws of finite width, and its second moment with the exact ReLU and
linear products. Sources: Hanin & Nica (2020); Roberts, Yaida & Hanin (2022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from widthlab.costs import Cost, input_shape, size
from widthlab.experiments.base import Grid, Inputs, Measured, Perceptrons, Request
from widthlab.specs import WHOLE, Count, DataSet, Digits, Network, Perceptron, Spec, Unit

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.report.figures import Figure

TITLE = "Signal variance at initialisation"
QUESTION = (
    "How does the variance of a random network's signal move with depth, and how much of that "
    "is an effect of finite width?"
)


class Section(Spec):
    """Grid of the variance experiment."""

    models: Perceptrons
    """Architectures to draw, by the label that figures show."""
    width: Annotated[Grid, Unit("neurons")]
    """Widths N to sweep."""
    depth: Annotated[Count, Unit("layers")]
    """Depth L; every layer up to it is measured."""
    draws: Annotated[int, Field(ge=8), WHOLE, Unit("networks")] = 400
    """Random networks drawn at every width."""
    inputs: Annotated[int, Field(ge=2), WHOLE, Unit("samples")] = 4
    """Training inputs that run through every network."""
    data: DataSet = Digits()
    """Where the inputs come from."""


class Cell(Spec):
    """One architecture at one width."""

    architecture: Perceptron
    width: Count
    depth: Count
    draws: Count
    inputs: Count
