"""Data sets by name, prepared once into tensors.

Light to import: torch, sklearn, torchvision and PIL are imported where a data set needs them,
since a study is parsed without any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from widthlab import specs

if TYPE_CHECKING:
    from widthlab.data.prepared import Prepared as Prepared

__all__ = ["PREPARERS", "load", "prepare", "save"]


def _digits(spec: specs.DataSet, folder: Path) -> Prepared:
    from widthlab.data.digits import prepare_digits

    assert isinstance(spec, specs.Digits)
    return prepare_digits(spec)


def _cifar(spec: specs.DataSet, folder: Path) -> Prepared:
    from widthlab.data.cifar import prepare_cifar

    assert isinstance(spec, specs.CIFAR)
    return prepare_cifar(spec, folder)


def _imagefolder(spec: specs.DataSet, folder: Path) -> Prepared:
    from widthlab.data.imagefolder import prepare_imagefolder

    assert isinstance(spec, specs.ImageFolder)
    return prepare_imagefolder(spec)


def _gaussian(spec: specs.DataSet, folder: Path) -> Prepared:
    from widthlab.data.gaussian import prepare_gaussian

    assert isinstance(spec, specs.Gaussian)
    return prepare_gaussian(spec)


def _textfile(spec: specs.DataSet, folder: Path) -> Prepared:
    from widthlab.data.textfile import prepare_textfile

    assert isinstance(spec, specs.TextFile)
    return prepare_textfile(spec, folder)


PREPARERS: dict[str, Callable[[specs.DataSet, Path], Prepared]] = {
    "digits": _digits,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "imagefolder": _imagefolder,
    "gaussian": _gaussian,
    "textfile": _textfile,
}
"""How each data set of `specs` is prepared, by its name."""


def prepare(spec: specs.DataSet, folder: Path) -> Prepared:
    """Return the data set `spec`, split and ready for training.

    `folder` is where downloads are kept (CIFAR, and tokenizers of the hub). Raises WidthlabError
    where the data cannot be had or hold fewer samples than asked for.
    """
    return PREPARERS[spec.name](spec, folder)


def save(prepared: Prepared, path: Path) -> None:
    """Write a data set as one safetensors file; the same data give the same bytes."""
    from widthlab.data.prepared import save_prepared

    save_prepared(prepared, path)


def load(path: Path) -> Prepared:
    """Read a data set written by `save`; raises WidthlabError where the file is not one."""
    from widthlab.data.prepared import load_prepared

    return load_prepared(path)
