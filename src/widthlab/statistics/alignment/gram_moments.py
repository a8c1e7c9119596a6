"""Unbiased moments of activation gradients from their Gram matrices alone.

Sums over distinct samples are U-statistics, exactly unbiased for any law with fourth moments; the
plug-in estimates, in which a sample meets itself, are returned beside them because that is what is
published, and they are biased (|mean|² overshoots |μ|² by tr Σ/n). All takes O(n²) for each row of
signs, delete-one values included. Source: the project's theory, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from widthlab.errors import WidthlabError
from widthlab.theory.certificate import AlignmentMoments

Array = NDArray[np.float64]

LEAST_SAMPLES = 4
"""|μ|⁴ needs four distinct samples."""


@dataclass(frozen=True)
class GramMoments:
    """Estimates of the moments, arrays of one shape; see `theory.certificate.AlignmentMoments`."""

    signal: Array
    """m₁·m₂, or |μ|²."""
    square: Array
    """(m₁·m₂)², or |μ|⁴: not the square of `signal`, which is biased."""
    train_spread: Array
    test_spread: Array
    noise: Array

    @property
    def law(self) -> AlignmentMoments:
        """The moments of the law of μ_M·g_K, with √`square` for the signal (0 if not positive)."""
        usable = (self.signal > 0) & (self.square > 0)
        signal = np.sqrt(np.where(usable, self.square, 0.0))
        return AlignmentMoments(signal, self.train_spread, self.test_spread, self.noise)

    @property
    def positive(self) -> NDArray[np.bool_]:
        """Whether every estimate is positive, without which there is no certificate."""
        parts = (self.signal, self.square, self.train_spread, self.test_spread, self.noise)
        return np.asarray(np.all([part > 0 for part in parts], axis=0))


@dataclass(frozen=True)
class Estimates:
    """Moments for each row of signs, shape (rows,)."""

    unbiased: GramMoments
    left_out: tuple[GramMoments, ...]
    """The unbiased moments without sample i, shape (rows, n): one group for equal laws, training
    and test samples for different ones. NaN where too few samples are left."""
    plug_in: GramMoments


def equal_laws(gram: Array, signs: Array | None = None) -> Estimates:
    """Estimate |μ|², |μ|⁴, μ'Σμ and tr Σ² from the Gram matrix A (n, n) of samples of one law.

    With A's diagonal zeroed, r = A1, s = 1'A1, f = |A|² and falling factorials (n)_k:
    U1 = s/(n)₂ → |μ|², U2 = f/(n)₂ → tr M², U3 = (|r|² − f)/(n)₃ → μ'Mμ and
    U4 = (s² − 4|r|² + 2f)/(n)₄ → |μ|⁴, where M = E qq' = Σ + μμ'. `signs` (rows, n) of ±1 multiply
    the samples; left out, all are 1. Raises WidthlabError for fewer than four samples.
    """
    n = len(gram)
    if n < LEAST_SAMPLES:
        raise WidthlabError(
            f"an alignment certificate needs at least {LEAST_SAMPLES} samples, but got {n}"
        )
    flips = np.ones((1, n)) if signs is None else signs
    diagonal = gram.diagonal()
    off = gram.copy()
    np.fill_diagonal(off, 0.0)
    column = np.einsum("ij,ij->i", off, off)
    f = float(column.sum())
    sums = flips * (flips @ off)
    s, r2 = sums.sum(axis=1), np.sum(sums * sums, axis=1)
    # Without sample i: row sums lose A_ij, and |r|² the whole of r_i².
    met = flips * ((flips * sums) @ off)
    left_out = _equal(
        s[:, None] - 2 * sums,
        f - 2 * column,
        r2[:, None] - sums * sums - 2 * met + column,
        n - 1,
    )
    full = sums + diagonal
    total, rows = full.sum(axis=1) / n**2, np.sum(full * full, axis=1) / n**3
    second = (f + float(diagonal @ diagonal)) / n**2
    return Estimates(
        _equal(s, np.full_like(s, f), r2, n),
        (left_out,),
        _moments(total, total**2, rows, rows, np.full_like(s, second)),
    )


def different_laws(
    cross: Array, train_signs: Array | None = None, test_signs: Array | None = None
) -> Estimates:
    """Estimate m₁·m₂, its square, m₂'Σ₁m₂, m₁'Σ₂m₁ and tr Σ₁Σ₂ from C (n₁, n₂) = Q₁Q₂'.

    Sums over distinct training and distinct test samples of products of one or two entries of C;
    the training and the test Gram matrices have no part in it. Signs are (rows, n₁) and (rows,
    n₂). Raises WidthlabError for fewer than four training or test samples.
    """
    n1, n2 = cross.shape
    if min(n1, n2) < LEAST_SAMPLES:
        raise WidthlabError(
            f"an alignment certificate needs at least {LEAST_SAMPLES} training and "
            f"{LEAST_SAMPLES} test samples, but got {n1} and {n2}"
        )
    first = np.ones((1, n1)) if train_signs is None else train_signs
    second = np.ones((1, n2)) if test_signs is None else test_signs
    f_rows = np.einsum("ij,ij->i", cross, cross)
    f_columns = np.einsum("ij,ij->j", cross, cross)
    f = float(f_rows.sum())
    rows, columns = first * (second @ cross.T), second * (first @ cross)
    s = rows.sum(axis=1)
    r2, c2 = np.sum(rows * rows, axis=1), np.sum(columns * columns, axis=1)
    met_rows = first * ((second * columns) @ cross.T)
    met_columns = second * ((first * rows) @ cross)
    without_train = _different(
        s[:, None] - rows,
        f - f_rows,
        r2[:, None] - rows * rows,
        c2[:, None] - 2 * met_rows + f_rows,
        (n1 - 1, n2),
    )
    without_test = _different(
        s[:, None] - columns,
        f - f_columns,
        r2[:, None] - 2 * met_columns + f_columns,
        c2[:, None] - columns * columns,
        (n1, n2 - 1),
    )
    mean = s / (n1 * n2)
    return Estimates(
        _different(s, np.full_like(s, f), r2, c2, (n1, n2)),
        (without_train, without_test),
        _moments(
            mean,
            mean**2,
            r2 / (n1 * n2**2),
            c2 / (n1**2 * n2),
            np.full_like(s, f / (n1 * n2)),
        ),
    )


def _equal(s: Array, f: Array, r2: Array, n: int) -> GramMoments:
    """Moments from sums over n samples of one law."""
    u3 = (r2 - f) / _falling(n, 3)
    u4 = (s**2 - 4 * r2 + 2 * f) / _falling(n, 4)
    return _moments(s / _falling(n, 2), u4, u3, u3, f / _falling(n, 2))


def _different(s: Array, f: Array, r2: Array, c2: Array, n: tuple[int, int]) -> GramMoments:
    """Moments from sums over n₁ training and n₂ test samples."""
    n1, n2 = n
    pairs1, pairs2 = _falling(n1, 2), _falling(n2, 2)
    square = (s**2 - r2 - c2 + f) / (pairs1 * pairs2)
    return _moments(
        s / (n1 * n2), square, (r2 - f) / (n1 * pairs2), (c2 - f) / (pairs1 * n2), f / (n1 * n2)
    )


def _moments(signal: Array, square: Array, train: Array, test: Array, second: Array) -> GramMoments:
    """Central moments from m₂'M₁m₂, m₁'M₂m₁ and tr M₁M₂, second moments about zero."""
    return GramMoments(
        signal, square, train - square, test - square, second - train - test + square
    )


def _falling(n: int, k: int) -> float:
    """Return n(n − 1)…(n − k + 1), or NaN where there are too few samples."""
    product = float(np.prod(n - np.arange(k, dtype=np.float64)))
    return product if n >= k else float("nan")
