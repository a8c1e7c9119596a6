"""Certificates by simulation: what noise gets, and whether the limits hold what they promise.

False alarms: a rate is compared with its stated error rate plus five binomial standard errors.
"""

import dataclasses

import numpy as np
import pytest

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment import controls
from widthlab.statistics.alignment.controls import random_signs, ranks
from widthlab.statistics.alignment.estimates import _dimension_intervals, certificate
from widthlab.statistics.alignment.gram_moments import GramMoments, different_laws, equal_laws
from widthlab.statistics.alignment.grams import centred, gram_matrices
from widthlab.statistics.alignment.limits import Jackknife
from widthlab.theory.certificate import (
    AlignmentMoments,
    alignment_bound,
    alignment_variance,
    cantelli_bound,
    dimensions,
)

RATE = 0.025


def most(rate, trials):
    return rate + 5 * np.sqrt(rate * (1 - rate) / trials)


def certify(q, budgets=((64, 64),), first=None, **options):
    first = len(q) // 2 if first is None else first
    return certificate(gram_matrices(q[:first], q[first:]), list(budgets), **options)


NOISES = {
    "isotropic": lambda generator: generator.standard_normal((16, 6)),
    "one direction": lambda generator: generator.standard_normal((16, 1)) * np.ones(6),
    "heavy tails": lambda generator: generator.standard_t(2, size=(16, 6)),
    "one row counts": lambda generator: (
        generator.standard_normal((16, 6)) * generator.lognormal(0, 2, size=(16, 1))
    ),
}


@pytest.mark.parametrize("laws", ["equal", "different"])
@pytest.mark.parametrize("noise", NOISES)
def test_a_signal_is_found_in_pure_noise_no_more_often_than_stated(noise, laws):
    trials = 300
    generator = np.random.default_rng(0)
    found = [
        certify(NOISES[noise](generator), laws=laws, flips=39, seed=trial)
        for trial in range(trials)
    ]
    assert np.mean([one.has_bound for one in found]) <= most(RATE, trials)
    # The test of the signal alone is exact: its p-value is at most the rate this often.
    assert np.mean([one.p_value <= RATE for one in found]) <= most(RATE, trials)
    # A control's share varies around the rate as the rank of one order statistic of 39 does.
    for shares in zip(*([c.certified for c in one.controls] for one in found), strict=True):
        assert np.mean(shares) <= RATE + 5 * np.std(shares, ddof=1) / np.sqrt(trials)


def test_one_mean_is_enough_to_be_noise():
    """Of different laws one may be pure noise beside a strong mean of the other."""
    generator = np.random.default_rng(1)
    found = []
    for trial in range(300):
        train = generator.standard_normal((10, 5)) + 3.0
        test = generator.standard_normal((10, 5))
        grams = gram_matrices(train, test)
        found.append(certificate(grams, [(8, 8)], laws="different", flips=39, seed=trial))
    assert np.mean([one.has_bound for one in found]) <= most(RATE, 300)
    assert np.mean([one.p_value <= RATE for one in found]) <= most(RATE, 300)


def test_point_estimates_alone_would_certify_noise():
    """What the limit is for: on noise all estimates are positive more often than the rate."""
    generator = np.random.default_rng(2)
    shares = [
        certify(generator.standard_normal((24, 6)), flips=99, seed=trial).controls[0]
        for trial in range(40)
    ]
    positive = np.array([control.point_estimates for control in shares])
    assert positive.mean() - 5 * positive.std(ddof=1) / np.sqrt(40) > RATE


def flipped(laws, trials, flips, signal=0.0):
    """The controls "flipped" of draws of 16 samples."""
    generator = np.random.default_rng(20)
    rows = (generator.standard_normal((16, 6)) + signal for _ in range(trials))
    return [
        certify(q, laws=laws, flips=flips, seed=trial).controls[0] for trial, q in enumerate(rows)
    ]


@pytest.mark.parametrize("flips", [39, 199])
@pytest.mark.parametrize("laws", ["equal", "different"])
def test_the_control_measures_the_error_rate_of_the_comparison(laws, flips, monkeypatch):
    """Where limits always say yes, the share is the rate, within five standard errors.

    For different laws the larger of two p-values counts, so that it may be less.
    """
    monkeypatch.setattr(GramMoments, "positive", property(lambda own: own.signal == own.signal))
    yes = lambda own, weights: (np.ones(len(own.parts)), np.ones(len(own.parts)))  # noqa: E731
    monkeypatch.setattr(Jackknife, "ratio", yes)
    shares = [control.certified for control in flipped(laws, 100, flips)]
    error = 5 * np.std(shares, ddof=1) / 10
    assert 0 < np.mean(shares) <= RATE + error
    if laws == "equal":
        assert np.mean(shares) >= RATE - error
    # The comparison counts, with no limit to hide that it is broken.
    monkeypatch.setattr(controls, "ranks", lambda gram, signs, flips: np.zeros(len(signs[0])))
    assert flipped(laws, 1, flips)[0].certified == 1


