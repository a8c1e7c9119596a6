"""Deep residual networks whose limit is a neural mean ODE, and that limit."""

from widthlab.meanode.network import ResidualNetwork
from widthlab.meanode.problems import EmbeddingLoss, Problem, ReadoutLoss, embed, readout
from widthlab.meanode.training import train

__all__ = [
    "EmbeddingLoss",
    "Problem",
    "ReadoutLoss",
    "ResidualNetwork",
    "embed",
    "readout",
    "train",
]
