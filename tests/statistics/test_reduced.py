"""Removing noise of known mean changes no mean and shrinks the error."""

import numpy as np
import pytest

from widthlab.statistics.reduced import plain, reduced, without_embedding
from widthlab.theory.block_law import mlp_variance
from widthlab.theory.finite_width import (
    mlp_log_law,
    mlp_moments,
    residual_moments,
    sample_mlp_ratio,
)
from widthlab.theory.gaussian import activation
from widthlab.theory.one_step import mlp_step, residual_step
from widthlab.theory.residual_chain import sample_residual_variance


def tanh_draws(draws, depth, width, seed):
    """Signal variances of a critical tanh perceptron, neuron by neuron."""
    rng, tanh = np.random.default_rng(seed), activation("tanh").value
    q = np.ones((draws, depth + 1))
    for layer in range(1, depth + 1):
        z = np.sqrt(q[:, layer - 1, None]) * rng.standard_normal((draws, width))
        q[:, layer] = (tanh(z) ** 2).mean(axis=1)
    return q[:, :, None]


def test_a_small_sample_with_less_noise_agrees_with_a_large_one():
    depth, width = 10, 32
    limit = mlp_variance(1.0, depth, "tanh", 1.0, 0.0)
    many = plain(tanh_draws(40_000, depth, width, 1), limit)
    few_q = tanh_draws(1_000, depth, width, 2)
    few, noisy = reduced(few_q, limit, tanh_step(width), 0.0), plain(few_q, limit)
    for name in ("shift", "square", "log"):
        (mean, error), (own, own_error), (_, plain_error) = (
            statistics_of(getattr(sample, name)) for sample in (many, few, noisy)
        )
        # Five standard errors at each of ten layers: a false alarm in 10⁵.
        assert np.all(np.abs(own - mean)[1:] < 5 * np.hypot(error, own_error)[1:] + 1e-12)
        assert np.all(own_error[1:] < 0.5 * plain_error[1:]), name


def test_exact_moments_of_relu_and_of_the_residual_chain_are_met():
    depth, width = 6, 40
    rng = np.random.default_rng(3)
    q = sample_mlp_ratio("relu", [width] * depth, 4_000, rng)[:, :, None]

    def step(at):
        return mlp_step(at, "relu", 2.0, 0.0, width)

    sample = reduced(q, np.ones(depth + 1), step, 0.0)
    square, error = statistics_of(sample.square)
    exact = mlp_moments("relu", [width] * depth).square - 1
    assert np.all(np.abs(square - exact) <= 5 * error + 1e-6)
    log, error = statistics_of(sample.log)
    assert np.all(np.abs(log - mlp_log_law("relu", [width] * depth).mean) <= 5 * error + 1e-6)
    options = {"alpha": 0.5, "c_w": 1.0}
    chain = sample_residual_variance("relu", depth, width, width, 4_000, rng, **options)[:, :, None]
    limit = 1.125 ** np.arange(depth + 1)

    def block(at):
        return residual_step(at, "relu", 1.0, 0.0, width, width, alpha=0.5)

    shift, error = statistics_of(reduced(chain, limit, block, 2 / width).shift)
    assert np.all(np.abs(shift) <= 5 * error + 1e-6)


def test_without_the_embeddings_noise_the_exact_moments_are_met_too():
    depth, width = 6, 40
    rng = np.random.default_rng(6)
    q = sample_residual_variance("relu", depth, width, width, 4_000, rng, alpha=0.3, c_w=1.0)
    q = q[:, :, None]
    limit = 1.045 ** np.arange(depth + 1)
    sample, noisy = without_embedding(q, limit, 2 / width), plain(q, limit)
    shift, error = statistics_of(sample.shift)
    assert np.all(np.abs(shift) <= 5 * error + 1e-12)
    law = residual_moments("relu", depth, width, width, alpha=0.3, c_w=1.0)
    square, error = statistics_of(sample.square)
    exact = law.square * (1 + 2 / width) / law.mean**2 - 1
    assert np.all(np.abs(square - exact) <= 5 * error + 1e-12)
    assert np.all(error < statistics_of(noisy.square)[1])
    wrong = without_embedding(q, limit, 3 / width)
    np.testing.assert_array_equal(wrong.square, noisy.square)


def test_draws_that_do_not_follow_the_step_stay_as_they_are():
    depth, width = 6, 40
    limit = mlp_variance(1.0, depth, "tanh", 1.0, 0.0)
    q = tanh_draws(2_000, depth, width, 4)
    as_they_are, right = plain(q, limit), reduced(q, limit, tanh_step(width), 0.0)
    assert np.all(right.square[:, 1:] != as_they_are.square[:, 1:])
    wrong_noise = reduced(q, limit, tanh_step(width / 2), 0.0)
    np.testing.assert_array_equal(wrong_noise.square[:, 1:], as_they_are.square[:, 1:])
    shifted = q * 1.05 ** np.arange(depth + 1)[:, None]
    wrong_mean = reduced(shifted, limit, tanh_step(width), 0.0)
    np.testing.assert_array_equal(wrong_mean.shift[:, 1:], plain(shifted, limit).shift[:, 1:])
    late = q.copy()
    late[:, 4:] *= 1.1
    half = reduced(late, limit, tanh_step(width), 0.0).shift
    np.testing.assert_allclose(half[:, :4], right.shift[:, :4], atol=1e-7)
    np.testing.assert_array_equal(half[:, 4:], plain(late, limit).shift[:, 4:])


def test_dead_signals_leave_logarithms_only():
    q = np.ones((4, 3, 1))
    q[0, 2] = 0.0
    sample = plain(q, np.ones(3))
    assert np.isnan(sample.log[0, 2])
    assert np.isfinite(sample.log[1:]).all()
    assert sample.shift[0, 2] == -1
    with_step = reduced(q, np.ones(3), lambda at: (at, 0.1 * at**2), 0.0)
    assert np.isnan(with_step.log[0, 2])
    assert np.isfinite(with_step.square).all()


def tanh_step(width):
    return lambda at: mlp_step(at, "tanh", 1.0, 0.0, width)


def statistics_of(sample):
    return sample.mean(axis=0), sample.std(axis=0) / np.sqrt(len(sample))


@pytest.mark.parametrize("inputs", [1, 3])
def test_inputs_are_averaged_within_a_draw(inputs):
    q = np.random.default_rng(5).gamma(5, 0.2, (7, 3, inputs))
    sample = plain(q, np.full(3, 2.0))
    np.testing.assert_allclose(sample.shift, (q / 2 - 1).mean(axis=2))
    np.testing.assert_allclose(sample.log, np.log(q / q[:, :1]).mean(axis=2))
