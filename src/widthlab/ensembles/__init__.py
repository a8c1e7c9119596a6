"""Random networks sampled exactly in distribution without their weights."""

from widthlab.ensembles.sampling import Measure, sample

__all__ = ["Measure", "sample"]
