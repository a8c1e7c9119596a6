"""CIFAR-10 and CIFAR-100, downloaded and checked by torchvision, decoded here.

The archives hold pickles, which can run any code when torchvision's own classes load them. Here
they are read straight from the archive, after its checksum, by an unpickler that knows only
what an array is made of.
"""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from numpy._core import multiarray
from torchvision.datasets.utils import download_url

from widthlab import specs
from widthlab.data.prepared import Prepared, assemble
from widthlab.data.splits import Indices, balanced_order, take
from widthlab.errors import WidthlabError


class Archive(NamedTuple):
    """Where an archive comes from, and what is where inside it."""

    url: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    label_key: str
    names_key: str


ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        label_key="labels",
        names_key="label_names",
    ),
    "cifar100": Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        label_key="fine_labels",
        names_key="fine_label_names",
    ),
}
"""The archives of Krizhevsky (2009); addresses and MD5 sums as in torchvision."""


def prepare_cifar(spec: specs.CIFAR, folder: Path) -> Prepared:
    """Return CIFAR as images (n, 3, 32, 32), downloading it into `folder` once.

    Raises WidthlabError where it cannot be downloaded or is damaged.
    """
    archive = ARCHIVES[spec.name]
    path = download(spec.name, archive, folder)
    train, test, classes = read_archive(path, archive)
    streams = np.random.SeedSequence(spec.split_seed).spawn(2)
    keys = ("train_samples", "test_samples")
    chosen = []
    for key, (images, labels), wanted, stream in zip(
        keys, (train, test), (spec.train_samples, spec.test_samples), streams, strict=True
    ):
        order = take(balanced_order(labels, stream), wanted, key, spec.name)
        chosen.append((images[order], labels[order], order))
    return assemble(spec.name, chosen[0], chosen[1], classes)


def download(name: str, archive: Archive, folder: Path) -> Path:
    """Return the path of an archive in `folder`, downloaded unless it is there and intact.

    Two processes that want it at once are served one after the other.
    """
    file = archive.url.rsplit("/", 1)[-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{file}.lock"):
            download_url(archive.url, folder, file, archive.md5)
    except (OSError, RuntimeError) as error:
        raise WidthlabError(
            f"data set {name} could not be downloaded into {folder} ({error}); without a network, "
            f"fetch {archive.url} elsewhere and place it, as it is, at {folder / file}"
        ) from error
    return folder / file


Part = tuple[npt.NDArray[np.uint8], Indices]


def read_archive(path: Path, archive: Archive) -> tuple[Part, Part, tuple[str, ...]]:
    """Return images (n, 3, 32, 32) and labels (n,) of training and test, and the class names.

    Raises WidthlabError where the file is not such an archive.
    """
    try:
        with tarfile.open(path) as tar:
            train = [_batch(_member(tar, archive, name), archive) for name in archive.train]
            test = [_batch(_member(tar, archive, name), archive) for name in archive.test]
            names = _member(tar, archive, archive.meta)[archive.names_key]
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, pickle.UnpicklingError) as e:
        raise WidthlabError(
            f"{path} is not the archive of {archive.url} ({e}); remove it, and it is fetched again"
        ) from e
    return _joined(train), _joined(test), tuple(str(name) for name in names)


def _member(tar: tarfile.TarFile, archive: Archive, name: str) -> dict[str, Any]:
    file = tar.extractfile(f"{archive.folder}/{name}")
    if file is None:
        raise KeyError(f"{archive.folder}/{name} is not a file")
    content = ArrayUnpickler(file).load()
    if not isinstance(content, dict):
        raise ValueError(f"{archive.folder}/{name} holds no dictionary")
    return content


def _batch(content: dict[str, Any], archive: Archive) -> Part:
    images = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    labels = np.asarray(content[archive.label_key], dtype=np.int64)
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images with {len(labels)} labels")
    return images, labels


def _joined(batches: list[Part]) -> Part:
    return np.concatenate([part[0] for part in batches]), np.concatenate([p[1] for p in batches])


def _encode(text: str, encoding: str) -> bytes:
    """Do what pickles of raw bytes ask of `codecs.encode`, for their one encoding."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, numbers, text, lists and dictionaries; refuses every other global name."""

    ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012 - a constant table
        ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _encode,
    }

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")  # the archives were written by Python 2

    def find_class(self, module: str, name: str) -> Any:
        """Return what a global name stands for; raises UnpicklingError unless it is allowed."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")
        return self.ALLOWED[module, name]
