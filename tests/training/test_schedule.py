"""What happens at which step."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widthlab import specs
from widthlab.checkpoints.schedule import BatchOrder, Seeds, learning_rate, snapshot_steps


@given(steps=st.integers(1, 10**6), count=st.integers(2, 200))
def test_snapshots_start_at_zero_rise_and_end_at_the_end(steps, count):
    chosen = snapshot_steps(steps, count)
    assert len(chosen) == min(count, steps + 1)
    assert chosen[0] == 0
    assert chosen[-1] == steps
    assert all(a < b for a, b in itertools.pairwise(chosen))


def test_snapshots_are_evenly_spaced_in_the_logarithm():
    assert snapshot_steps(10_000, 6) == (0, 1, 10, 100, 1000, 10_000)
    assert snapshot_steps(200, 2) == (0, 200)
    assert snapshot_steps(4, 200) == (0, 1, 2, 3, 4)
    ratios = np.diff(np.log(snapshot_steps(10**6, 50)[20:]))
    np.testing.assert_allclose(ratios, ratios.mean(), rtol=0.05)


def _training(**fields):
    return specs.Training(learning_rate=2.0, **fields)


def test_rate_without_warmup():
    constant = _training(steps=10)
    assert [learning_rate(constant, step) for step in range(11)] == [2.0] * 11
    linear = _training(steps=10, schedule="linear")
    expected = 2.0 * (1 - np.arange(11) / 10)
    np.testing.assert_allclose([learning_rate(linear, step) for step in range(11)], expected)
    cosine = _training(steps=10, schedule="cosine")
    expected = 1.0 + np.cos(math.pi * np.arange(11) / 10)
    np.testing.assert_allclose(
        [learning_rate(cosine, step) for step in range(11)], expected, atol=1e-15
    )


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warmup_rises_by_equal_steps_to_the_base_rate(schedule):
    training = _training(steps=12, warmup_steps=4, schedule=schedule)
    rates = [learning_rate(training, step) for step in range(12)]
    np.testing.assert_allclose(rates[:5], [0.4, 0.8, 1.2, 1.6, 2.0])
    assert max(rates) == 2.0
    half = {"constant": 2.0, "linear": 1.0, "cosine": 1.0}[schedule]
    assert rates[8] == pytest.approx(half)


@settings(deadline=None, max_examples=80)
@given(
    samples=st.integers(1, 70),
    batch_size=st.integers(1, 80),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 3),
)
def test_an_epoch_takes_every_sample_exactly_once(samples, batch_size, seed, epoch):
    order = BatchOrder(samples, batch_size, seed)
    first = epoch * order.batches_per_epoch
    batches = [order(step) for step in range(first, first + order.batches_per_epoch)]
    assert sorted(np.concatenate(batches)) == list(range(samples))
    sizes = [len(batch) for batch in batches]
    size = min(batch_size, samples)
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert sizes[-1] <= size + 1
    if size > 1:
        assert min(sizes) > 1


def test_order_is_a_function_of_seed_and_step_alone():
    forwards = BatchOrder(20, 6, 3)
    batches = [forwards(step).tolist() for step in range(12)]
    for step in (11, 2, 7, 0):
        assert BatchOrder(20, 6, 3)(step).tolist() == batches[step]
    assert BatchOrder(20, 6, 4)(0).tolist() != batches[0]
    assert batches[:4] != batches[4:8]


def _checkpoint(**fields):
    values = {
        "network": {"architecture": {"name": "mlp"}, "width": 8, "depth": 1},
        "data": {"name": "digits"},
        "training": {},
        "seed": 0,
        "study_seed": 0,
        **fields,
    }
    return specs.Checkpoint.model_validate(values)


def test_seeds_depend_on_both_seeds_and_the_network_but_not_on_the_training():
    base = Seeds.of(_checkpoint())
    wider = {"architecture": {"name": "mlp"}, "width": 9, "depth": 1}
    others = [
        Seeds.of(_checkpoint(seed=1)),
        Seeds.of(_checkpoint(study_seed=1)),
        Seeds.of(_checkpoint(network=wider)),
    ]
    numbers = {n for seeds in (base, *others) for n in (seeds.initialisation, seeds.order)}
    assert len(numbers) == 8
    assert Seeds.of(_checkpoint(training={"learning_rate": 0.01})) == base
