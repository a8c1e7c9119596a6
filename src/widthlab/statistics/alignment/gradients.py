"""Activation gradients of single samples at many insertion points, in one pass over the data.

q(x, y) = ∂ℓ(x, y)/∂z at an activation z. The losses of a batch are summed before they are
differentiated: samples do not affect one another in evaluation mode, so that each still gets its
own gradient. Rows go to a temporary folder on disk, so that memory does not grow with samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gram_moments import LEAST_SAMPLES
from widthlab.statistics.alignment.grams import Grams, gram_matrices
from widthlab.statistics.alignment.losses import Losses, sample_losses
from widthlab.statistics.alignment.points import (
    Points,
    batch_beside,
    evaluating,
    first_tensor,
    insertion_points,
    with_first,
)
from widthlab.statistics.alignment.pooling import Pooling
from widthlab.statistics.draws import tapped

Mask = Callable[[Any], Tensor | None]
"""From a batch to its mask (samples, *positions), true where a position counts; None where all do.
"""


@dataclass(frozen=True)
class ActivationGradients:
    """Pooled gradients of n samples in the loader's order, while their folder exists."""

    rows: dict[str, NDArray[np.floating]]
    """(n, F) by insertion point, on disk, in the network's precision (at least float32)."""
    points: dict[str, Pooling]
    losses: NDArray[np.float64]
    """Loss of each sample, (n,)."""


@contextmanager
def activation_gradients(
    model: nn.Module,
    points: Points,
    losses: Losses,
    batches: Iterable[Any],
    *,
    mask: Mask | None = None,
    name: str = "loader",
) -> Iterator[ActivationGradients]:
    """Measure the gradient of every sample's loss by the activations at `points`.

    Points are names or patterns of modules, `Points`, whose output (or its first tensor) is the
    activation. `losses(model, batch)` runs the model on a batch and returns the loss of each
    sample; `mask(batch)` says which positions count where samples are padded. All points are
    measured in one forward and one backward pass for each batch (and one more of the first, which
    checks that samples do not affect one another). The model is in evaluation mode with frozen
    parameters meanwhile, and left as it was found. Disk space is n·F numbers for each point; the
    rows are gone when the context ends. `name` is what messages call the batches.

    Raises WidthlabError, in one sentence that says what to change, for a point that does not exist,
    that the forward pass does not reach or uses twice, or that the loss does not depend on; a loss
    that is not one number for each sample; samples that affect one another; gradients that are not
    finite; a single batch; and fewer than four samples.
    """
    poolings = insertion_points(model, points)
    batches = several(batches, name)
    # Python's numbers: small arrays kept between large ones that are freed make the heap grow.
    values: list[float] = []
    with TemporaryDirectory(prefix="widthlab-") as folder, ExitStack() as files:
        spool = _Spool(Path(folder), list(poolings), files)
        watch = _Watch(list(poolings))
        with evaluating(model), torch.enable_grad(), tapped(model, watch.names, watch.tap):
            for number, batch in enumerate(batches):
                batch = batch_beside(model, batch)
                watch.edges.clear()
                loss = sample_losses(losses, model, batch)
                gradients = watch.gradients(loss, check=number == 0)
                chosen = None if mask is None else mask(batch)
                for point, gradient in zip(poolings, gradients, strict=True):
                    rows = poolings[point].pool(gradient, chosen)
                    spool.add(point, rows.detach().cpu().numpy(), number)
                values.extend(loss.detach().to("cpu", torch.float64).tolist())
        found = np.array(values, dtype=np.float64)
        if len(found) < LEAST_SAMPLES:
            raise WidthlabError(
                f"an alignment certificate needs at least {LEAST_SAMPLES} samples, but the {name} "
                f"gave {len(found)}"
            )
        yield ActivationGradients(spool.opened(), poolings, found)


def each_gram(
    model: nn.Module,
    points: Points,
    losses: Losses,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    mask: Mask | None = None,
) -> Iterator[tuple[str, Grams]]:
    """Yield the Gram matrices of training and test gradients, point by point.

    Arguments and errors are those of `activation_gradients`; all points are measured before the
    first is yielded. One point's matrices are in memory at a time, unless they are kept.
    """
    first_name, second_name = "training loader", "test loader"
    # Both, before a long pass over the first.
    train, test = several(train, first_name), several(test, second_name)
    with (
        activation_gradients(model, points, losses, train, mask=mask, name=first_name) as first,
        activation_gradients(model, points, losses, test, mask=mask, name=second_name) as second,
    ):
        for name, rows in first.rows.items():
            yield name, gram_matrices(rows, second.rows[name])


def alignment_grams(
    model: nn.Module,
    points: Points,
    losses: Losses,
    train: Iterable[Any],
    test: Iterable[Any],
    *,
    mask: Mask | None = None,
) -> dict[str, Grams]:
    """Return the Gram matrices of training and test gradients at each point.

    Arguments and errors are those of `activation_gradients`. What remains is the Gram matrices; the
    rows are gone.
    """
    return dict(each_gram(model, points, losses, train, test, mask=mask))


