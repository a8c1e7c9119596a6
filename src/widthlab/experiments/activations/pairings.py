"""Which architectures of a study may be compared: those that differ in one respect only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from widthlab.specs import MLP, Perceptron
from widthlab.theory.criticality import CRITICAL

Respect = Literal["activation", "position", "normalisation"]


def differing(
    models: Mapping[str, Perceptron], respect: Respect, first: str, second: str
) -> list[tuple[str, str]]:
    """Return the pairs of labels whose architectures differ in one field, `first` in the one.

    Everything else must be equal. Perceptrons without skips that differ in their activation count
    as equal where each has its own critical variances: that is what makes them comparable.
    """
    having = {label: one for label, one in models.items() if hasattr(one, respect)}
    rest = {label: _rest(architecture, respect) for label, architecture in having.items()}
    of = {label: getattr(architecture, respect) for label, architecture in having.items()}
    return [
        (one, other)
        for one in having
        for other in having
        if (of[one], of[other]) == (first, second) and rest[one] == rest[other]
    ]


def _rest(architecture: Perceptron, respect: Respect) -> dict[str, Any]:
    """Return an architecture's fields but for one."""
    fields = architecture.model_dump()
    value = fields.pop(respect)
    if respect == "activation" and isinstance(architecture, MLP):
        variances = (architecture.weight_variance, architecture.bias_variance)
        if variances == CRITICAL[value]:
            fields |= {"weight_variance": "critical", "bias_variance": "critical", "bias": None}
    return fields
