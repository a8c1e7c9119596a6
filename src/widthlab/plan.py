"""The plan of a study: every piece of work, by stage and address, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from widthlab import experiments
from widthlab.address import address, canonical_json, digest, slugify
from widthlab.batches import Batch, batches
from widthlab.code_digest import ROOT, code_digest
from widthlab.costs import Cost, data_cost, training_cost
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import Request
from widthlab.specs import Checkpoint, DataSet, Pythia, ResNet20, Spec
from widthlab.specs_base import IDENTITY
from widthlab.study import RUN_ONLY, Study

Stage = Literal["data", "train", "extract", "sweep", "report"]

FOLDERS: dict[Stage, str] = {
    "data": "data",
    "train": "checkpoints",
    "extract": "cells",
    "sweep": "sweeps",
    "report": "reports",
}
"""Where each stage's results lie within the results folder."""

# What stages share beside their own function, and what their results depend on too.
SAVE, LOAD = "widthlab.data.prepared:save_prepared", "widthlab.data.prepared:load_prepared"
WRITE = "widthlab.store.datasets:write"
DEVICE = "widthlab.stages:torch_device"
SEEDS = "widthlab.address:seed_sequence"


@dataclass(frozen=True)
class Work:
    """One result: its address, what makes it, and what it needs."""

    stage: Stage
    address: str
    specification: dict[str, Any]
    """All that the stage's command is told, ready for JSON."""
    identity: Any
    """What of the specification entered the address."""
    code: str
    """Digest of the code that the stage uses."""
    inputs: tuple[Work, ...]
    cost: Cost = field(default_factory=Cost)

    @property
    def json(self) -> str:
        """The specification as the command's argument."""
        return canonical_json(self.specification)

    @property
    def study_json(self) -> str:
        """The study of a report, as the command's argument."""
        return canonical_json(self.specification["study"])


@cache
def data_work(data: DataSet) -> Work:
    """Return the preparing of a data set."""
    identity = data.model_dump(mode="json", context=IDENTITY)
    loader = {"cifar10": "cifar", "cifar100": "cifar"}.get(data.name, data.name)
    code = code_digest(f"widthlab.data.{loader}:prepare_{loader}", SAVE)
    name = address(slugify(data.name), identity, (), code)
    specification = {"data": data.model_dump(mode="json")}
    return Work("data", name, specification, identity, code, (), data_cost(data))


@cache
def training_work(checkpoint: Checkpoint) -> Work:
    """Return the training of a checkpoint."""
    source = data_work(checkpoint.data)
    if isinstance(checkpoint.network.architecture, Pythia):
        return _fetching_work(checkpoint)
    identity = checkpoint.model_dump(mode="json", exclude={"data"}, context=IDENTITY)
    code = code_digest("widthlab.training:train", LOAD, DEVICE)
    network = checkpoint.network
    depth = () if isinstance(network.architecture, ResNet20) else (f"d{network.depth}",)
    words = (network.architecture.name, checkpoint.data.name, f"w{network.width}", *depth)
    name = address(slugify(*words, f"s{checkpoint.seed}"), identity, (source.address,), code)
    specification = {"checkpoint": checkpoint.model_dump(mode="json")}
    return Work("train", name, specification, identity, code, (source,), training_cost(checkpoint))


def _fetching_work(checkpoint: Checkpoint) -> Work:
    """Return the fetching of a pretrained checkpoint, which needs no data and is not trained."""
    network = checkpoint.network
    assert isinstance(network.architecture, Pythia)
    identity = network.model_dump(mode="json", context=IDENTITY)
    code = code_digest("widthlab.checkpoints.pretrained:fetch")
    words = (network.architecture.name, f"w{network.width}", f"d{network.depth}")
    name = address(slugify(*words), identity, (), code)
    specification = {"checkpoint": checkpoint.model_dump(mode="json")}
    return Work("train", name, specification, identity, code, (), training_cost(checkpoint))


def extraction_work(experiment: str, request: Request, seed: int) -> Work:
    """Return the measuring of one cell."""
    trained = [training_work(checkpoint) for checkpoint in request.checkpoints]
    inputs = (data_work(request.data), *trained)
    cell = request.cell.model_dump(mode="json", context=IDENTITY)
    identity = {"experiment": experiment, "cell": cell, "seed": seed}
    code = code_digest(f"widthlab.experiments.{experiment}:extract", LOAD, DEVICE, SEEDS, WRITE)
    name = address(
        slugify(experiment, *request.slug.split("-")), identity, [i.address for i in inputs], code
    )
    specification = {
        **identity,
        "cell": request.cell.model_dump(mode="json"),
        "label": request.label,
        "slug": request.slug,
        **inputs[0].specification,
        "checkpoints": [work.specification["checkpoint"] for work in trained],
    }
    return Work("extract", name, specification, identity, code, inputs, request.cost)


