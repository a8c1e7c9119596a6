"""Random networks sampled exactly in distribution without their weights."""

from widthlab.ensembles.sampling import sample

__all__ = ["sample"]
