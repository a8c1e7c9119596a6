"""The five stages, each from its specification to a published result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from widthlab import experiments, plan
from widthlab.address import seed_sequence
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import Inputs, Measured, Request, Trained
from widthlab.plan import Stage, Work
from widthlab.specs import Checkpoint, DataSet
from widthlab.store import manifest
from widthlab.store.publish import Outcome, folder, payload, publish, scratch
from widthlab.study import Study

if TYPE_CHECKING:
    import torch
    import xarray as xr

Log = Callable[[str], None]


def work_of(stage: Stage, specification: dict[str, Any]) -> Work:
    """Return the work that a stage's command describes.

    Raises WidthlabError where the specification is not one that `snakemake` would have written.
    """
    try:
        if stage == "data":
            adapter: TypeAdapter[DataSet] = TypeAdapter(DataSet)
            return plan.data_work(adapter.validate_python(specification["data"]))
        if stage == "train":
            return plan.training_work(Checkpoint.model_validate(specification["checkpoint"]))
        if stage == "report":
            return plan.report_work(Study.model_validate(specification["study"]))
        name, seed = specification["experiment"], specification["seed"]
        if name not in experiments.names():
            raise WidthlabError(
                f"no experiment {name!r}; there are {', '.join(experiments.names())}"
            )
        module = experiments.load(name)
        if stage == "sweep":
            section = module.Section.model_validate(specification["section"])
            return plan.sweep_work(name, section, seed)
        request = TypeAdapter(Request).validate_python(
            {
                "cell": module.Cell.model_validate(specification["cell"]),
                "label": specification["label"],
                "slug": specification["slug"],
                "data": specification["data"],
                "checkpoints": tuple(specification["checkpoints"]),
            }
        )
        return plan.extraction_work(name, request, seed)
    except KeyError as error:
        raise WidthlabError(f"the specification of a {stage} stage lacks the key {error}") from None
    except ValidationError as error:
        raise WidthlabError(
            f"the specification of the {stage} stage is not valid: {error}"
        ) from None


def prepare_data(results: Path, work: Work, device: str, log: Log) -> None:
    """Prepare a data set: read or download it, choose the split, record both."""
    from widthlab import data

    specification: TypeAdapter[DataSet] = TypeAdapter(DataSet)
    spec = specification.validate_python(work.specification["data"])

    def make(path: Path) -> Outcome:
        prepared = data.prepare(spec, results / "downloads")
        data.save(prepared, path)
        train, test = len(prepared.train_y), len(prepared.test_y)
        log(f"{work.address}: {train} training and {test} test samples")
        return Outcome()

    publish(results, work, make, log)


def train(results: Path, work: Work, device: str, log: Log) -> None:
    """Train a checkpoint, going on from its scratch state where there is one."""
    from widthlab import data, training

    checkpoint = Checkpoint.model_validate(work.specification["checkpoint"])

    def make(path: Path) -> Outcome:
        on = torch_device(device)
        summary = training.train(
            checkpoint,
            data.load(payload(results, work.inputs[0])),
            out=path,
            scratch=scratch(results, work),
            device=on,
            log=log,
        )
        detail = "" if summary.diverged_step is None else f"at step {summary.diverged_step}"
        return Outcome(summary.status, detail, device_name(on))

    publish(results, work, make, log)


def extract(results: Path, work: Work, device: str, log: Log) -> None:
    """Measure one cell and store its statistics."""
    from widthlab import data
    from widthlab.store import datasets

    module = experiments.load(work.specification["experiment"])
    cell = module.Cell.model_validate(work.specification["cell"])
    source, *checkpoints = work.inputs
    trained = tuple(
        Trained(
            Checkpoint.model_validate(c.specification["checkpoint"]),
            payload(results, c),
            manifest.load(folder(results, c)).status,
        )
        for c in checkpoints
    )

    def make(path: Path) -> Outcome:
        on = torch_device(device)
        prepared = data.load(payload(results, source))
        statistics = module.extract(
            cell, Inputs(prepared, trained, on, seed_sequence(work.identity))
        )
        datasets.write(statistics, path)
        diverged = [t.specification.seed for t in trained if t.status == "diverged"]
        if diverged:
            return Outcome("diverged", "its checkpoint diverged", device_name(on))
        return Outcome(device=device_name(on))

    publish(results, work, make, log)


def sweep(results: Path, work: Work, device: str, log: Log) -> None:
    """Collect an experiment's cells into one dataset with fits, theory and claims."""
    from widthlab.store import datasets

    def make(path: Path) -> Outcome:
        datasets.write(collect(results, work, work.inputs), path)
        return Outcome()

    publish(results, work, make, log)


def collect(results: Path, work: Work, cells: tuple[Work, ...]) -> xr.Dataset:
    """Return the sweep over the given finished cells (all of them, or those that there are)."""
    from widthlab.store import datasets

    module = experiments.load(work.specification["experiment"])
    section = module.Section.model_validate(work.specification["section"])
    measured = [
        Measured(
            cell.specification["label"],
            module.Cell.model_validate(cell.specification["cell"]),
            datasets.open_dataset(payload(results, cell)),
        )
        for cell in cells
    ]
    dataset: xr.Dataset = module.sweep(section, measured)
    return dataset


def torch_device(name: str) -> torch.device:
    """Return the device to compute on; raises WidthlabError where CUDA is asked for in vain."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise WidthlabError("device is cuda, but torch finds no GPU; set device: auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    # Measurements must not depend on a GPU's reduced precision.
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """Return the device in words for a manifest."""
    import torch

    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
