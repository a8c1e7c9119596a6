"""What the sweep of depth scales holds: names, units and descriptions of its variables."""

from __future__ import annotations

BY_LAYER = {
    "signal": "mean over draws of the signal variance q",
    "signal_error": "standard error of signal",
    "log_variance": "variance over draws of log(q_l / q_0)",
    "correlation": "mean over draws and pairs of the correlation c of two inputs",
    "correlation_error": "standard error of correlation",
    "signal_distance": "|q − q*| of the mean q (q itself where there is no limit)",
    "signal_distance_error": "standard error of signal_distance",
    "correlation_distance": "|c − c*| of mean correlations, root mean square over pairs",
    "correlation_distance_error": "standard error of correlation_distance",
    "correlation_spread": "standard deviation over draws of c (root mean square over pairs)",
    "log_decorrelation": "mean over draws and pairs of log(1 − c)",
    "log_decorrelation_error": "standard error of log_decorrelation",
}
INFINITE = {
    "infinite_signal": "q at infinite width, from q_0 = 1",
    "infinite_correlation": "c at infinite width, averaged over pairs",
    "infinite_signal_distance": "signal_distance at infinite width",
    "infinite_correlation_distance": "correlation_distance at infinite width",
    "infinite_log_decorrelation": "log(1 − c) at infinite width, averaged over pairs",
}
BY_WIDTH = {
    "variance_scale": ("layers", "ξ_q as fitted; its interval allows for transient and 1/N"),
    "correlation_scale": ("layers", "ξ_c as fitted (rates averaged over pairs), likewise"),
    "felt": ("layers", "depth at which finite width is felt by a pair: 1 − c typically 10 % off"),
    "signal_survival": ("layers", "layer at which signal_distance has fallen to 1/e"),
    "correlation_survival": ("layers", "layer at which correlation_distance has fallen to 1/e"),
}
"""Depths by width; survivals, those of the mean curve, also at infinite width."""
THEORY = {
    "limit_signal": ("1", "q*, to which q goes"),
    "limit_correlation": ("1", "c*, to which c of carried signals goes"),
    "theory_variance_scale": ("layers", "ξ_q of theory, infinite at criticality"),
    "theory_correlation_scale": ("layers", "ξ_c of theory, infinite at criticality"),
    "infinite_signal_survival": ("layers", "signal_survival at infinite width"),
    "infinite_correlation_survival": ("layers", "correlation_survival at infinite width"),
}
