"""What the workflow and an experiment say to each other.

An experiment is one module in this folder whose name is its section in a study. It offers

- `TITLE`, `QUESTION` and `METHOD`, texts for the report;
- `Section`, the type of its section, and `Cell`, the type of one grid point;
- `cells(section, seed)` → the `Request`s of its grid;
- `extract(cell, inputs)` → the statistics of one cell, the only part that touches a device;
- `sweep(section, measured)` → one dataset with fits and theory, its claims in the attributes;
- `figures(sweep)` → what the report shows.

Modules are imported whenever a study is parsed, so torch, xarray and matplotlib are imported
inside the functions that need them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from widthlab.costs import Cost
from widthlab.specs import (
    Architecture,
    Checkpoint,
    Classifier,
    Count,
    DataSet,
    Network,
    Perceptron,
    Pythia,
    ResNet20,
    Spec,
)

if TYPE_CHECKING:
    import numpy as np
    import torch
    import xarray as xr

    from widthlab.data.prepared import Prepared

T = TypeVar("T")
N = TypeVar("N", int, float)


def ordered(values: list[N]) -> list[N]:
    """Return numbers in ascending order; raises ValueError where one is there twice."""
    if len(set(values)) != len(values):
        raise ValueError("has a value twice; write each once")
    return sorted(values)


Grid = Annotated[list[Count], Field(min_length=1), AfterValidator(ordered)]
"""A non-empty list of whole numbers, kept in ascending order."""

Label = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]


def ordered_by_label(models: dict[str, T]) -> dict[str, T]:
    """Order by label: the order of keys in a file means nothing."""
    return dict(sorted(models.items()))


Models = Annotated[dict[Label, Architecture], Field(min_length=1), AfterValidator(ordered_by_label)]
"""Architectures by the label that figures and tables show."""
Classifiers = Annotated[
    dict[Label, Classifier], Field(min_length=1), AfterValidator(ordered_by_label)
]
"""The same, for experiments on networks with one vector of outputs for each sample."""
Perceptrons = Annotated[
    dict[Label, Perceptron], Field(min_length=1), AfterValidator(ordered_by_label)
]
"""The same, for experiments whose theory is of perceptrons."""


@dataclass(frozen=True)
class Request:
    """One cell that an experiment asks for, and what it needs."""

    cell: Spec
    label: str
    """Name of the architecture in figures; no part of the address."""
    slug: str
    """Readable part of the address."""
    data: DataSet
    checkpoints: tuple[Checkpoint, ...] = ()
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Trained:
    """A finished training run on disk, as `extract` sees it."""

    specification: Checkpoint
    folder: Path
    status: str


@dataclass(frozen=True)
class Inputs:
    """What a cell is given besides its own specification."""

    data: Prepared
    checkpoints: tuple[Trained, ...]
    device: torch.device
    seeds: np.random.SeedSequence


@dataclass(frozen=True)
class Measured:
    """A finished cell, as `sweep` sees it."""

    label: str
    cell: Any
    statistics: xr.Dataset


def network_of(architecture: Architecture, width: int, depth: int) -> Network:
    """Return the network at a grid point; resnet20 and pretrained ones have their own depth."""
    if isinstance(architecture, ResNet20):
        depth = 20
    if isinstance(architecture, Pythia):
        architecture, depth = architecture.at(width), architecture.layers
    return Network(architecture=architecture, width=width, depth=depth)


def slug_of(network: Network, *more: str) -> str:
    """Return the readable part of a cell's address."""
    name = network.architecture.name.replace("_", "")
    return "-".join((name, f"w{network.width}", f"d{network.depth}", *more))
