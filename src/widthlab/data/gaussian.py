"""Synthetic Gaussian inputs with a linear teacher."""

from __future__ import annotations

import numpy as np

from widthlab import specs
from widthlab.data.prepared import Prepared, assemble


def prepare_gaussian(spec: specs.Gaussian) -> Prepared:
    """Return x ~ N(0, 1)^d with labels argmax_c (T x)_c of one random Gaussian matrix T.

    Teacher, training and test inputs have streams of their own under `split_seed`, so that a
    smaller set is the beginning of a larger one.
    """
    teacher_rng, train_rng, test_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence(spec.split_seed).spawn(3)
    )
    teacher = teacher_rng.standard_normal((spec.dimension, spec.classes))
    parts = []
    for rng, samples in ((train_rng, spec.train_samples), (test_rng, spec.test_samples)):
        x = rng.standard_normal((samples, spec.dimension))
        labels = np.argmax(x @ teacher, axis=1).astype(np.int64)
        parts.append((x.astype(np.float32), labels, np.arange(samples, dtype=np.int64)))
    classes = tuple(str(label) for label in range(spec.classes))
    return assemble(spec.name, parts[0], parts[1], classes)
