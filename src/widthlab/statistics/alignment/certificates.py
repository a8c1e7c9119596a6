"""The result of `estimates.certificate`: numbers, limits, controls, and a table to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from widthlab.errors import WidthlabError
from widthlab.scaling import Interval
from widthlab.statistics.alignment.limits import Jackknife
from widthlab.theory.certificate import AlignmentMoments, samples_needed

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Control:
    """What the same pipeline says of gradients whose signs were flipped at random, many times.

    `flipped` are the gradients themselves, noise with second moment Σ + μμ'; `centred` have had
    their mean taken off first, noise with the covariance alone. (Without flips their sample mean
    would be exactly 0, and the control could not fail.)
    """

    name: str
    certified: float
    """Share of flips that get a bound below 1, by the limits and by comparison with other flips:
    the measured error rate, which should be at most the stated one up to chance (of 199 flips,
    against the same 199 others: 2.5 ± 1.6 %, where the comparison alone decides)."""
    limit_alone: float
    """Share of flips in which all estimates and the signal's lower limit are positive: what would
    be found without the comparison."""
    point_estimates: float
    """Share of flips on which all unbiased estimates are positive: what point estimates alone
    would have made a bound of."""
    plug_in_d_align: float
    """Median of the published plug-in d_align on noise: what it reports where there is nothing."""
    plug_in_b_exact: Array
    """Median of the plug-in B_exact on noise, by budget."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What activation gradients at one point tell, with the evidence.

    Intervals have two limits of error rate (1 − level)/2 each. Bounds have shape (budgets,); those
    that end in `_limit` are upper confidence limits, 1 where there is none, and they are
    what may be relied on.
    """

    laws: str
    samples: tuple[int, int]
    """Training and test samples that were measured."""
    level: float
    flips: int
    budgets: tuple[tuple[int, int], ...]
    """(M, K): samples of the step and of the test."""
    pools: tuple[float, float]
    signal: Interval
    """|μ|², or m₁·m₂."""
    train_spread: Interval
    """μ'Σμ, or m₂'Σ₁m₂."""
    test_spread: Interval
    """μ'Σμ, or m₁'Σ₂m₁."""
    noise: Interval
    """tr Σ², or tr Σ₁Σ₂."""
    train_trace: Interval
    """tr Σ of the training samples' law."""
    test_trace: Interval
    """tr Σ of the test samples' law."""
    d_parallel: Interval
    d_2: Interval
    d_align: Interval
    b_exact: Array
    b_exact_limit: Array
    b_align: Array
    b_align_limit: Array
    plug_in: dict[str, float]
    """The published, biased estimates of the same moments and dimensions."""
    plug_in_b_exact: Array
    plug_in_b_align: Array
    p_value: float
    """Of the signal, against sign-flipped gradients."""
    reason: str
    """Why there is no bound below 1; empty where there is one."""
    controls: tuple[Control, ...]
    jackknife: Jackknife
    """The unbiased moments with their covariance, from which the limits are."""

    @property
    def has_bound(self) -> bool:
        """Whether any budget has an upper confidence limit below 1."""
        return not self.reason

    def meets(self, target: float) -> NDArray[np.bool_]:
        """Say by budget whether the upper confidence limit of B_exact is at most `target`."""
        return np.asarray(self.b_exact_limit <= target) & self.has_bound

    def needed(self, target: float, *, cautious: bool = True) -> int | None:
        """Return M = K that brings B_exact to `target`; None where there is no bound.

        Cautious: the smallest M = K whose upper confidence limit of B_exact is at most `target`, so
        that `meets` would say yes of it, with the same error rate. Otherwise by the estimates of
        d_∥ and d₂. Draws are taken as independent, not from finite pools. Raises WidthlabError for
        a target outside (0, 1).
        """
        if not 0 < target < 1:
            raise WidthlabError(f"the target of a bound must lie between 0 and 1, not {target:g}")
        if not self.has_bound:
            return None
        if cautious:
            return self._smallest(target)
        parallel, second = self.d_parallel.value, self.d_2.value
        if not (parallel > 0 and second > 0):
            return None
        return samples_needed(AlignmentMoments.of_equal_laws(1.0, 1 / parallel, 1 / second), target)

    def _smallest(self, target: float) -> int | None:
        """Search M = K by doubling, then halving; the limit falls with M = K."""

        def enough(m: int) -> bool:
            square = self.jackknife.ratio((1 / m, 1 / m, 1 / m**2))[0][0]
            return bool(1 / (1 + square) <= target)

        m = 1
        while not enough(m):
            if m > 2**40:
                return None
            m *= 2
        low, high = m // 2, m
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def __repr__(self) -> str:
        """Return a few lines that a person can read."""
        n1, n2 = self.samples
        share = f"{100 * self.level:g} %"
        lines = [
            f"Certificate from {n1} training and {n2} test samples of {self.laws} laws, intervals "
            f"of {share}",
            *(
                f"  {name:<11}{_words(interval)}   plug-in {self.plug_in[key]:.3g}"
                for name, key, interval in (
                    ("|μ|²" if self.laws == "equal" else "m₁·m₂", "signal", self.signal),
                    ("d_parallel", "d_parallel", self.d_parallel),
                    ("d_2", "d_2", self.d_2),
                    ("d_align", "d_align", self.d_align),
                )
            ),
        ]
        lines += [
            f"  M = {m}, K = {k}: B_exact {self.b_exact[i]:.3g}, at most "
            f"{self.b_exact_limit[i]:.3g} (plug-in {self.plug_in_b_exact[i]:.3g}; on noise it is "
            f"{self.controls[0].plug_in_b_exact[i]:.3g})"
            for i, (m, k) in enumerate(self.budgets)
        ]
        verdict = f"no bound: {self.reason}" if self.reason else "bounded"
        noise = ", ".join(f"{control.certified:.1%} {control.name}" for control in self.controls)
        return "\n".join([*lines, f"  {verdict} (of noise, bounded: {noise})"])


def _words(interval: Interval) -> str:
    return f"{interval.value:.3g} [{interval.low:.3g}, {interval.high:.3g}]"
