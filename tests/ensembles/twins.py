"""The slow twin of the sampler, and the test by which two samplers are told apart."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from scipy.stats import ks_2samp, norm, rankdata

from widthlab import ensembles, specs
from widthlab.ensembles import network as wiring
from widthlab.ensembles.unseen import Unseen

PERCEPTRON = TypeAdapter(specs.Perceptron)
EVERYTHING = ("signals", "gradients", "ntk")


class Seen(Unseen):
    """A layer whose weights are really drawn, one matrix for every draw, for autograd."""

    def forward(self, h):
        draws = h.shape[0]
        self.weight = self._normal(draws, self.outputs, self.inputs)
        z = h @ (self.weight_std * self.weight).mT
        if self.has_bias:
            self.bias = self._normal(draws, 1, self.outputs)
            z = z + self.bias_std * self.bias
        return z

    def _normal(self, *shape):
        return torch.empty(shape, dtype=torch.float64).normal_(generator=self.generator)


@contextmanager
def layers_are(kind):
    """Sample with another kind of layer in place of `Unseen`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "Unseen", kind)
        yield


def network(width, depth, **options):
    return specs.Network(architecture=PERCEPTRON.validate_python(options), width=width, depth=depth)


def inputs(count, dimension=5, seed=0):
    """Inputs with |x|² = d, the second one close to the first."""
    x = torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed))
    if count > 1:
        x[1] = x[0] + 0.3 * x[1]
    return x * (dimension**0.5 / x.norm(dim=1, keepdim=True))


def features(dataset):
    """Everything that was measured of each draw, as a table (draws, features)."""
    columns = []
    for name in sorted(dataset.data_vars):
        values = dataset[name].transpose("draw", ...).to_numpy()
        if name == "ntk":
            rows, columns_of = np.triu_indices(values.shape[1])
            values = values[:, rows, columns_of]
        columns.append(values.reshape(len(values), -1))
    table = np.concatenate(columns, axis=1)
    # What is the same number in every draw, as q_0 of given inputs, is compared exactly elsewhere.
    return table


def p_value(first, second):
    """Probability that two tables of features differ as much by chance, at most.

    Compared are the distribution of every feature (Kolmogorov and Smirnov) and, after each has
    been turned into normal scores of the pooled ranks, all means and all products of two features:
    the joint distribution up to second order in the scores. Bonferroni's correction over all of
    them. NaN (the correlation with a dead signal, say) counts as a value of its own.
    """
    a, b = (np.nan_to_num(table, nan=-1e30, posinf=1e30, neginf=-1e30) for table in (first, second))
    pooled = np.concatenate([a, b])
    scale = np.maximum(np.abs(pooled).max(axis=0), 1e-300)
    # Rounding must not break the ties of a constant, or of a signal that is dead.
    pooled = np.round(pooled / scale, 9) * scale
    moving = np.ptp(pooled, axis=0) > 0
    pooled = pooled[:, moving]
    a, b = pooled[: len(a)], pooled[len(a) :]
    lowest = min(ks_2samp(x, y).pvalue for x, y in zip(a.T, b.T, strict=True))
    scores = norm.ppf((rankdata(pooled, axis=0) - 0.5) / len(pooled))
    x, y = scores[: len(a)], scores[len(a) :]
    deviations = [_deviation(x, y)]
    for column in range(x.shape[1]):
        products = (t[:, column:] * t[:, column : column + 1] for t in (x, y))
        deviations.append(_deviation(*products))
    z = np.concatenate(deviations)
    tests = a.shape[1] + len(z)
    return min(1.0, tests * min(float(lowest), float(2 * norm.sf(z.max()))))


def _deviation(x, y):
    """|z| of the difference of two means, column by column."""
    error = np.sqrt(x.var(axis=0) / len(x) + y.var(axis=0) / len(y))
    gap = np.abs(x.mean(axis=0) - y.mean(axis=0))
    return np.divide(gap, error, out=np.zeros_like(gap), where=error > 0)


def compare(net, x, draws, seed=0, kind=Unseen):
    """The p-value of the sampler against its slow twin."""
    with layers_are(kind):
        fast = ensembles.sample(net, x, draws, seed, measure=EVERYTHING)
    with layers_are(Seen):
        slow = ensembles.sample(net, x, draws, seed + 1_000_000, measure=EVERYTHING)
    return p_value(features(fast), features(slow))
