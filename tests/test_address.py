"""Addresses name a result by what determines it, however that is written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthlab.address import HASH_LENGTH, address, canonical_json, slugify
from widthlab.specs import MLP, Network, Training

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values))
def test_key_order_does_not_matter(value):
    backwards = dict(reversed(value.items()))
    assert canonical_json(value) == canonical_json(backwards)


@given(json_values, json_values)
def test_different_values_differ(one, other):
    if canonical_json(one) == canonical_json(other):
        assert one == other


def test_one_and_one_point_zero_are_the_same_real_and_the_same_count():
    assert canonical_json(Training(learning_rate=1)) == canonical_json(Training(learning_rate=1.0))
    architecture = MLP()
    sixteen = Network(architecture=architecture, width=16, depth=2)
    assert canonical_json(sixteen) == canonical_json(
        Network(architecture=architecture, width=16.0, depth=2.0)
    )


def test_yaml_1_1_reals_without_a_point_are_numbers():
    assert Training(learning_rate="1e-3") == Training(learning_rate=0.001)


def test_nan_has_no_address():
    with pytest.raises(ValueError):
        canonical_json(math.nan)


def test_address_depends_on_each_part_and_not_on_the_order_of_inputs():
    base = address("x", {"a": 1}, ["p", "q"], "code")
    assert base == address("x", {"a": 1}, ["q", "p"], "code")
    assert base.startswith("x-")
    assert len(base) == 2 + HASH_LENGTH
    others = [
        address("x", {"a": 2}, ["p", "q"], "code"),
        address("x", {"a": 1}, ["p"], "code"),
        address("x", {"a": 1}, ["p", "q"], "edoc"),
    ]
    assert len({base, *others}) == 4


def test_slugs_are_safe_in_paths_and_shells():
    assert slugify("Residual_MLP", "w16", "", "a b/../c") == "residualmlp-w16-abc"
