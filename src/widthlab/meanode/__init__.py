"""Deep residual networks whose limit is a neural mean ODE, and that limit.

`train` runs finite networks, many seeds at once; `solve` is the limit by particles in depth,
`reference` the limit by large networks, and `solve_tangent` that of the lazy regime; `deviation`
splits the distance to a limit into its Euler and its sampling part.
"""

from widthlab.meanode.deviations import Deviation, deviation
from widthlab.meanode.limit import solve
from widthlab.meanode.network import ResidualNetwork
from widthlab.meanode.problems import EmbeddingLoss, Problem, ReadoutLoss, embed, readout
from widthlab.meanode.reference import check_larger, reference
from widthlab.meanode.tangent import solve_tangent
from widthlab.meanode.training import train

__all__ = [
    "Deviation",
    "EmbeddingLoss",
    "Problem",
    "ReadoutLoss",
    "ResidualNetwork",
    "check_larger",
    "deviation",
    "embed",
    "readout",
    "reference",
    "solve",
    "solve_tangent",
    "train",
]