class _Watch:
    """Where the activations are in the autograd graph of a forward pass."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.edges: dict[int, GradientEdge] = {}
        self.samples: dict[int, int] = {}

    def tap(self, index: int, output: Any) -> Any:
        """Note one activation."""
        name = self.names[index]
        if index in self.edges:
            raise WidthlabError(
                f"insertion point '{name}' is called more than once in a forward pass; choose a "
                "module that is called once"
            )
        h = first_tensor(name, output)
        # With frozen parameters the graph begins at the first point. A leaf must not be
        # overwritten, and a view that is overwritten drops out of the graph.
        h = h if h.requires_grad else h.detach().requires_grad_(True).clone()
        h = h.clone() if h._is_view() else h
        self.edges[index] = get_gradient_edge(h)
        self.samples[index] = h.shape[0] if h.ndim else 0
        return with_first(output, h)

    def gradients(self, loss: Tensor, *, check: bool) -> list[Tensor]:
        """Return the gradient (n, …) of each sample's loss by every activation."""
        for index, name in enumerate(self.names):
            if index not in self.edges:
                raise WidthlabError(
                    f"insertion point '{name}' is not reached in the forward pass; leave it out"
                )
            if len(loss) == 1 < self.samples[index]:
                raise WidthlabError(
                    f"the loss has one number for a batch of {self.samples[index]} samples; it "
                    'seems to be averaged: use reduction="none"'
                )
            if self.samples[index] != len(loss):
                raise WidthlabError(
                    f"insertion point '{name}' has {self.samples[index]} entries on its first axis "
                    f"for a batch of {len(loss)} losses; choose one with the samples' axis first"
                )
        edges = [self.edges[index] for index in range(len(self.names))]
        if not loss.requires_grad:
            raise WidthlabError(
                f"the loss depends on none of the insertion points {', '.join(self.names)}; choose "
                "modules that the output goes through, and do not detach the loss"
            )
        if check and len(loss) > 1:
            first = torch.autograd.grad(loss[0], edges, retain_graph=True, allow_unused=True)
            for name, gradient in zip(self.names, first, strict=True):
                if gradient is not None and bool((gradient[1:].nan_to_num(0.0) != 0).any()):
                    raise WidthlabError(
                        f"the loss of one sample depends on others through '{name}'; samples must "
                        "not affect one another: normalise by running statistics or within "
                        "samples, and do not average the loss over them"
                    )
        found: list[Tensor] = []
        gradients = torch.autograd.grad(loss.sum(), edges, allow_unused=True)
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is None:
                raise WidthlabError(
                    f"the loss does not depend on the output of insertion point '{name}'; leave it "
                    "out, or choose a module that the output goes through"
                )
            found.append(gradient)
        return found


class _Spool:
    """Rows that are appended to one file for each point, and mapped into memory at the end."""

    def __init__(self, folder: Path, names: list[str], files: ExitStack) -> None:
        self.paths = {name: folder / f"{number}.rows" for number, name in enumerate(names)}
        self.files: dict[str, BinaryIO] = {
            name: files.enter_context(path.open("wb")) for name, path in self.paths.items()
        }
        self.form: dict[str, tuple[np.dtype[Any], int]] = {}

    def add(self, name: str, rows: NDArray[np.floating], batch: int) -> None:
        """Append the rows (m, F) of one batch."""
        if not np.isfinite(rows).all():
            sample = int(np.argmin(np.isfinite(rows).all(axis=1)))
            raise WidthlabError(
                f"the gradient at insertion point '{name}' is not finite for sample {sample} of "
                f"batch {batch}; leave this sample out, or find out why its loss diverges"
            )
        form = self.form.setdefault(name, (rows.dtype, rows.shape[1]))
        if form != (rows.dtype, rows.shape[1]):
            raise WidthlabError(
                f"insertion point '{name}' has {rows.shape[1]} features in batch {batch} but "
                f'{form[1]} before; pool over positions ("sum" or "mean"), or make samples equally '
                "long"
            )
        self.files[name].write(rows.tobytes())

    def opened(self) -> dict[str, NDArray[np.floating]]:
        """Return all rows (n, F) by point, read-only and on disk."""
        found: dict[str, NDArray[np.floating]] = {}
        for name, path in self.paths.items():
            self.files[name].close()
            dtype, features = self.form[name]
            found[name] = np.memmap(path, dtype=dtype, mode="r").reshape(-1, features)
        return found


def several(batches: Iterable[Any], name: str) -> Iterable[Any]:
    """Return the same batches; raises WidthlabError where there is only one of them.

    That is known before the first is measured, from their number or from a look at the second.
    """
    try:
        count = len(batches)  # type: ignore[arg-type]
    except TypeError:
        rest = iter(batches)
        first = list(islice(rest, 2))
        count, batches = len(first), chain(first, rest)
    if count == 1:
        raise WidthlabError(
            f"the {name} gives all samples in one batch; give several smaller batches, so that "
            "memory does not grow with the number of samples"
        )
    return batches