def sweep_work(experiment: str, section: Spec, seed: int) -> Work:
    """Return the collecting of an experiment's cells, over the whole grid."""
    requests = experiments.load(experiment).cells(section, seed)
    cells = tuple(extraction_work(experiment, request, seed) for request in requests)
    asked = section.model_dump(mode="json", context=IDENTITY)
    identity = {"experiment": experiment, "section": asked, "seed": seed}
    specification = {**identity, "section": section.model_dump(mode="json")}
    code = code_digest(f"widthlab.experiments.{experiment}:sweep", WRITE)
    name = address(slugify(experiment), identity, [cell.address for cell in cells], code)
    return Work("sweep", name, specification, identity, code, cells)


def report_work(study: Study) -> Work:
    """Return the building of the study's report."""
    sections = study.sections()
    sweeps = tuple(sweep_work(name, section, study.seed) for name, section in sections.items())
    identity = {"study": study.model_dump(mode="json", exclude=RUN_ONLY, exclude_none=True)}
    code = digest(
        canonical_json(
            [
                code_digest("widthlab.reporting:build"),
                _page_digest(),
                *(code_digest(f"widthlab.experiments.{name}:figures") for name in sections),
            ]
        )
    )
    name = address(slugify(study.name), identity, [sweep.address for sweep in sweeps], code)
    specification = {"study": study.model_dump(mode="json", exclude_none=True)}
    return Work("report", name, specification, identity, code, sweeps)


def _page_digest() -> str:
    """Digest the templates and styles of the report, which are no Python."""
    files = sorted(p for p in (ROOT / "report").rglob("*") if p.suffix in {".j2", ".css", ".js"})
    return digest("\n".join(f"{p.name}\n{p.read_text(encoding='utf-8')}" for p in files))


@dataclass(frozen=True)
class Plan:
    """All work of a study by stage and address; a shared input is there once."""

    study: Study
    results: Path
    report: Work
    data: dict[str, Work]
    checkpoints: dict[str, Work]
    cells: dict[str, Work]
    sweeps: dict[str, Work]

    @classmethod
    def of(cls, study: Study) -> Plan:
        """Expand a study to its work; takes no device and reads no result."""
        report = report_work(study)
        cells = _unique(cell for sweep in report.inputs for cell in sweep.inputs)
        below = [work for cell in cells.values() for work in cell.inputs]
        checkpoints = _unique(work for work in below if work.stage == "train")
        data = _unique(
            [
                *(work for work in below if work.stage == "data"),
                *(work for checkpoint in checkpoints.values() for work in checkpoint.inputs),
            ]
        )
        return cls(
            study, Path(study.results), report, data, checkpoints, cells, _unique(report.inputs)
        )

    def all_work(self) -> Iterable[Work]:
        """Yield all work that leaves a result, inputs first."""
        for stage in (self.data, self.checkpoints, self.cells, self.sweeps):
            yield from stage.values()

    @cached_property
    def batches(self) -> dict[Stage, dict[str, Batch]]:
        """All work in jobs, by stage and by the job's name."""
        study = self.study
        # By what the study says alone: machines that read it differ in what they have.
        on_gpu = study.device == "cuda"
        return {
            "data": batches(self.data.values(), 1),
            "train": batches(self.checkpoints.values(), study.checkpoints_per_job, on_gpu=on_gpu),
            "extract": batches(self.cells.values(), study.cells_per_job, on_gpu=on_gpu),
            "sweep": batches(self.sweeps.values(), 1),
        }

    @cached_property
    def batch_of(self) -> dict[str, Batch]:
        """The batch of every piece of work, by address."""
        every = (batch for stage in self.batches.values() for batch in stage.values())
        return {work.address: batch for batch in every for work in batch.works}

    def batch(self, stage: Stage, name: str) -> Batch:
        """Return a batch by name; raises WidthlabError where the plan has none of that name."""
        try:
            return self.batches[stage][name]
        except KeyError:
            raise WidthlabError(
                f"the study has no {stage} job {name}: the code or the study has changed since "
                "the plan was made; run snakemake again"
            ) from None


def _unique(works: Iterable[Work]) -> dict[str, Work]:
    return {work.address: work for work in works}
