"""The stages, each from its specification to a published result."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from widthlab import experiments, plan
from widthlab.address import seed_sequence
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import Inputs, Measured, Request, Trained
from widthlab.interruption import Interrupted
from widthlab.plan import Stage, Work
from widthlab.specs import CIFAR, Checkpoint, DataSet, Pythia, TextFile
from widthlab.store import failure
from widthlab.store.lease import Lease, Taken
from widthlab.store.publish import (
    Log,
    NotWritable,
    Outcome,
    finished,
    folder,
    intact,
    payload,
    publish,
    scratch,
)
from widthlab.study import Study

if TYPE_CHECKING:
    import torch
    import xarray as xr


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


def make(results: Path, work: Work, device: str, log: Log, *, wait: bool = True) -> None:
    """Make a result unless it is there, from inputs whose bytes are verified first.

    An input that is missing or damaged is made again on the way. With `wait=False` raises
    `lease.Taken` where another process is making the result.
    """
    if finished(results, work):
        log(f"{work.address} is already there")
        return
    for source in work.inputs:
        if not intact(results, source, log):
            log(f"{source.address}, which {work.address} needs, is not there: making it")
            make(results, source, device, log)
    publish(
        results,
        work,
        lambda path: MAKERS[work.stage](results, work, path, device, log),
        log,
        wait=wait,
    )


def make_all(results: Path, works: Iterable[Work], device: str, log: Log) -> None:
    """Make the results of a batch, one after another; a failure does not keep the others.

    Those that another process is making come last, and so do those whose last attempt did not end
    well: if one kills its process, the others are done before it is tried again. Raises the
    failure of the only one that failed, or WidthlabError with how many did.
    """
    order = sorted(works, key=lambda work: failure.read(folder(results, work)) is not None)
    waiting: list[Work] = []
    errors: list[Exception] = []
    for round_of_works, wait in ((order, False), (waiting, True)):
        for work in round_of_works:
            try:
                make(results, work, device, log, wait=wait)
            except Taken as taken:
                log(f"{work.address} is being made by {taken.owner}")
                waiting.append(work)
            except (Interrupted, NotWritable):
                raise
            except Exception as error:
                errors.append(error)
                log(_words(error, work))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise WidthlabError(
            f"{len(errors)} of {len(order)} pieces of work failed; the log says why"
        )


def _words(error: Exception, work: Work) -> str:
    """Say what went wrong: users' errors in a sentence, others with their place in the code."""
    if isinstance(error, WidthlabError):
        return f"Error: {work.address}: {error}"
    return f"Error: {work.address}:\n{''.join(traceback.format_exception(error))}"


def _data(results: Path, work: Work, path: Path, device: str, log: Log) -> Outcome:
    """Prepare a data set: read or download it, choose the split, record both."""
    from widthlab import data

    specification: TypeAdapter[DataSet] = TypeAdapter(DataSet)
    spec = specification.validate_python(work.specification["data"])
    downloads = results / "downloads"
    with ExitStack() as stack:
        # Splits of one download are results of their own, perhaps on several machines.
        if isinstance(spec, CIFAR):
            stack.enter_context(_alone(downloads, spec.name))
        elif isinstance(spec, TextFile) and spec.from_hub:
            stack.enter_context(_alone(downloads, "hub"))
        prepared = data.prepare(spec, downloads)
    data.save(prepared, path)
    train, test = len(prepared.train_y), len(prepared.test_y)
    log(f"{work.address}: {train} training and {test} test samples")
    return Outcome()


def _alone(downloads: Path, name: str) -> Lease:
    """Return the right to download something, which one process has at a time."""
    downloads.mkdir(parents=True, exist_ok=True)
    return Lease(downloads / f".{name}.lease")


def _train(results: Path, work: Work, path: Path, device: str, log: Log) -> Outcome:
    """Train a checkpoint, going on from its scratch state where there is one; or fetch it."""
    from widthlab import data, training
    from widthlab.checkpoints import pretrained

    checkpoint = Checkpoint.model_validate(work.specification["checkpoint"])
    if isinstance(checkpoint.network.architecture, Pythia):
        downloads = results / "downloads"
        with _alone(downloads, "hub"):
            path.mkdir(parents=True, exist_ok=True)
            pretrained.fetch(checkpoint, downloads, path, log)
        return Outcome()
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


def _extract(results: Path, work: Work, path: Path, device: str, log: Log) -> Outcome:
    """Measure one cell and store its statistics."""
    from widthlab import data
    from widthlab.store import datasets

    module = experiments.load(work.specification["experiment"])
    cell = module.Cell.model_validate(work.specification["cell"])
    source, *checkpoints = work.inputs
    trained = tuple(_trained(results, checkpoint) for checkpoint in checkpoints)
    on = torch_device(device)
    prepared = data.load(payload(results, source))
    statistics = module.extract(cell, Inputs(prepared, trained, on, seed_sequence(work.identity)))
    datasets.write(statistics, path)
    log(f"{work.address}: measured")
    if any(t.status == "diverged" for t in trained):
        return Outcome("diverged", "its checkpoint diverged", device_name(on))
    return Outcome(device=device_name(on))


def _trained(results: Path, work: Work) -> Trained:
    manifest = finished(results, work)
    if manifest is None:
        raise WidthlabError(f"{work.address} went away while it was needed; run snakemake again")
    specification = Checkpoint.model_validate(work.specification["checkpoint"])
    return Trained(specification, payload(results, work), manifest.status)


def _sweep(results: Path, work: Work, path: Path, device: str, log: Log) -> Outcome:
    """Collect an experiment's cells into one dataset with fits, theory and claims."""
    from widthlab.store import datasets

    datasets.write(collect(results, work, work.inputs), path)
    log(f"{work.address}: {len(work.inputs)} cells collected")
    return Outcome()


MAKERS: dict[Stage, Callable[[Path, Work, Path, str, Log], Outcome]] = {
    "data": _data,
    "train": _train,
    "extract": _extract,
    "sweep": _sweep,
}
"""What makes the payload of each stage at a path."""


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
