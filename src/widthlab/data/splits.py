"""Which samples are used, in what order: deterministic, class-balanced, and nested."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from widthlab.errors import WidthlabError

Indices = npt.NDArray[np.int64]


def balanced_order(labels: Indices, seed: int | np.random.SeedSequence) -> Indices:
    """Return a random order (n,) of samples in which every prefix is class-balanced.

    Round after round, each class gives its next sample, until it has no more. Shorter prefixes
    are therefore contained in longer ones.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    return shuffled[np.argsort(_rounds(labels[shuffled]), kind="stable")]


def split(labels: Indices, test_fraction: float, seed: int, name: str) -> tuple[Indices, Indices]:
    """Return the indices of training and test samples, each in a balanced order.

    Every class gives the same share to the test, at least one sample and never all. Raises
    WidthlabError where a class has fewer than two samples.
    """
    counts = np.bincount(labels)
    if counts.min() < 2:
        raise WidthlabError(
            f"data set {name}: class number {int(counts.argmin())} has fewer than two samples, so "
            "it cannot be split into training and test; add samples or remove the class"
        )
    held_out = np.clip(np.rint(counts * test_fraction).astype(np.int64), 1, counts - 1)
    order = balanced_order(labels, seed)
    is_test = _rounds(labels[order]) < held_out[labels[order]]
    train, test = order[~is_test], order[is_test]
    return (
        train[np.argsort(_rounds(labels[train]), kind="stable")],
        test[np.argsort(_rounds(labels[test]), kind="stable")],
    )


def take(order: Indices, wanted: int | None, key: str, name: str) -> Indices:
    """Return the first `wanted` of an order, or all; raises WidthlabError where it is shorter."""
    if wanted is not None and wanted > len(order):
        raise WidthlabError(
            f"{key}: {wanted} is more than the {len(order)} that data set {name} has there; "
            f"write {len(order)} or less, or leave {key} out to take all"
        )
    return order[:wanted]


def _rounds(labels: Indices) -> Indices:
    """Return, for each sample, how many earlier ones have its label."""
    by_class = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    rounds = np.empty(len(labels), dtype=np.int64)
    rounds[by_class] = np.arange(len(labels)) - starts
    return rounds
