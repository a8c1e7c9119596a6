"""Deep residual networks whose limit is a neural mean ODE, and that limit.

`train` runs finite networks, many seeds at once; `solve` is the limit by particles in depth,
`reference` the limit by large networks; `solve_lazy` is the ODE to which the limit tends as α grows
and `solve_tangent` that linearised in the stream too; `deviation` splits the distance to a limit
into its Euler and its sampling part.
"""

from widthlab.meanode.deviations import Deviation, deviation
from widthlab.meanode.lazy import solve_lazy
from widthlab.meanode.limit import solve
from widthlab.meanode.network import ResidualNetwork
from widthlab.meanode.problems import EmbeddingLoss, Problem, ReadoutLoss, embed, readout
from widthlab.meanode.reference import check_larger, reference
from widthlab.meanode.tangent import solve_tangent, stability_limit
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
    "solve_lazy",
    "solve_tangent",
    "stability_limit",
    "train",
]