@pytest.mark.parametrize("laws", ["equal", "different"])
def test_the_control_tells_the_limits_alone(laws, monkeypatch):
    """Without the comparison the share is that of the limits; with it, never more."""
    both = flipped(laws, 20, 199)
    assert all(control.certified <= control.limit_alone for control in both)
    assert all(control.limit_alone <= control.point_estimates for control in both)
    if laws == "equal":  # of 8 and 8 samples of two laws the limits alone never say yes
        assert np.mean([control.limit_alone for control in both]) > 0
    monkeypatch.setattr(controls, "ranks", lambda gram, signs, flips: np.zeros(len(signs[0])))
    alone = flipped(laws, 20, 199)
    assert [c.certified for c in alone] == [c.limit_alone for c in both]


@pytest.mark.parametrize("laws", ["equal", "different"])
def test_ranks_are_those_of_signals_one_by_one(laws, monkeypatch):
    """A slow twin: the unbiased signal of every flip on top of every flip, group by group."""
    monkeypatch.setattr(controls, "BLOCK_NUMBERS", 40)
    generator = np.random.default_rng(21)
    q, p = generator.standard_normal((9, 3)), generator.standard_normal((7, 3))
    gram = q @ q.T if laws == "equal" else q @ p.T
    groups = gram.shape[:1] if laws == "equal" else gram.shape
    signs, flips = (random_signs(generator, count, groups) for count in (11, 19))

    def signal(*rows):
        rows = [row[None] for row in rows]
        found = equal_laws(gram, *rows) if laws == "equal" else different_laws(gram, *rows)
        return found.unbiased.signal[0]

    for number, row in enumerate(ranks(gram, signs, flips)):
        own = [group[number] for group in signs]
        p_values = []
        for group, others in enumerate(flips):
            larger = [
                signal(*(flip if i == group else part for i, part in enumerate(own)))
                >= signal(*own) - 1e-12
                for flip in others
            ]
            p_values.append((1 + sum(larger)) / 20)
        assert row == max(p_values)


@pytest.mark.parametrize("laws", ["equal", "different"])
def test_upper_limits_of_the_smaller_dimension_hold(laws):
    """Where d_∥ = d₂ = 4 any part's upper limit may be the one that errs."""
    trials = 3000
    generator = np.random.default_rng(22)
    wrong = np.zeros(3)
    for _ in range(trials):
        q = generator.standard_normal((200, 4)) + 1.0
        found = equal_laws(q @ q.T) if laws == "equal" else different_laws(q[:100] @ q[100:].T)
        wrong += [part.high < 4 for part in _dimension_intervals(found, RATE, 200)]
    assert np.all(wrong / trials <= most(RATE, trials))


@pytest.mark.parametrize("laws", ["equal", "different"])
def test_limits_hold(laws):
    """A Gaussian law with a mean: the true bound and dimensions lie within limits of 2.5 %."""
    trials, n = 300, 80
    generator = np.random.default_rng(3)
    scale, mean = np.sqrt(1 / np.arange(1, 7)), np.array([0.5, 0, 0.3, 0, 0, 0])
    law = AlignmentMoments.of_equal_laws(mean @ mean, np.sum(mean**2 * scale**2), np.sum(scale**4))
    f = np.array([1 / 64])
    b_exact = cantelli_bound(law.signal, alignment_variance(law, f, f))
    b_align = alignment_bound(dimensions(law).align, f, f)
    wrong = np.zeros(4)
    for trial in range(trials):
        q = generator.standard_normal((n, 6)) * scale + mean
        found = certify(q, laws=laws, flips=39, seed=trial)
        wrong += [
            found.b_exact_limit[0] < b_exact[0],
            found.b_align_limit[0] < b_align[0],
            found.d_parallel.low > dimensions(law).parallel,
            found.train_trace.low > np.sum(scale**2),
        ]
    assert np.all(wrong / trials <= most(RATE, trials))


@pytest.mark.parametrize("laws", ["equal", "different"])
def test_a_clear_signal_is_certified(laws):
    generator = np.random.default_rng(4)
    q = generator.standard_normal((200, 5)) + np.array([1.0, 0, 0, 0, 0])
    found = certify(q, [(8, 8), (64, 64), (64, 32)], laws=laws)
    assert found.has_bound
    assert found.p_value == 1 / 200
    law = AlignmentMoments.of_equal_laws(1.0, 1.0, 5.0)
    assert found.d_parallel.low < 1 < found.d_parallel.high
    assert found.d_2.low < 1 / 5 < found.d_2.high
    exact = cantelli_bound(1.0, alignment_variance(law, 1 / 64, 1 / 64))
    assert found.b_exact[1] == pytest.approx(float(exact), rel=0.3)
    assert np.all(found.b_exact <= found.b_align)
    assert np.all(found.b_exact <= found.b_exact_limit)
    assert found.meets(found.b_exact_limit[1]).tolist() == [False, True, False]
    assert found.needed(0.1) >= found.needed(0.1, cautious=False)
    # What is needed is the first M = K whose own certificate meets the target.
    for target in (0.3, 0.1, 0.003):
        m = found.needed(target)
        met = certify(q, [(m, m), (m - 1, m - 1)], laws=laws).meets(target)
        assert met.tolist() == [True, False]
    with pytest.raises(WidthlabError, match="between 0 and 1, not 1"):
        found.needed(1.0)
    assert "bounded (of noise, bounded" in repr(found)
    assert "no bound" not in repr(found)


