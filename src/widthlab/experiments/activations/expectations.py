"""What the source text expects of architectures at equal depth over width, and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from widthlab.claims import Claim, judge_below
from widthlab.experiments.activations import fluctuations
from widthlab.experiments.activations.fluctuations import Grid
from widthlab.experiments.activations.pairings import Respect, differing
from widthlab.experiments.shared.laws import scale_free
from widthlab.specs import MLP, Perceptron


@dataclass(frozen=True)
class Expected:
    """What the source text expects to be smaller than what, when all else is equal."""

    respect: Respect
    small: str
    large: str
    kind: str
    statement: str
    """With the two labels in place of {a} and {b}, and a measure in place of {m}."""
    source: str
    measures: dict[str, str]
    """Measures to compare, with a remark on what that shows."""


EXPECTED = [
    Expected(
        "activation",
        "tanh",
        "relu",
        "rank",
        "{a} (tanh) has a smaller {m} than {b} (ReLU) at equal L/N",
        "Roberts, Yaida & Hanin (2022), ch. 5: at criticality the relative variance grows by 2/3 a "
        "layer for tanh and by 5 for ReLU",
        {
            "fluctuation": "tanh's q falls as 1/L and forgets where it came from, which calms log "
            "q itself",
            "gradient": "no signal falls here, so this is the second measure of the same claim",
        },
    ),
    Expected(
        "position",
        "pre",
        "post",
        "rank",
        "{a} (nonlinearity before the branch's weights) has a smaller {m} than {b} (after the "
        "addition)",
        "an expectation without a theorem; the two forms are those of He et al. (2016)",
        {"fluctuation": "", "gradient": "", "mean_shift": "sizes are compared, without the sign"},
    ),
    *(
        Expected(
            "normalisation",
            how,
            "none",
            "drift",
            f"{how} normalisation suppresses the growth with depth of the {{m}}: {{a}} against "
            "{b}",
            "an expectation without a theorem; the normalisation is that of "
            + ("Ba et al. (2016)" if how == "layer" else "Ioffe & Szegedy (2015)"),
            {
                "fluctuation": "every layer is brought back to one size, which says nothing of the "
                "gradient",
                "gradient": "a normalised layer divides the gradient by the standard deviation of "
                "its pre-activations, so that what no longer varies in the signal varies here",
                "typical_shift": "sizes are compared, without the sign",
                "mean_shift": "sizes are compared, without the sign",
            },
        )
        for how in ("layer", "batch")
    ),
]


def claims(models: Mapping[str, Perceptron], grid: Grid, level: float) -> list[Claim]:
    """Judge every expectation for which there are two models that differ in it only.

    All intervals together hold with confidence `level`.
    """
    pairs = [
        (expected, pair)
        for expected in EXPECTED
        for pair in differing(models, expected.respect, expected.small, expected.large)
        if all((grid.draws[grid.labels.index(label)] > 0).any() for label in pair)
    ]
    count = sum(len(expected.measures) for expected, _ in pairs)
    return [
        _claim(models, grid, expected, pair, name, 1 - (1 - level) / count)
        for expected, pair in pairs
        for name in expected.measures
    ]


def _claim(
    models: Mapping[str, Perceptron],
    grid: Grid,
    expected: Expected,
    pair: tuple[str, str],
    name: str,
    level: float,
) -> Claim:
    a, b = pair
    value, low, high, points = fluctuations.compare(grid, expected.kind, name, pair, level)
    ratio = expected.kind == "rank" and name in fluctuations.POSITIVE
    verdict, reason = judge_below(1.0 if ratio else 0.0, value, low, high)
    compared = "ratio of the two" if ratio else "difference of the two sizes"
    remark = expected.measures[name]
    if expected.respect == "activation" and not _plain(models[a]):
        remark = "the source is on perceptrons without skips and normalisation; this goes beyond it"
    remarks = [f"{compared} over {points} grid points that both have", remark]
    still = [label for label in pair if _unshifted(models[label])]
    if name == "mean_shift" and still:
        remarks.append(f"the mean of q of {' and '.join(still)} has no shift at any width, exactly")
    elif verdict == "undecided" and points:
        remarks.append("the interval is set by the number of draws")
    drift = "drift_" if expected.kind == "drift" else ""
    return Claim(
        id=f"activations.{a}.{drift}{name}_below_{b}",
        experiment="activations",
        statement=expected.statement.format(a=a, b=b, m=fluctuations.MEASURES[name]),
        source=expected.source,
        predicted=None,
        measured=value,
        low=low,
        high=high,
        verdict=verdict,
        reason="; ".join([reason, *(remark for remark in remarks if remark)]),
    )


def _plain(architecture: Perceptron) -> bool:
    return isinstance(architecture, MLP) and architecture.normalisation == "none"


def _unshifted(architecture: Perceptron) -> bool:
    """Say whether E q is the block law at every width (see `theory.finite_width`)."""
    if not scale_free(architecture):
        return False
    if isinstance(architecture, MLP):
        return True
    linear = architecture.activation == "linear"
    return linear or (architecture.position == "pre" and architecture.branch == "two_layer")
