"""Images and text from files, in batches of training and of test samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer
from torch import Tensor

from widthlab import specs
from widthlab.data.fingerprint import class_folders, parts
from widthlab.data.imagefolder import prepare_imagefolder
from widthlab.data.splits import split
from widthlab.errors import WidthlabError

SAMPLES = 512
"""Training and test samples where nothing is asked for."""


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
    try:
        spec = specs.ImageFolder(
            path=str(path),
            size=size,
            test_fraction=choice.test_fraction,
            train_samples=train,
            test_samples=test,
            split_seed=choice.seed,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise WidthlabError(f"--data: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
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

    Tokens are those of the tokenizer in a folder of transformers, or bytes. The last part of the
    text, `test_fraction` of it, is the test's; sequences do not overlap, and are drawn at random.
    Raises WidthlabError for a file that is no text or too short.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WidthlabError(f"--data: {path} cannot be read as UTF-8 text: {error}") from None
    held_out = len(text) - round(choice.test_fraction * len(text))
    generator = np.random.default_rng(choice.seed)
    found: list[Batches] = []
    for name, key, part, wanted in (
        ("training", "--train-samples", text[:held_out], choice.train_samples),
        ("test", "--test-samples", text[held_out:], choice.test_samples),
    ):
        tokens = _tokens(part, tokenizer)
        there = len(tokens) // (length + 1)
        if there < (wanted or 1):
            raise WidthlabError(
                f"{key}: {wanted or 1} sequences of {length} tokens are more than the {there} in "
                f"the {name} part of {path}; take fewer, a smaller --length, or a longer text"
            )
        rows = np.sort(generator.permutation(there)[: wanted or SAMPLES])
        windows = torch.from_numpy(tokens[: there * (length + 1)].reshape(there, -1)[rows])
        found.append(Batches(windows[:, :-1], windows[:, 1:], choice.batch_size, name))
    return found[0], found[1]


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


def _tokens(text: str, tokenizer: Path | None) -> NDArray[np.int64]:
    if tokenizer is None or not any(tokenizer.glob("tokenizer*")):
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
    file = tokenizer / "tokenizer.json"
    try:
        if file.exists():
            # Not by transformers, whose class for a model may build another tokenizer of it.
            tokens = Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
        else:
            from transformers import AutoTokenizer

            reader = AutoTokenizer.from_pretrained(
                tokenizer, local_files_only=True, trust_remote_code=False
            )
            tokens = reader.encode(text, add_special_tokens=False, verbose=False)
    except Exception as error:  # the library of tokenizers raises nothing more special
        raise WidthlabError(
            f"--model: the tokenizer in {tokenizer} cannot be read: {error}"
        ) from error
    return np.asarray(tokens, dtype=np.int64)
