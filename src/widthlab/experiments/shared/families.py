"""Families of trained networks: one architecture over widths and seeds, trained on one data set.

Experiments whose networks differ in data and widths have one section entry for each family; a
checkpoint that several of them ask for is trained once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from widthlab.costs import input_shape
from widthlab.experiments.shared.base import (
    Grid,
    Inputs,
    Label,
    Trained,
    network_of,
    ordered_by_label,
)
from widthlab.specs import (
    SMALLEST_IMAGE,
    Architecture,
    Checkpoint,
    Count,
    DataSet,
    Digits,
    Llama,
    Network,
    Pythia,
    ResNet20,
    Spec,
    TextFile,
    Training,
    Unit,
)

if TYPE_CHECKING:
    from widthlab.models import Model


def _named_once(points: list[str]) -> list[str]:
    if len(set(points)) != len(points):
        raise ValueError("has a name twice; write each once")
    return points


Points = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1), AfterValidator(_named_once)
]


class Family(Spec):
    """Networks of one architecture, trained on one data set at several widths and seeds."""

    model: Architecture
    """The architecture."""
    width: Annotated[Grid, Unit("neurons")]
    """Widths N (channels of the first stage for resnet20)."""
    depth: Annotated[Count, Unit("layers")] = 3
    """Depth L; resnet20 and pythia have their own, left out for pythia."""
    seeds: Annotated[Count, Unit("networks")] = 3
    """Networks trained at every width, from different initialisations; 1 of pythia."""
    data: DataSet = Digits()
    """What the networks learn."""
    training: Training = Training()
    """How every network is trained; left out for pythia, which is not."""
    points: Points | None = None
    """Insertion points, names or patterns of modules; left out, the carried signals h_0 … h_L."""

    @model_validator(mode="before")
    @classmethod
    def _only_one(cls, values: Any) -> Any:
        """Write out that there is one pretrained network of a width."""
        if isinstance(values, dict) and "seeds" not in values:
            model = values.get("model")
            name = model.get("name") if isinstance(model, dict) else getattr(model, "name", None)
            return {**values, "seeds": 1} if name == "pythia" else values
        return values

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if isinstance(self.model, Pythia) and self.seeds != 1:
            raise ValueError(
                f"seeds: {self.seeds}, but there is one pretrained network of a width; write 1 or "
                "leave it out (intervals are then those of its samples)"
            )
        # Values and not keys are looked at, since stored sections have all keys.
        for name in ("depth", "training") if isinstance(self.model, Pythia) else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name}: pretrained networks are measured as they are, with the depth of "
                    "their own and without training; leave it out"
                )
        problem = misfit(self.model, self.data, self.training, self.width)
        if problem:
            raise ValueError(problem)
        return self


Families = Annotated[dict[Label, Family], Field(min_length=1), AfterValidator(ordered_by_label)]
"""Families by the label that figures and tables show."""


@dataclass(frozen=True)
class Member:
    """One trained network of a family."""

    label: str
    family: Family
    network: Network
    seed: int

    def checkpoint(self, study_seed: int) -> Checkpoint:
        """Return the specification of its training run."""
        return Checkpoint(
            network=self.network,
            data=self.family.data,
            training=self.family.training,
            seed=self.seed,
            study_seed=study_seed,
        )


def members(families: dict[str, Family]) -> Iterator[Member]:
    """Yield every network of the families, by label, width and seed."""
    for label, family in families.items():
        for width in family.width:
            network = network_of(family.model, width, family.depth)
            for seed in range(family.seeds):
                yield Member(label, family, network, seed)


def misfit(
    architecture: Architecture,
    data: DataSet,
    training: Training | None = None,
    width: Iterable[int] = (),
) -> str:
    """Say why an architecture cannot be trained so on a data set; empty where it can."""
    if isinstance(architecture, Llama | Pythia):
        return _language_misfit(architecture, data, training, width)
    if isinstance(data, TextFile):
        return f"{architecture.name} does not take text (llama and pythia do); choose other data"
    shape = input_shape(data)
    images = len(shape) == 3 and shape[-1] >= SMALLEST_IMAGE
    if isinstance(architecture, ResNet20) and not images:
        return (
            f"resnet20 takes images of at least {SMALLEST_IMAGE}×{SMALLEST_IMAGE} pixels, but "
            f"data has inputs of {shape}"
        )
    batches = getattr(architecture, "normalisation", "batch") == "batch"
    if batches and training is not None and training.batch_size == 1:
        return "batch normalisation needs a batch_size above 1"
    return ""


def _language_misfit(
    architecture: Llama | Pythia, data: DataSet, training: Training | None, width: Iterable[int]
) -> str:
    name = architecture.name
    if not isinstance(data, TextFile):
        return f"{name} takes text, but data is {data.name}; choose data: {{name: textfile}}"
    if training is not None and training.loss != "cross_entropy":
        return f"the loss of {name} is cross_entropy; leave {training.loss} out"
    if isinstance(architecture, Pythia):
        own = architecture.checkpoints
        if data.tokenizer not in own.values():
            return (
                f"pythia takes tokens of its own tokenizer, but data.tokenizer is "
                f"{data.tokenizer}; write {own[min(own)]}"
            )
    return next(filter(None, map(architecture.misfit, width)), "")


CALIBRATION = 1024
"""Training samples from which statistics of batch normalisation are estimated."""


def measurable(trained: Trained, step: int, inputs: Inputs) -> Model:
    """Return a trained network at a snapshot, ready to be measured, in evaluation mode.

    Running averages of batch normalisation lag behind the weights, so that they are estimated
    again from training samples.
    """
    from widthlab.checkpoints.files import load_model
    from widthlab.statistics.normalisation import recalibrate

    model = load_model(trained.folder, step, inputs.device)
    recalibrate(model, inputs.data.train(inputs.device)[0][:CALIBRATION])
    return model
