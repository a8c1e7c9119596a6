"""Orders and splits: complete, balanced, nested, and a function of the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widthlab.data.splits import balanced_order, split, take
from widthlab.errors import WidthlabError

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=60).map(
    lambda values: np.array(values, dtype=np.int64)
)


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, seed=st.integers(0, 2**32))
def test_every_prefix_is_balanced_as_far_as_the_classes_last(labels, seed):
    order = balanced_order(labels, seed)
    assert sorted(order) == list(range(len(labels)))
    totals = np.bincount(labels, minlength=4)
    for length in range(len(order) + 1):
        counts = np.bincount(labels[order[:length]], minlength=4)
        unfinished = counts < totals
        if unfinished.any():
            assert counts.max() - counts[unfinished].min() <= 1


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, seed=st.integers(0, 2**32), fraction=st.floats(0.05, 0.95))
def test_split_is_disjoint_complete_and_has_every_class_on_both_sides(labels, seed, fraction):
    labels = np.concatenate([labels, [0, 0, 1, 1, 2, 2, 3, 3]])
    train, test = split(labels, fraction, seed, "x")
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in range(4):
        total = int((labels == label).sum())
        held_out = int((labels[test] == label).sum())
        assert held_out == min(max(round(total * fraction), 1), total - 1)
    for part in (train, test):
        totals = np.bincount(labels[part], minlength=4)
        counts = np.bincount(labels[part[:4]], minlength=4)
        assert (counts == np.minimum(totals, 1)).all()


def test_seed_decides_the_order():
    labels = np.repeat(np.arange(3), 20)
    assert (balanced_order(labels, 1) == balanced_order(labels, 1)).all()
    assert (balanced_order(labels, 1) != balanced_order(labels, 2)).any()


def test_class_with_one_sample_cannot_be_split():
    with pytest.raises(WidthlabError, match="class number 1 has fewer than two"):
        split(np.array([0, 0, 1]), 0.5, 0, "x")


def test_taking_more_than_there_is_names_key_and_numbers():
    with pytest.raises(WidthlabError, match=r"train_samples: 5 is more than the 3 .* digits"):
        take(np.arange(3), 5, "train_samples", "digits")
    assert (take(np.arange(3), 2, "k", "x") == [0, 1]).all()
    assert (take(np.arange(3), None, "k", "x") == [0, 1, 2]).all()
