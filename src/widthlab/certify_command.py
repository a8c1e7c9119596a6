"""The command `certify`: the certificate of a network of one's own, from the shell."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from widthlab.errors import WidthlabError

if TYPE_CHECKING:
    import xarray as xr
    from torch import nn

    from widthlab.certification.batches import Batches, Choice
    from widthlab.certification.result import Certification


class _Numbers(click.ParamType[tuple[Any, ...]]):
    """Numbers with commas between them."""

    def __init__(self, name: str, of: type[int] | type[float], count: int) -> None:
        self.name, self.of, self.count = name, of, count

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the numbers in a text."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self.of(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != self.count:
            self.fail(f"{value!r} is not {self.name}: {self.count} numbers with commas between")
        return numbers


@click.command()
@click.option("--model", required=True, help="package.module:factory, or a transformers folder.")
@click.option("--checkpoint", type=Path, help="Weights: safetensors, or a .pt of tensors only.")
@click.option("--data", required=True, type=Path, help="A folder of images by class, or a text.")
@click.option(
    "--points",
    required=True,
    multiple=True,
    help="Insertion points: a module's name or a pattern such as 'layer*'; may be repeated.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    type=_Numbers("M,K", int, 2),
    default=((64, 64), (256, 256), (1024, 1024)),
    help="M,K: samples of the step and of the test; may be repeated.  [default: 64,64 256,256 "
    "1024,1024]",
)
@click.option("--target", default=0.05, show_default=True, help="Tolerable chance of harm.")
@click.option("--level", default=0.95, show_default=True, help="Of the intervals.")
@click.option("--simultaneous", is_flag=True, help="The level is that of all points together.")
@click.option(
    "--laws",
    type=click.Choice(["different", "equal"]),
    default="different",
    show_default=True,
    help="Whether training and test samples have one law: only if the network saw neither.",
)
@click.option(
    "--pooling",
    type=click.Choice(["sum", "mean", "whole"]),
    default="sum",
    show_default=True,
    help="Of gradients over positions.",
)
@click.option(
    "--loss",
    type=click.Choice(["cross_entropy", "mse"]),
    default="cross_entropy",
    show_default=True,
)
@click.option("--mismatch", is_flag=True, help="Count harmful steps too (in --out).")
@click.option("--train-samples", type=click.IntRange(min=1), help="[default: up to 512]")
@click.option("--test-samples", type=click.IntRange(min=1), help="[default: up to 512]")
@click.option(
    "--test-fraction",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Held out where the data are not split.",
)
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(min=1))
@click.option("--size", default=32, show_default=True, help="Side of images in pixels.")
@click.option(
    "--mean",
    type=_Numbers("R,G,B", float, 3),
    help="Of images in [0, 1], with --std.  [default: those of the training samples]",
)
@click.option("--std", type=_Numbers("R,G,B", float, 3))
@click.option(
    "--length",
    default=128,
    show_default=True,
    type=click.IntRange(min=2),
    help="Tokens of a sequence of text.",
)
@click.option("--out", type=Path, help="Write all numbers to a .zarr folder or a .nc file.")
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
def certify(**options: Any) -> None:
    """Say where in a network a step on training samples helps on held-out ones.

    Ends with a table by insertion point and one sentence of the decision. That there is no bound
    is a result and no error. What it means is in docs/certificate.md.
    """
    # Before torch is imported: more threads than cores is very slow.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(options["threads"])
    out: Path | None = options["out"]
    _check(options)
    found = _certified(options)
    if out is not None:
        _write(found.to_dataset(), out)
    _print(found)
    if out is not None:
        click.echo(f"All numbers are in {out}")


def _check(options: dict[str, Any]) -> None:
    """Refuse what can be refused before anything is loaded."""
    out: Path | None = options["out"]
    if out is not None and out.suffix not in (".zarr", ".nc"):
        raise WidthlabError(f"--out: {out} must end in .zarr or .nc")
    if out is not None and out.exists():
        raise WidthlabError(f"--out: {out} exists already; remove it, or choose another name")
    if out is not None and not out.parent.is_dir():
        raise WidthlabError(f"--out: there is no folder {out.parent}")
    if not options["data"].exists():
        raise WidthlabError(f"--data: {options['data']} is neither a folder nor a file")
    if (options["mean"] is None) != (options["std"] is None):
        raise WidthlabError("--mean and --std are given together or not at all")
    for name in ("mean", "std"):
        if not all(map(math.isfinite, options[name] or ())):
            raise WidthlabError(f"--{name} must be finite numbers, not {options[name]}")
    if options["std"] is not None and not min(options["std"]) > 0:
        raise WidthlabError(f"--std must be positive numbers, not {options['std']}")


def _certified(options: dict[str, Any]) -> Certification:
    from widthlab.certification.batches import Choice
    from widthlab.certification.measuring import certify
    from widthlab.certification.sources import first_line, load_weights, model_of
    from widthlab.stages import torch_device
    from widthlab.statistics.alignment.points import insertion_points

    device = torch_device(options["device"])
    data: Path = options["data"]
    model = model_of(options["model"], "images" if data.is_dir() else "text", options["seed"])
    if options["checkpoint"] is not None:
        load_weights(model, options["checkpoint"])
    insertion_points(model, options["points"])  # before data are read
    keys = ("train_samples", "test_samples", "batch_size", "test_fraction", "seed")
    train, test = _batches(data, model, Choice(**{key: options[key] for key in keys}), options)
    model = model.to(device)
    _try(model, options, train)
    settings = ("budgets", "target", "pooling", "laws", "level", "simultaneous", "mismatch", "seed")
    try:
        return certify(
            model,
            options["points"],
            options["loss"],
            train,
            test,
            **{key: options[key] for key in settings},
        )
    except WidthlabError:
        raise
    except Exception as error:  # of the model's own code, or of memory
        raise WidthlabError(
            f"{options['model']} ran on two samples, but failed while it was measured: "
            f"{first_line(error)}"
        ) from error


def _try(model: nn.Module, options: dict[str, Any], train: Batches) -> None:
    """Run the model and the loss on two samples; raises WidthlabError where that fails."""
    import torch

    from widthlab.certification.losses import BatchLosses
    from widthlab.certification.sources import first_line
    from widthlab.statistics.alignment.points import batch_beside, evaluating

    batch = batch_beside(model, train.few(2))
    try:
        with evaluating(model), torch.no_grad():
            BatchLosses(options["loss"])(model, batch)
    except WidthlabError:
        raise
    except Exception as error:  # whatever the model's own code raises
        like = ", ".join(map(str, batch[0].shape))
        raise WidthlabError(
            f"{options['model']} does not run on batches of shape ({like}) from "
            f"{options['data']}: {first_line(error)}"
        ) from error


def _batches(
    data: Path, model: nn.Module, choice: Choice, options: dict[str, Any]
) -> tuple[Batches, Batches]:
    from widthlab.certification.batches import image_batches, text_batches

    if data.is_dir():
        return image_batches(
            data, choice, size=options["size"], mean=options["mean"], std=options["std"]
        )
    folder = Path(options["model"])
    train, test = text_batches(
        data, choice, length=options["length"], tokenizer=folder if folder.is_dir() else None
    )
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    highest = int(max(train.x.max(), test.x.max(), train.y.max(), test.y.max()))
    if known is not None and highest >= known:
        raise WidthlabError(
            f"{data} has the token {highest}, but {options['model']} knows {known}; put its own "
            "tokenizer (tokenizer.json) into its folder"
        )
    return train, test


def _write(dataset: xr.Dataset, path: Path) -> None:
    from widthlab.store import datasets

    try:
        if path.suffix == ".zarr":
            datasets.write(dataset, path)
        else:
            dataset.to_netcdf(path, engine="scipy")
    except OSError as error:
        raise WidthlabError(f"--out: cannot write {path}: {error}") from error


def _print(found: Certification) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    headings, rows = found.table()
    table = Table(title=escape(found.title), title_justify="left")
    colours = {"certified": "green", "more samples": "yellow", "no bound": "red"}
    for number, heading in enumerate(headings):
        table.add_column(
            escape(heading), justify="left" if number == 0 else "right", overflow="fold"
        )
    for row in rows:
        *cells, verdict = map(escape, row)
        table.add_row(*cells, f"[{colours[row[-1]]}]{verdict}[/]")
    console = Console(highlight=False)
    # Not squeezed where it is read from a file or a pipe.
    wide = console if console.is_terminal else Console(highlight=False, width=200)
    wide.print(table)
    for line in (*found.reasons, *found.cautions):
        click.echo(line)
    click.echo(found.decision)


COMMANDS = (certify,)