def test_the_plug_in_certifies_noise_of_a_wide_network():
    """N = 512, n = 64, no signal: d_∥ about N/n = 8, and a certificate of 0.70 at M = K = 64.

    For Gaussian samples d_∥ is |mean|², N/n on average, times 64 over an independent χ² of 63.
    """
    generator = np.random.default_rng(5)
    draws = [
        dimensions(equal_laws(q @ q.T).plug_in.law).parallel[0]
        for q in generator.standard_normal((20, 64, 512))
    ]
    error = np.std(draws, ddof=1) / np.sqrt(20)
    assert abs(np.mean(draws) - 8 * 64 / 61) < 5 * error
    q = generator.standard_normal((64, 512))
    found = certify(q)
    assert found.plug_in_b_align[0] == pytest.approx(0.70, abs=0.05)
    assert not found.has_bound
    assert found.b_exact_limit[0] == found.b_align_limit[0] == 1
    # The control says so: noise gets from the plug-in what the gradients get.
    assert found.controls[0].plug_in_d_align == pytest.approx(found.plug_in["d_align"], rel=0.1)


def test_estimates_that_are_not_positive_certify_nothing():
    q = np.random.default_rng(6).standard_normal((12, 4))
    q -= q.mean(axis=0)
    found = certify(q)
    assert found.signal.value < 0
    assert found.reason == "the unbiased estimate of |μ|², μ'Σμ is not positive"
    assert (found.b_exact[0], found.b_align[0], found.needed(0.1)) == (1, 1, None)
    assert not found.meets(1.0).any()
    assert "no bound" in repr(found)


def test_finite_pools_have_tighter_bounds():
    q = np.random.default_rng(7).standard_normal((100, 4)) + 0.7
    free, pooled = certify(q), certify(q, pools=(128, 96))
    assert pooled.b_exact[0] < free.b_exact[0]
    assert pooled.b_exact_limit[0] < free.b_exact_limit[0]
    used_up = certify(q, [(128, 96)], pools=(128, 96))
    assert used_up.b_exact[0] == used_up.b_exact_limit[0] == used_up.b_align_limit[0] == 0


def test_the_order_of_samples_and_the_split_do_not_matter():
    q = np.random.default_rng(8).standard_normal((40, 4)) + 0.5
    one = certify(q, first=10)
    two = certify(q[::-1], first=25)
    for field in ("signal", "train_spread", "noise", "d_align", "train_trace"):
        first, second = getattr(one, field), getattr(two, field)
        np.testing.assert_allclose(
            dataclasses.astuple(first)[:3], dataclasses.astuple(second)[:3], rtol=1e-9
        )
    np.testing.assert_allclose(one.b_exact_limit, two.b_exact_limit)


def test_grams_are_summed_over_chunks(monkeypatch):
    generator = np.random.default_rng(9)
    q, p = generator.standard_normal((6, 50)), generator.standard_normal((5, 50))
    monkeypatch.setattr("widthlab.statistics.alignment.grams.CHUNK_BYTES", 8 * 11 * 7)
    grams = gram_matrices(q.astype(np.float32), p.astype(np.float32))
    q, p = q.astype(np.float32).astype(np.float64), p.astype(np.float32).astype(np.float64)
    both = np.concatenate([q, p])
    np.testing.assert_allclose(grams.pooled, both @ both.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        centred(grams.cross), (q - q.mean(axis=0)) @ (p - p.mean(axis=0)).T, atol=1e-12
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"laws": "other"}, "equal or different"),
        ({"flips": 38}, "take at least 39"),
        ({"level": 1.0}, "between 0 and 1"),
        ({"budgets": []}, "at least one budget"),
        ({"flips": 20_001}, "20001 sign flips are more than 20000"),
        ({"pools": (20, 64)}, "beyond the pools of 20 training and 64 test samples"),
        ({"pools": (float("nan"), 64)}, "pools must be two numbers of at least 1"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(WidthlabError, match=message):
        certify(np.random.default_rng(10).standard_normal((12, 3)), **options)


def test_gradients_that_are_refused():
    q = np.random.default_rng(11).standard_normal((12, 3))
    with pytest.raises(WidthlabError, match="6 features but test gradients 3"):
        gram_matrices(np.ones((4, 6)), q)
    q[3, 1] = np.nan
    with pytest.raises(WidthlabError, match="not finite"):
        certify(q)


def test_four_samples_have_estimates_but_no_limits():
    found = certify(np.random.default_rng(12).standard_normal((4, 2)) * 0.1 + 5.0)
    assert np.isfinite(found.signal.value)
    assert (found.d_align.low, found.b_exact_limit[0]) == (0, 1)
    assert found.reason == "an interval needs at least five samples"
