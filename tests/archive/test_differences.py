"""What differs between two versions, in numbers."""

import math

import pytest

from widthlab.archive.differences import (
    Cell,
    CellChange,
    ClaimChange,
    Holdings,
    changed_keys,
    compare,
)
from widthlab.claims import Claim


def claim(name, verdict="holds", measured=1.0, low=0.9, high=1.1, **more):
    words = {"statement": f"{name} is so", "source": "theory", "predicted": 1.0, "reason": "why"}
    return Claim(
        id=f"variance.{name}",
        experiment="variance",
        measured=measured,
        low=low,
        high=high,
        verdict=verdict,
        **{**words, **more},
    )


def cell(name, digest="0", label="relu"):
    return Cell("variance", f"variance-{name}", label, digest)


def holdings(claims=(), cells=(), sweeps=None, config=None):
    return Holdings(sweeps or {"variance": "variance-1"}, claims, cells, config or {})


def test_what_is_the_same_does_not_differ():
    one = holdings([claim("a")], [cell("w8-1")], config={"seed": 0})
    found = compare(one, holdings([claim("a")], [cell("w8-1")], config={"seed": 0}))
    assert not found
    assert (found.claims, found.cells, found.sweeps, found.text) == ([], [], {}, {})


def test_flipped_verdicts_come_first_then_the_largest_differences():
    old = [
        claim("gone"),
        claim("same"),
        claim("little", measured=1.0),
        claim("much", measured=1.0),
        claim("worded", reason="one"),
        claim("flipped"),
    ]
    new = [
        claim("same"),
        claim("little", measured=1.01),
        claim("much", measured=1.08),
        claim("worded", reason="other"),
        claim("come"),
        claim("flipped", "fails", measured=1.02),
    ]
    found = compare(holdings(old), holdings(new)).claims
    assert [(c.change, c.claim.id.split(".")[1]) for c in found] == [
        ("flipped", "flipped"),
        ("changed", "much"),
        ("changed", "little"),
        ("changed", "worded"),
        ("added", "come"),
        ("removed", "gone"),
    ]


def test_a_difference_is_in_standard_errors_of_both_intervals():
    # Standard errors of 0.3 and 0.4.
    old = claim("a", measured=1.0, low=1.0 - 1.96 * 0.3, high=1.0 + 1.96 * 0.3)
    new = claim("a", measured=2.0, low=2.0 - 1.96 * 0.4, high=2.0 + 1.96 * 0.4)
    change = ClaimChange("changed", old, new)
    assert change.difference == 1.0
    assert change.standard_errors == pytest.approx(1.0 / 0.5)
    back = ClaimChange("changed", new, old)
    assert back.standard_errors == pytest.approx(-2.0)


def test_without_an_interval_a_number_is_exact():
    exact = claim("a", measured=3.0, low=None, high=None)
    other = claim("a", measured=3.5, low=None, high=None)
    assert ClaimChange("changed", exact, other).standard_errors is None
    assert ClaimChange("changed", exact, other).difference == 0.5
    uncertain = claim("a", measured=3.5, low=3.5 - 0.98, high=3.5 + 0.98)
    assert ClaimChange("changed", exact, uncertain).standard_errors == pytest.approx(1.0)
    missing = claim("a", "undecided", measured=math.nan)
    assert ClaimChange("flipped", exact, missing).difference is None
    assert ClaimChange("flipped", exact, missing).standard_errors is None
    assert ClaimChange("added", None, exact).difference is None


def test_cells_are_added_removed_or_made_anew():
    old = [cell("w8-1"), cell("w16-1", "a"), cell("w32-1"), cell("w16-5", "b", "tanh")]
    new = [cell("w8-1"), cell("w16-2", "a"), cell("w64-1"), cell("w16-6", "c", "tanh")]
    found = compare(holdings(cells=old), holdings(cells=new)).cells
    assert found == [
        CellChange(old[1], new[1]),
        CellChange(None, new[2]),
        CellChange(old[3], new[3]),
        CellChange(old[2], None),
    ]
    assert [change.same_bytes for change in found] == [True, None, False, None]


def test_a_cell_made_again_under_its_address_differs_by_its_bytes():
    (change,) = compare(
        holdings(cells=[cell("w8-1", "a")]), holdings(cells=[cell("w8-1", "b")])
    ).cells
    assert change.same_bytes is False
    gone = holdings(cells=[cell("w8-1", "")])
    assert not compare(holdings(cells=[cell("w8-1", "a")]), gone)


def test_experiments_are_compared_by_the_address_of_their_sweep():
    old = holdings(sweeps={"variance": "variance-1", "ntk_drift": "ntkdrift-1"})
    new = holdings(sweeps={"variance": "variance-2", "gradient_correlation": "g-1"})
    assert compare(old, new).sweeps == {
        "gradient_correlation": (None, "g-1"),
        "ntk_drift": ("ntkdrift-1", None),
        "variance": ("variance-1", "variance-2"),
    }


def test_the_study_is_compared_by_dotted_key():
    old = {"seed": 0, "experiments": {"variance": {"width": [8, 16], "depth": 2}}, "gone": {}}
    new = {"seed": 0, "experiments": {"variance": {"width": [8, 32], "depth": 2}}, "name": "x"}
    assert changed_keys(old, new) == {
        "experiments.variance.width": ([8, 16], [8, 32]),
        "gone": ({}, None),
        "name": (None, "x"),
    }
