"""Gram matrices of activation gradients, in float64 and a few features at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from widthlab.errors import WidthlabError

Array = NDArray[np.float64]

CHUNK_BYTES = 2**25
"""Memory of the rows that are in float64 at a time."""


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
    total = np.zeros((n1 + n2, n1 + n2))
    size = max(1, CHUNK_BYTES // (8 * max(1, n1 + n2)))
    for start in range(0, train.shape[1], size):
        columns = slice(start, start + size)
        rows = np.concatenate([train[:, columns], test[:, columns]], dtype=np.float64)
        total += rows @ rows.T
    return Grams(total[:n1, :n1], total[:n1, n1:], total[n1:, n1:])


def centred(gram: Array) -> Array:
    """Return H C H', the inner products (n₁, n₂) once each side's mean is taken off its samples."""
    rows, columns = gram.mean(axis=1, keepdims=True), gram.mean(axis=0, keepdims=True)
    return np.asarray(gram - rows - columns + gram.mean())
