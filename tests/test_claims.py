import json

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import binom

from widthlab.claims import (
    Claim,
    from_json,
    judge_above,
    judge_band,
    judge_below,
    judge_sign,
    judge_value,
    to_json,
)
from widthlab.errors import WidthlabError
from widthlab.scaling import mean_interval

FIELDS = ["id", "experiment", "statement", "source", "predicted", "measured", "low", "high"]
FIELDS += ["verdict", "reason"]


def claim(**changes):
    values = {
        "id": "ntk_drift.exponent",
        "experiment": "ntk_drift",
        "statement": "drift falls as 1/N",
        "source": "Someone (2020), eq. 3",
        "predicted": -1.0,
        "measured": -0.98,
        "low": -1.05,
        "high": -0.9,
        "verdict": "holds",
        "reason": "α fits",
    }
    return Claim(**(values | changes))


def test_fields_are_the_public_ones():
    assert list(Claim.model_fields) == FIELDS


def test_json_round_trip():
    claims = [
        claim(),
        claim(id="b", predicted=None, measured=float("nan"), low=-np.inf, verdict="undecided"),
        claim(id="c", measured=np.float32(0.1), low=np.float64(1 / 3), high=1),
    ]
    text = to_json(claims)
    assert from_json(text) == claims
    assert to_json(from_json(text)) == text
    rows = json.loads(text, parse_constant=pytest.fail)
    assert [list(row) for row in rows] == [FIELDS] * 3
    assert rows[1]["predicted"] is None
    assert rows[1]["measured"] is None
    assert rows[1]["low"] is None
    assert rows[2]["low"] == 1 / 3
    assert from_json(to_json([])) == []


def test_claims_are_frozen_and_checked():
    with pytest.raises(ValidationError, match="frozen"):
        claim().verdict = "fails"
    for wrong in ({"verdict": "true"}, {"measured": "1"}, {"low": True}, {"reason": ""}):
        with pytest.raises(ValidationError):
            claim(**wrong)
    with pytest.raises(ValidationError, match="extra"):
        claim(comment="x")


def test_bad_json_is_explained():
    with pytest.raises(WidthlabError, match="not JSON"):
        from_json("{")
    rows = json.loads(to_json([claim(), claim(id="b")]))
    rows[1]["verdict"] = "maybe"
    with pytest.raises(WidthlabError, match=r"1\.verdict"):
        from_json(json.dumps(rows))
    del rows[1]["verdict"]
    with pytest.raises(WidthlabError, match=r"1\.verdict"):
        from_json(json.dumps(rows))


@pytest.mark.parametrize(
    ("low", "high", "rivals", "verdict"),
    [
        (-1.1, -0.9, (), "holds"),
        (-1.1, -0.9, (-0.5,), "holds"),
        (-1.1, -1.0, (-0.5,), "holds"),
        (-1.1, -0.4, (-0.5,), "undecided"),
        (-1.1, -0.4, (-2.0, -0.5), "undecided"),
        (-0.9, -0.4, (-0.5,), "fails"),
        (-3.0, -1.01, (), "fails"),
        (float("nan"), -0.9, (), "undecided"),
        (-1.1, float("inf"), (), "undecided"),
    ],
)
def test_judge_value(low, high, rivals, verdict):
    judgement = judge_value(-1.0, -0.95, low, high, rivals)
    assert judgement.verdict == verdict
    assert judgement.reason


def test_judge_value_without_a_measurement_or_with_a_caveat():
    assert judge_value(-1.0, float("nan"), -2, 0).verdict == "undecided"
    assert judge_value(float("nan"), -1.0, -2, 0).verdict == "undecided"
    verdict, reason = judge_value(5.0, -1.0, -1.1, -0.9, caveat="the law bends")
    assert verdict == "undecided"
    assert "the law bends" in reason
    with pytest.raises(ValueError, match="low end"):
        judge_value(0.0, 0.0, 1.0, -1.0)


def test_reasons_name_the_numbers():
    reason = judge_value(-1.0, -0.95, -1.1, -0.4, (-0.5,)).reason
    for number in ("-0.95", "-1.1", "-0.4", "-1", "-0.5"):
        assert number in reason


@pytest.mark.parametrize(
    ("low", "high", "below", "above"),
    [
        (0.1, 0.4, "holds", "fails"),
        (0.6, 0.9, "fails", "holds"),
        (0.4, 0.6, "undecided", "undecided"),
        (0.4, 0.5, "undecided", "undecided"),
        (0.1, float("nan"), "undecided", "undecided"),
    ],
)
def test_judge_inequalities(low, high, below, above):
    assert judge_below(0.5, 0.45, low, high).verdict == below
    assert judge_above(0.5, 0.45, low, high).verdict == above
    assert judge_sign(-1, -0.05, low - 0.5, high - 0.5).verdict == below
    assert judge_sign(1, -0.05, low - 0.5, high - 0.5).verdict == above


