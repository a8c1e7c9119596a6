"""Gram matrices of activation gradients, in float64 and a few features at a time."""

from __future__ import annotations

from dataclasses import dataclass
from mmap import MADV_DONTNEED

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from widthlab.errors import WidthlabError

Array = NDArray[np.float64]

CHUNK_BYTES = 2**24
"""Memory of the rows that are in float64 at a time."""
MAPPED_BYTES = 2**23
"""Memory of the files of rows that are mapped at a time."""
READ_AHEAD = 2**16
"""What the kernel maps around one address."""


@dataclass(frozen=True)
class Grams:
    """Inner products of the gradients of n₁ training and n₂ test samples at one point."""

    train: Array
    """(n₁, n₁)."""
    cross: Array
    """(n₁, n₂), training samples by test samples."""
    test: Array
    """(n₂, n₂)."""

    @property
    def pooled(self) -> Array:
        """The Gram matrix (n₁ + n₂, n₁ + n₂) of all samples, training samples first."""
        return np.block([[self.train, self.cross], [self.cross.T, self.test]])


def gram_matrices(train: NDArray[np.floating], test: NDArray[np.floating]) -> Grams:
    """Return the Gram matrices of rows (n₁, F) and (n₂, F), which may lie on disk.

    Memory beside the result stays at about `CHUNK_BYTES`. Raises WidthlabError where the numbers
    of features differ.
    """
    if train.shape[1] != test.shape[1]:
        raise WidthlabError(
            f"training gradients have {train.shape[1]} features but test gradients "
            f"{test.shape[1]}; pool both in the same way, and to a size that does not depend on "
            "the sample"
        )
    n1, n2 = len(train), len(test)
    # Fortran's order, as BLAS adds to it in place.
    total = np.zeros((n1 + n2, n1 + n2), order="F")
    features = train.shape[1]
    size = max(1, min(features, CHUNK_BYTES // (8 * max(1, n1 + n2))))
    rows = np.empty((n1 + n2, size))
    for start in range(0, features, size):
        columns = slice(start, min(start + size, features))
        width = columns.stop - start
        _read(train, columns, rows[:n1, :width])
        _read(test, columns, rows[n1:, :width])
        total = dsyrk(1.0, rows[:, :width].T, 1.0, total, trans=1, lower=1, overwrite_c=1)
    for i in range(1, n1 + n2):
        total[:i, i] = total[i, :i]
    return Grams(total[:n1, :n1], total[:n1, n1:], total[n1:, n1:])


def _read(rows: NDArray[np.floating], columns: slice, out: Array) -> None:
    """Copy columns of rows that may be mapped from a file, and give its pages back on the way.

    They would count as memory of this process as long as there is no want of it.
    """
    mapped = getattr(rows, "_mmap", None) if getattr(rows, "mode", "") == "r" else None
    touched = min(rows.shape[1] * rows.itemsize, out.shape[1] * rows.itemsize + READ_AHEAD)
    step = max(1, MAPPED_BYTES // max(1, touched))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        out[part] = rows[part, columns]
        if mapped is not None:
            mapped.madvise(MADV_DONTNEED)


def centred(gram: Array) -> Array:
    """Return H C H', the inner products (n₁, n₂) once each side's mean is taken off its samples."""
    rows, columns = gram.mean(axis=1, keepdims=True), gram.mean(axis=0, keepdims=True)
    found: Array = gram - rows
    found -= columns
    found += gram.mean()
    return found
