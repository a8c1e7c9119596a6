"""The digits that scikit-learn carries: no download."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from widthlab import specs
from widthlab.data.prepared import Prepared, assemble
from widthlab.data.splits import split, take


def prepare_digits(spec: specs.Digits) -> Prepared:
    """Return the 1,797 digits as images (n, 1, 8, 8) of grey levels 0 to 16."""
    loaded = load_digits()
    images = loaded.images.astype(np.uint8)[:, None]
    labels = loaded.target.astype(np.int64)
    train, test = split(labels, spec.test_fraction, spec.split_seed, spec.name)
    train = take(train, spec.train_samples, "train_samples", spec.name)
    test = take(test, spec.test_samples, "test_samples", spec.name)
    return assemble(
        spec.name,
        (images[train], labels[train], train),
        (images[test], labels[test], test),
        tuple(str(digit) for digit in range(10)),
    )
