"""Fixed points and depth scales against the recursions themselves."""

import numpy as np
import pytest

from widthlab.theory.block_law import mlp_pair, mlp_variance
from widthlab.theory.criticality import CRITICAL
from widthlab.theory.fixed_points import (
    NoFixedPoint,
    critical_point,
    depth_scales,
    fixed_point,
    susceptibilities,
)
from widthlab.theory.gaussian import ACTIVATIONS

CASES = [
    ("tanh", 0.7, 0.0),
    ("tanh", 0.9, 0.3),
    ("tanh", 1.7, 0.05),
    ("tanh", 3.0, 0.0),
    ("erf", 0.5, 0.1),
    ("erf", 3.0, 0.02),
    ("gelu", 1.5, 0.2),
    ("gelu", 1.8, 0.0),
    ("silu", 1.2, 0.5),
    ("relu", 1.6, 0.3),
    ("leaky_relu", 1.0, 0.1),
    ("linear", 0.8, 0.2),
]


def variance(name, c_w, c_b, k, depth):
    """Pre-activation variances K_1 … by the block law from K_1 = k."""
    return c_b + c_w * mlp_variance((k - c_b) / c_w, depth, name, c_w, c_b)


@pytest.mark.parametrize(("name", "c_w", "c_b"), CASES)
def test_the_recursion_settles_there(name, c_w, c_b):
    start = max(1.0, c_b)
    settled = variance(name, c_w, c_b, start, 200)[-1]
    k = fixed_point(name, c_w, c_b, start=start)
    assert k == pytest.approx(settled, rel=1e-6, abs=1e-6)
    assert float(susceptibilities(name, c_w, c_b).parallel) < 1


@pytest.mark.parametrize(("name", "c_w", "c_b"), CASES)
def test_variances_decay_at_their_depth_scale(name, c_w, c_b):
    """The rate of |K_l − K*| over ten layers, from 0.1 % away."""
    scales = depth_scales(name, c_w, c_b)
    start = scales.kernel * 1.001 if scales.kernel > 0 else 1e-7
    away = np.abs(variance(name, c_w, c_b, start, 10) - scales.kernel)
    assert -10 / np.log(away[10] / away[0]) == pytest.approx(scales.variance, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "c_w", "c_b"),
    [
        ("tanh", 0.9, 0.3),
        ("tanh", 1.7, 0.05),
        ("tanh", 3.0, 0.0),
        ("tanh", 2.5, 0.05),
        ("erf", 3.0, 0.02),
        ("gelu", 1.5, 0.2),
        ("silu", 1.2, 0.5),
        ("relu", 1.6, 0.3),
    ],
)
def test_correlations_decay_at_their_depth_scale(name, c_w, c_b):
    """From ±1e-3 about c*, at K = K*: kinks leave a correction of order √(1 − c) at c* = 1."""
    scales = depth_scales(name, c_w, c_b)
    k = scales.kernel
    small = 1e-6 if name == "relu" else 1e-3
    q = (k - c_b) / c_w
    cross = ((scales.correlation - small) * k - c_b) / c_w
    pair = mlp_pair((q, q, cross), 6, name, c_w, c_b)
    c = (c_b + c_w * pair.cross) / (c_b + c_w * pair.first)
    away = np.abs(c - scales.correlation)
    assert -5 / np.log(away[5] / away[0]) == pytest.approx(scales.correlation_scale, rel=0.02)
    ordered = scales.chi_perpendicular < 1
    assert ordered == (scales.correlation == 1)


def test_phases_of_tanh():
    """Order, chaos with and without biases, and criticality (Schoenholz et al. 2017)."""
    assert depth_scales("tanh", 0.9, 0.3).correlation == 1
    assert 0 < depth_scales("tanh", 2.5, 0.05).correlation < 1
    assert depth_scales("tanh", 3.0, 0.0).correlation == 0
    assert fixed_point("tanh", 1.0, 0.0) == fixed_point("erf", np.pi / 4, 0.0) == 0
    vanishing = depth_scales("tanh", 0.7, 0.0)
    assert vanishing.kernel == 0
    assert vanishing.variance == pytest.approx(-1 / np.log(0.7))
    assert vanishing.correlation_scale == np.inf
    # the two phases' scales grow without bound towards the critical line
    line = [depth_scales("tanh", c_w, 0.05).correlation_scale for c_w in (1.2, 1.3, 1.4)]
    assert line[0] < line[1] < line[2]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_critical_points_are_those_of_the_table(name):
    found = critical_point(name)
    assert found.c_w == pytest.approx(CRITICAL[name][0], abs=1e-6)
    assert found.c_b == pytest.approx(CRITICAL[name][1], abs=1e-6)
    # gelu's half-stable point holds what comes from above, silu's what comes from below
    scales = depth_scales(name, found.c_w, found.c_b, start=6.0 if name == "gelu" else 1.0)
    assert scales.variance == scales.correlation_scale == np.inf
    assert scales.correlation == 1


def test_critical_points_of_the_literature():
    gelu, silu = critical_point("gelu"), critical_point("silu")
    assert (gelu.c_w, gelu.c_b) == pytest.approx((1.983058, 0.172922), abs=1e-6)
    assert (gelu.kernel, silu.kernel) == pytest.approx((3.5616, 14.3202), abs=1e-4)
    assert gelu.kind == silu.kind == "half_stable"
    assert critical_point("tanh").kind == critical_point("erf").kind == "zero"
    for name in ("linear", "relu", "leaky_relu"):
        assert critical_point(name).kind == "scale_invariant"


@pytest.mark.parametrize(("name", "held", "passing"), [("gelu", 6.0, 3.3), ("silu", 8.0, 14.45)])
def test_half_stable_points(name, held, passing):
    """From one side K comes to K*, from the other it goes away: the sign of K' − K says so."""
    point = critical_point(name)

    def drift(k):
        return variance(name, point.c_w, point.c_b, k, 1)[1] / k - 1

    kernel = fixed_point(name, point.c_w, point.c_b, start=held)
    assert kernel == pytest.approx(point.kernel, rel=0.01)
    assert np.sign(drift(held)) == np.sign(point.kernel - held)
    assert np.sign(drift(passing)) == np.sign(passing - point.kernel)
    assert abs(drift(passing)) < 1e-5
    other = fixed_point(name, point.c_w, point.c_b, start=passing)
    assert abs(drift(other)) < 1e-8
    assert (other < passing) == (passing < point.kernel)


def test_the_digits_of_gelu_and_the_stable_point_below():
    assert fixed_point("gelu", *CRITICAL["gelu"]) == pytest.approx(3.03, abs=0.01)


def test_what_does_not_settle_is_refused():
    with pytest.raises(NoFixedPoint, match="every variance"):
        fixed_point("relu", 2.0, 0.0)
    with pytest.raises(NoFixedPoint, match="diverges"):
        fixed_point("relu", 2.0, 0.1)
    with pytest.raises(NoFixedPoint, match="diverges"):
        fixed_point("linear", 1.1, 0.0)
    with pytest.raises(NoFixedPoint, match="diverges"):
        fixed_point("gelu", 2.5, 0.1)
    with pytest.raises(NoFixedPoint, match="diverges"):
        depth_scales("silu", 2.2, 1.0)
    with pytest.raises(ValueError, match="unknown activation"):
        critical_point("swish")
    with pytest.raises(ValueError, match="C_b not negative"):
        fixed_point("tanh", 1.0, -0.1)
