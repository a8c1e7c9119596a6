"""Where a bias stands out of its noise: the law decides, not the data at a size."""

import numpy as np
import pytest

from widthlab.experiments.shared.shifts import FLOORS, noise, stands_out

SIZES = (4, 8, 16, 32, 64)


def halves(bias, spread, rng, blocks=200):
    return bias / 3**0.5 + spread * rng.normal(size=(blocks, 2, 3))


def test_the_noise_is_that_of_the_mean():
    """To a tenth, which is five standard errors of a variance with 1200 numbers, and more."""
    rng = np.random.default_rng(0)
    found = noise(halves(1.0, 2.0, rng))
    assert found == pytest.approx(2.0 * 3**0.5 / 400**0.5, rel=0.1)


def test_sizes_at_which_the_law_is_above_the_noise_are_kept():
    rng = np.random.default_rng(1)
    own = {size: halves(1.0 / size, 0.05, rng) for size in SIZES}
    # Noise 0.05·√3/√400 = 0.0043, five times of which is 0.022, between 1/32 and 1/64.
    assert stands_out(own, -1.0) == [4, 8, 16, 32]
    assert stands_out(own, -1.0, floor=0.02) == [4, 8]
    # A large bias where there should be none is not chosen for being large.
    own[64] = halves(5.0, 0.05, rng)
    assert 64 not in stands_out(own, -1.0)
    assert FLOORS == 5.0


def test_without_data_or_a_known_floor_nothing_stands_out():
    rng = np.random.default_rng(2)
    own = {4: halves(1.0, 0.01, rng), 8: np.empty((0, 2, 3))}
    assert stands_out(own, -1.0) == [4]
    assert stands_out(own, -1.0, floor=np.nan) == []
    assert stands_out({8: np.empty((0, 2, 3))}, -1.0) == []
