"""Samples that are on both sides: training samples that are tested on too.

Loaders of one and the same data set are refused, since nothing else can be meant by mistake.
Samples with the same gradient at all points are counted, and the count is a caution beside the
result and no error: independent draws of a discrete law (one-hot inputs, short texts) may coincide
by right, and only who knows the data can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.grams import Grams

SAME = 1e-5
"""Relative distance of two gradients below which they differ by rounding in float32."""


def refuse_shared(train_loader: Any, test_loader: Any) -> None:
    """Raise WidthlabError where both loaders read the same samples, as far as they tell.

    Subsets and samplers of one data set may share it, if their indices are disjoint.
    """
    if train_loader is test_loader:
        raise WidthlabError(
            "the training and the test loader are the same; give held-out samples as test_loader"
        )
    (first, train), (second, test) = _chosen(train_loader), _chosen(test_loader)
    if first is None or first is not second:
        return
    if train is None or test is None:
        raise WidthlabError(
            "the training and the test loader read the same data set; give held-out samples as "
            "test_loader, for instance by torch.utils.data.random_split"
        )
    both = set(train) & set(test)
    if both:
        raise WidthlabError(
            f"the training and the test loader share {len(both)} samples of one data set, for "
            f"instance sample {min(both)}; choose disjoint ones"
        )


def same_gradients(grams: Grams) -> NDArray[np.bool_]:
    """Say of which training and test samples (n₁, n₂) the gradients agree to rounding.

    |q − p|² is A_ii + B_jj − 2 C_ij. Gradients that are 0 do not count.
    """
    train, test = grams.train.diagonal(), grams.test.diagonal()
    found = np.zeros(grams.cross.shape, dtype=np.bool_)
    # Row by row, so that there is no other matrix of numbers beside the Grams.
    for row in np.flatnonzero(train > 0):
        total = train[row] + test
        found[row] = total - 2 * grams.cross[row] <= SAME**2 * total
    return found


def _chosen(loader: Any) -> tuple[Any, list[int] | None]:
    """Return the data set that a loader reads, and the samples of it; None where all."""
    data, indices = getattr(loader, "dataset", None), None
    sampled = getattr(getattr(loader, "sampler", None), "indices", None)
    if isinstance(sampled, Sequence | np.ndarray):
        indices = [int(i) for i in sampled]
    while isinstance(data, Subset):
        own = [int(i) for i in data.indices]
        indices = own if indices is None else [own[i] for i in indices]
        data = data.dataset
    return data, indices
