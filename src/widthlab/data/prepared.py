"""A data set ready for training, and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from widthlab.errors import WidthlabError

METADATA_KEY = "widthlab"
TENSORS = ("train_x", "train_y", "test_x", "test_y", "train_indices", "test_indices")

IGNORE = -100
"""Label of a position that does not count: padding behind the end of a sequence."""


@dataclass(frozen=True)
class Prepared:
    """A data set in memory, with the split that was chosen.

    Inputs are raw: uint8 images (n, channels, height, width), float32 features (n, d) or int64
    tokens (n, T). Labels are int64 (n,), or for tokens (n, T), IGNORE where there is none. The
    indices (n,) say which samples of the original they are. `mean` and `std` are per channel, one
    number for features and grey images, and come from the training samples, so that normalised
    training inputs have |x|²/d = 1 on average; for tokens there are none.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    train_indices: Tensor
    test_indices: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])

    @property
    def outputs(self) -> int:
        """Number of classes, or of the tokens known: the number of outputs of a network."""
        return len(self.classes)

    def normalise(self, x: Tensor) -> Tensor:
        """Return raw inputs x as (x - mean) / std, float32, on the device of x; tokens as such."""
        if not self.mean:
            return x
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=x.device).reshape(shape)
        std = torch.tensor(self.std, dtype=torch.float32, device=x.device).reshape(shape)
        return (x.to(torch.float32) - mean) / std

    def train(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the normalised training inputs and their labels on a device."""
        return self.normalise(self.train_x.to(device)), self.train_y.to(device)

    def test(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the normalised test inputs and their labels on a device."""
        return self.normalise(self.test_x.to(device)), self.test_y.to(device)


Array = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


def assemble(
    name: str,
    train: tuple[Array, Indices, Indices],
    test: tuple[Array, Indices, Indices],
    classes: tuple[str, ...],
) -> Prepared:
    """Return the data set made of (inputs, labels, indices) of both parts.

    Raises WidthlabError where a channel of the training inputs is constant, for then there is
    nothing to learn from it and nothing to normalise by.
    """
    mean, std = _moments(train[0])
    if not all(value > 0 and np.isfinite(value) for value in std):
        raise WidthlabError(
            f"data set {name}: the training inputs are constant in a channel, so they cannot be "
            "normalised; take other or more samples"
        )
    return Prepared(
        train_x=torch.from_numpy(train[0]),
        train_y=torch.from_numpy(train[1]),
        test_x=torch.from_numpy(test[0]),
        test_y=torch.from_numpy(test[1]),
        train_indices=torch.from_numpy(train[2]),
        test_indices=torch.from_numpy(test[2]),
        classes=classes,
        mean=mean,
        std=std,
    )


def _moments(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation: per channel of images, one of each for features."""
    channels = [x] if x.ndim == 2 else [x[:, channel] for channel in range(x.shape[1])]
    mean = tuple(float(np.mean(part, dtype=np.float64)) for part in channels)
    std = tuple(float(np.std(part, dtype=np.float64)) for part in channels)
    return mean, std


def save_prepared(prepared: Prepared, path: Path) -> None:
    """Write a data set as one safetensors file; the same data give the same bytes."""
    words = {"classes": prepared.classes, "mean": prepared.mean, "std": prepared.std}
    # One metadata key only: safetensors writes several in random order.
    save_file(
        {name: getattr(prepared, name).contiguous() for name in TENSORS},
        path,
        metadata={METADATA_KEY: json.dumps(words, sort_keys=True, ensure_ascii=False)},
    )


def load_prepared(path: Path) -> Prepared:
    """Read what `save_prepared` wrote; raises WidthlabError where the file is something else."""
    try:
        with safe_open(path, framework="pt") as file:
            words = json.loads(file.metadata()[METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in TENSORS}
        return Prepared(
            **tensors,
            classes=tuple(words["classes"]),
            mean=tuple(words["mean"]),
            std=tuple(words["std"]),
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WidthlabError(
            f"{path} is not a prepared data set ({error}); remove it, and it is made again"
        ) from error