def test_judge_sign_refuses_other_signs():
    with pytest.raises(ValueError, match="sign"):
        judge_sign(0, 1.0, 0.5, 1.5)


def test_false_failures_of_a_true_value():
    """A true claim fails as often as its 95 % interval misses: 5 %, within 4 standard errors."""
    generator = np.random.default_rng(11)
    trials = 2000
    intervals = [mean_interval(row) for row in generator.standard_normal((trials, 6))]
    verdicts = [judge_value(0.0, i.value, i.low, i.high).verdict for i in intervals]
    rate = verdicts.count("fails") / trials
    assert abs(rate - 0.05) < 4 * np.sqrt(0.05 * 0.95 / trials)
    wrong_signs = [judge_sign(1, i.value, i.low, i.high).verdict for i in intervals]
    assert wrong_signs.count("undecided") / trials == pytest.approx(1 - rate, abs=1e-12)


@pytest.mark.parametrize("dependent", [False, True])
def test_false_failures_of_a_true_band(dependent):
    """Never more than the significance; with independent points, just about it."""
    generator = np.random.default_rng(12)
    trials, points, seeds = 2000, 12, 6
    fails = 0
    for _ in range(trials):
        noise = generator.standard_normal((1 if dependent else points, seeds))
        data = np.broadcast_to(noise, (points, seeds)) + 3.0
        errors = data.std(axis=1, ddof=1) / np.sqrt(seeds)
        judgement = judge_band(3.0, data.mean(axis=1), errors, freedom=seeds - 1, significance=0.05)
        fails += judgement.verdict == "fails"
    assert fails <= binom.ppf(0.9999, trials, 0.05)
    if not dependent:
        assert fails >= binom.ppf(0.0001, trials, 1 - (1 - 0.05 / points) ** points)


def test_band_finds_a_wrong_law_and_its_worst_point():
    predicted = np.array([[1.0, 2.0], [3.0, 4.0]])
    measured = predicted + np.array([[0.1, -0.1], [0.9, 0.1]])
    labels = ["a", "b", "c", "d"]
    judgement = judge_band(predicted, measured, 0.1, labels=labels)
    assert judgement.verdict == "fails"
    assert judgement.worst == 2
    assert judgement.deviation == pytest.approx(9.0)
    assert "at c" in judgement.reason
    assert judge_band(predicted, measured, 0.1, tolerance=0.85).verdict == "holds"
    assert judge_band(predicted, measured, 1.0).verdict == "holds"
    # the same nine errors say less when they come from three seeds
    assert judge_band(predicted, measured, 0.1, freedom=2).verdict == "holds"


def test_band_p_value_is_bonferroni():
    judgement = judge_band([0.0, 0.0], [1.0, 2.5], 1.0)
    assert judgement.p_value == pytest.approx(2 * 0.0124193306)
    assert judge_band([0.0] * 3, [0.1] * 3, 1.0).p_value == 1.0


def test_band_against_a_rival():
    predicted, measured = np.array([1.0, 2.0, 3.0]), np.array([1.01, 2.02, 2.97])
    rival = np.array([1.0, 2.0, 3.5])
    assert judge_band(predicted, measured, 0.05, rival=rival).verdict == "holds"
    wide = judge_band(predicted, measured, 0.5, rival=rival)
    assert wide.verdict == "undecided"
    assert "rival" in wide.reason


def test_band_counts_what_is_not_finite():
    nan = float("nan")
    judgement = judge_band([1.0, 2.0, 3.0], [1.0, nan, 3.1], [0.1, 0.1, 0.1])
    assert judgement.verdict == "holds"
    assert "1 of 3" in judgement.reason
    assert judgement.worst == 2
    empty = judge_band([1.0, 2.0], [nan, nan], [0.1, 0.1])
    assert empty.verdict == "undecided"
    assert empty.worst is None


def test_band_without_spread():
    """A zero error decides only where the numbers agree or plainly differ."""
    assert judge_band([1.0], [1.0], [0.0]).verdict == "holds"
    assert judge_band([1.0], [1.1], [0.0]).verdict == "fails"
    assert judge_band([1.0], [1.1], [0.0], tolerance=0.2).verdict == "holds"
