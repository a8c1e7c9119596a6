"""A certificate's dataset says what the certificate says."""

import numpy as np

from widthlab.statistics.alignment.estimates import certificate
from widthlab.statistics.alignment.grams import gram_matrices
from widthlab.statistics.alignment.tables import BOUNDS, MOMENTS, certificate_dataset


def test_every_number_is_that_of_the_certificate():
    generator = np.random.default_rng(3)
    rows = [generator.normal(size=(n, 9)) + 0.7 for n in (30, 40)]
    found = certificate(gram_matrices(*rows), [(4, 8), (16, 2)], laws="different")
    table = certificate_dataset(found)
    for name in MOMENTS:
        interval = getattr(found, name)
        got = [float(table[name + end]) for end in ("_low", "", "_high")]
        assert got == [interval.low, interval.value, interval.high]
    for name in BOUNDS:
        np.testing.assert_array_equal(table[name], getattr(found, name))
    assert float(table["plug_in_d_align"]) == found.plug_in["d_align"]
    assert table["train_samples"].to_numpy().tolist() == [4, 16]
    assert table["test_samples"].to_numpy().tolist() == [8, 2]
    assert bool(table["has_bound"]) == found.has_bound
    flipped = table.sel(control="flipped")
    assert float(flipped["control_certified"]) == found.controls[0].certified
    np.testing.assert_array_equal(
        flipped["control_plug_in_b_exact"], found.controls[0].plug_in_b_exact
    )
    assert all({"units", "description"} <= set(table[name].attrs) for name in table.data_vars)
