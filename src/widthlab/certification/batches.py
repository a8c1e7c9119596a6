"""Images and text from files, in batches of training and of test samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.progress import track
from torch import Tensor

from widthlab import specs
from widthlab.data.fingerprint import class_folders, parts
from widthlab.data.imagefolder import prepare_imagefolder
from widthlab.data.pretrained import TOKENIZER
from widthlab.data.splits import split
from widthlab.data.textfile import prepare_textfile
from widthlab.errors import WidthlabError

SAMPLES = 512
"""Training and test samples where nothing is asked for."""


Spec = TypeVar("Spec", bound=BaseModel)


@dataclass(frozen=True)
class Batches:
    """Samples (x, y) in batches, at least two of them, with what is done to x on the way."""

    x: Tensor
    y: Tensor
    size: int
    name: str
    transform: Callable[[Tensor], Tensor] = torch.Tensor.clone

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.x) // self._step)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over batches, with a progress bar where errors go to a terminal."""
        console = Console(stderr=True)
        starts = range(0, len(self.x), self._step)
        shown = track(
            starts,
            f"{self.name} samples",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        for start in shown:
            rows = slice(start, start + self._step)
            yield self.transform(self.x[rows]), self.y[rows]

    def few(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first samples, as a batch."""
        return self.transform(self.x[:count]), self.y[:count]

    @property
    def _step(self) -> int:
        return max(1, min(self.size, len(self.x) // 2))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How samples are read and chosen."""

    train_samples: int | None = None
    """None: `SAMPLES`, or all where there are fewer."""
    test_samples: int | None = None
    batch_size: int = 32
    test_fraction: float = 0.2
    seed: int = 0


def image_batches(
    path: Path,
    choice: Choice,
    *,
    size: int,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> tuple[Batches, Batches]:
    """Return training and test images (n, 3, size, size) of a folder, with their classes.

    They are read as `data.imagefolder` reads them, class-balanced, and normalised channel by
    channel to (x/255 − mean)/std; left out, by the mean and deviation of the training samples.
    Raises WidthlabError for a folder that cannot be used, or too few samples.
    """
    train, test = _image_counts(path, choice)
    spec = _parsed(
        specs.ImageFolder,
        path=str(path),
        size=size,
        test_fraction=choice.test_fraction,
        train_samples=train,
        test_samples=test,
        split_seed=choice.seed,
    )
    data = prepare_imagefolder(spec)
    normalise = data.normalise
    if mean is not None and std is not None:
        centre, scale = (torch.tensor(v).reshape(1, -1, 1, 1) for v in (mean, std))

        def normalise(x: Tensor) -> Tensor:
            return (x.to(torch.float32) / 255 - centre) / scale

    return (
        Batches(data.train_x, data.train_y, choice.batch_size, "training", normalise),
        Batches(data.test_x, data.test_y, choice.batch_size, "test", normalise),
    )


def text_batches(
    path: Path, choice: Choice, *, length: int, tokenizer: Path | None = None
) -> tuple[Batches, Batches]:
    """Return training and test sequences (n, length) of a text file, with their next tokens.

    They are those of `data.textfile`: tokens of the tokenizer.json in a folder, or bytes where it
    has no tokenizer; the end of the text is the test's; sequences are drawn at random. Raises
    WidthlabError for a file that is no text or too short, and for another kind of tokenizer.
    """
    name = "bytes"
    if tokenizer is not None and (tokenizer / TOKENIZER).exists():
        name = str(tokenizer.resolve())
    elif tokenizer is not None and any(tokenizer.glob("tokenizer*")):
        raise WidthlabError(
            f"--model: {tokenizer} has a tokenizer, but no {TOKENIZER}; save one there with the "
            "tokenizer's save_pretrained"
        )
    spec = _parsed(
        specs.TextFile,
        path=str(path),
        tokenizer=name,
        length=length,
        test_fraction=choice.test_fraction,
        train_samples=choice.train_samples,
        test_samples=choice.test_samples,
        split_seed=choice.seed,
    )
    # No folder is needed, since nothing is downloaded.
    data = prepare_textfile(spec, path.parent)
    # Their order is random, so that the first are a choice.
    train, test = choice.train_samples or SAMPLES, choice.test_samples or SAMPLES
    return (
        Batches(data.train_x[:train], data.train_y[:train], choice.batch_size, "training"),
        Batches(data.test_x[:test], data.test_y[:test], choice.batch_size, "test"),
    )


def _parsed(kind: type[Spec], **values: Any) -> Spec:
    """Return a specification; raises WidthlabError with the first thing that is wrong."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        words = first["msg"].removeprefix("Value error, ")
        raise WidthlabError(f"--data: {f'{where}: ' if where else ''}{words}") from None


def _image_counts(path: Path, choice: Choice) -> tuple[int, int]:
    """Return how many training and test images to read: what is asked for, or what is there."""
    both = parts(path)
    counts = [[len(files) for files in class_folders(p).values()] for p in both or (path,)]
    if both:
        there = sum(counts[0]), sum(counts[1])
    elif counts[0] and min(counts[0]) >= 2:
        labels = np.repeat(np.arange(len(counts[0])), counts[0])
        train, test = split(labels, choice.test_fraction, choice.seed, str(path))
        there = len(train), len(test)
    else:
        there = 1, 1  # reading them says what is wrong
    return (
        choice.train_samples or min(SAMPLES, max(1, there[0])),
        choice.test_samples or min(SAMPLES, max(1, there[1])),
    )
