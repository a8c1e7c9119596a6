"""Resampled statistics have the errors that repeating the whole experiment shows."""

import numpy as np
import pytest

from widthlab.experiments.activations.pairings import differing
from widthlab.experiments.shared.resampling import (
    combine,
    resampled_means,
    resampled_variances,
)
from widthlab.specs import MLP, ResidualMLP


def test_a_mean_has_its_standard_error():
    columns = np.random.default_rng(0).normal([3.0, -1.0], [1.0, 2.0], (400, 2))
    whole = resampled_means(columns, 1)
    np.testing.assert_allclose(whole.value, columns.mean(axis=0))
    # 500 resamples know a spread to 3 %: five standard errors.
    np.testing.assert_allclose(whole.error, columns.std(axis=0) / 20, rtol=0.16)


def test_a_variance_has_the_error_of_repeated_experiments():
    generator = np.random.default_rng(2)
    repeated = generator.exponential(size=(2000, 50)).var(axis=1, ddof=1)
    errors, values = [], []
    for seed in range(200):
        whole = resampled_variances(generator.exponential(size=(50, 1)), seed)
        values.append(float(whole.value[0]))
        errors.append(float(whole.error[0]))
        assert whole.resamples.mean() == pytest.approx(values[-1], rel=0.2)
    assert np.mean(values) == pytest.approx(1.0, abs=5 * repeated.std() / np.sqrt(200))
    # The bootstrap of a heavy-tailed variance is known to be somewhat too small at 50 draws.
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(repeated.std(), rel=0.3)


def test_columns_share_their_resamples_and_parts_of_different_seeds_do_not():
    columns = np.random.default_rng(3).normal(size=(100, 1))
    same = combine(lambda a, b: a - b, resampled_means(columns, 7), resampled_means(columns, 7))
    assert np.all(same.resamples == 0)
    apart = combine(lambda a, b: a - b, resampled_means(columns, 7), resampled_means(columns, 8))
    assert apart.error == pytest.approx(np.sqrt(2) * columns.std() / 10, rel=0.16)


def test_what_is_not_finite_is_left_out_of_its_own_column():
    columns = np.array([[1.0, 2.0], [np.nan, 4.0], [3.0, 6.0]])
    whole = resampled_means(columns, 0)
    np.testing.assert_allclose(whole.value, [2.0, 4.0])
    empty = resampled_means(np.full((5, 1), np.nan), 0)
    assert np.isnan(empty.value).all()
    assert np.isnan(resampled_variances(columns[:1], 0).value).all()


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(4)
    hits = 0
    for seed in range(400):
        low, high = resampled_means(generator.normal(size=(30, 1)), seed).interval(0.95, 30)
        hits += bool(low[0] < 0 < high[0])
    # Binomial with p = 0.95: standard deviation 1.1 %, five of them below.
    assert hits / 400 > 0.95 - 5 * 0.011


def test_only_what_differs_in_one_respect_is_compared():
    models = {
        "relu": MLP(activation="relu"),
        "tanh": MLP(activation="tanh"),
        "wide_tanh": MLP(activation="tanh", weight_variance=2.0),
        "layer": MLP(activation="relu", normalisation="layer"),
        "pre": ResidualMLP(activation="tanh"),
        "post": ResidualMLP(activation="tanh", position="post"),
        "scaled": ResidualMLP(activation="tanh", position="post", residual_scale=0.5),
    }
    assert differing(models, "activation", "tanh", "relu") == [("tanh", "relu")]
    assert differing(models, "normalisation", "layer", "none") == [("layer", "relu")]
    assert differing(models, "position", "pre", "post") == [("pre", "post")]
