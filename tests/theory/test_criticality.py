import numpy as np
import pytest
from scipy.optimize import brentq

from widthlab.specs import Activation
from widthlab.theory.block_law import mlp_susceptibilities
from widthlab.theory.criticality import CRITICAL
from widthlab.theory.gaussian import ACTIVATIONS, second_moment

FIXED_POINTS = {"gelu": 3.5616, "silu": 14.3202}


def test_every_activation_has_a_critical_point():
    assert CRITICAL.keys() == ACTIVATIONS.keys() == set(Activation.__args__)


@pytest.mark.parametrize("name", ["linear", "relu", "leaky_relu"])
def test_scale_invariant_activations_are_critical_at_any_variance(name):
    c_w, c_b = CRITICAL[name]
    chi = mlp_susceptibilities(np.array([0.1, 1.0, 30.0]), name, c_w)
    np.testing.assert_allclose(chi.parallel, 1.0, rtol=1e-12)
    np.testing.assert_allclose(chi.perpendicular, 1.0, rtol=1e-12)
    assert c_b == 0.0


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_sigmoids_are_critical_at_vanishing_variance(name):
    """χ → 1 linearly in K as K → 0, and the variance falls towards it from any start."""
    c_w, c_b = CRITICAL[name]
    assert c_b == 0.0
    small = np.array([1e-3, 1e-4, 1e-5])
    chi = mlp_susceptibilities(small, name, c_w)
    for values in (chi.parallel, chi.perpendicular):
        np.testing.assert_allclose((1 - values) / small, (1 - values[-1]) / 1e-5, rtol=0.02)
        assert np.all((values < 1) & (values > 1 - 10 * small))
    k = np.geomspace(1e-4, 10, 20)
    assert np.all(c_w * second_moment(name, k) < k)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_half_stable_activations(name):
    """K* solves χ_⊥ = χ_∥ whatever C_W; then C_W = 1/χ and C_b follow from the fixed point."""

    def gap(k):
        chi = mlp_susceptibilities(k, name, 1.0)
        return float(chi.parallel - chi.perpendicular)

    guess = FIXED_POINTS[name]
    k = brentq(gap, 0.8 * guess, 1.2 * guess, xtol=1e-12, rtol=1e-14)
    c_w = 1 / float(mlp_susceptibilities(k, name, 1.0).perpendicular)
    c_b = k - c_w * float(second_moment(name, k))
    assert k == pytest.approx(guess, abs=1e-4)
    # CRITICAL is printed to six decimals
    assert CRITICAL[name][0] == pytest.approx(c_w, abs=1e-6)
    assert CRITICAL[name][1] == pytest.approx(c_b, abs=1e-6)
    chi = mlp_susceptibilities(k, name, CRITICAL[name][0])
    assert chi.parallel == pytest.approx(1, abs=1e-6)
    assert chi.perpendicular == pytest.approx(1, abs=1e-6)
