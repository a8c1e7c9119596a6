"""widthlab: a laboratory for finite-width effects in deep residual networks."""

__version__ = "0.1.0"
