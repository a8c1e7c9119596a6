"""Datasets in zarr: written whole, opened lazily."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import xarray as xr
import zarr.errors

from widthlab.errors import WidthlabError

CHUNK = 2**26
"""Bytes of a chunk at most, before compression: a store has few files, and none is huge."""


def write(dataset: xr.Dataset, path: Path) -> None:
    """Write a dataset as a zarr (format 3) folder with consolidated metadata."""
    dataset = of_any_length(dataset)
    encoding = {name: {"chunks": _chunks(array)} for name, array in dataset.variables.items()}
    with quiet():
        dataset.to_zarr(path, mode="w-", zarr_format=3, consolidated=True, encoding=encoding)


def of_any_length(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose texts may have any length.

    Text of one length has no specification in zarr 3; text of any length has.
    """
    text = [name for name, array in dataset.variables.items() if array.dtype.kind == "U"]
    return dataset.assign({name: dataset.variables[name].astype(object) for name in text})


@contextmanager
def quiet() -> Iterator[None]:
    """Write without zarr's warnings of what is an extension of the format.

    Consolidated metadata is one, and xarray reads it by default.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=zarr.errors.ZarrUserWarning)
        yield


def _chunks(array: xr.Variable) -> tuple[int, ...]:
    """Return chunks that are whole but for the leading dimensions of a large array."""
    chunks = [max(1, length) for length in array.shape]
    for axis, length in enumerate(chunks):
        rest = array.dtype.itemsize * prod(chunks[axis + 1 :])
        chunks[axis] = min(length, max(1, CHUNK // rest))
        if chunks[axis] > 1:
            break
    return tuple(chunks)


def open_dataset(path: Path) -> xr.Dataset:
    """Open a dataset that `write` wrote; raises WidthlabError where it cannot be read."""
    try:
        dataset: xr.Dataset = xr.open_zarr(path)
    except (OSError, KeyError, ValueError) as error:
        raise WidthlabError(f"cannot read {path} as a zarr store: {error}") from error
    return dataset
