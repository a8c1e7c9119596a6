"""The intervention experiment judges small steps at the smallest that is resolved."""

import numpy as np
import pytest
import xarray as xr
from gradient_families import section_of

from widthlab.claims import from_json
from widthlab.experiments import intervention
from widthlab.experiments.shared.base import Measured

SCALES = [0.001, 0.01, 0.1, 1.0]


def cells(section, ratio, sign, resolved=(False, True, True, True), draws=8):
    """Networks with given ratios and sign agreements (scales,) at both of two points."""
    found = []
    for request in intervention.cells(section, 0):
        cell = request.cell
        generator = np.random.default_rng([cell.network.width, cell.seed])
        shift = 0.003 * generator.standard_normal()
        shape = (2, len(SCALES))
        predicted = -np.ones((2, len(SCALES), draws))
        dims = ("point", "scale")
        data = xr.Dataset(
            {
                "ratio": (dims, np.broadcast_to(ratio, shape) + shift),
                "sign_agreement": (dims, np.broadcast_to(sign, shape)),
                "resolved": (dims, np.broadcast_to(resolved, shape)),
                "first_order_end": ("point", [0.1, np.nan]),
                "predicted": ((*dims, "draw"), predicted),
                "observed": ((*dims, "draw"), predicted),
            },
            coords={"scale": SCALES, "point": ["a", "b"]},
            attrs={"status": "finished"},
        )
        found.append(Measured(request.label, cell, data))
    return found


def judged(*arguments, **options):
    section = section_of(intervention, scales=SCALES)
    dataset = intervention.sweep(section, cells(section, *arguments, **options))
    return dataset, {claim.id: claim for claim in from_json(dataset.attrs["claims"])}


def test_the_small_step_decides():
    # The first step is too small for the loss's precision: what it says does not count.
    _, found = judged([7.0, 0.99, 0.8, -3.0], [0.4, 1.0, 0.9, 0.5])
    assert found["intervention.mlp.ratio"].verdict == "holds"
    assert found["intervention.mlp.ratio"].measured == pytest.approx(0.99, abs=0.01)
    assert found["intervention.mlp.sign"].verdict == "holds"
    assert "at a step of 0.01 times" in found["intervention.mlp.ratio"].statement


@pytest.mark.parametrize("ratio", [0.9, 1.1])
def test_a_change_that_is_not_preserved_fails(ratio):
    _, found = judged([ratio] * 4, [0.8] * 4)
    assert {claim.verdict for claim in found.values()} == {"fails"}


def test_a_few_draws_prove_no_share():
    _, found = judged([1.0] * 4, [1.0] * 4, draws=2)
    claim = found["intervention.mlp.sign"]
    assert claim.verdict == "undecided"
    # Clopper and Pearson's lower limit of 24 of 24.
    assert claim.low == pytest.approx(0.025 ** (1 / 24))


def test_nothing_resolved_is_undecided():
    dataset, found = judged([1.0] * 4, [1.0] * 4, resolved=[True, False, True, True])
    assert {claim.verdict for claim in found.values()} == {"undecided"}
    assert "100% of the points are not resolved there" in found["intervention.mlp.ratio"].reason
    assert len(intervention.figures(dataset)) == 3


def test_a_grid_without_a_small_step_is_undecided():
    section = section_of(intervention, scales=[0.1, 1.0])
    made = [
        Measured(one.label, one.cell, one.statistics.isel(scale=slice(2, None)))
        for one in cells(section, [1.0] * 4, [1.0] * 4)
    ]
    dataset = intervention.sweep(section, made)
    assert {claim.verdict for claim in from_json(dataset.attrs["claims"])} == {"undecided"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_samples": 33}, "two draws of them need 66 train_samples, which is 64"),
        ({"scales": [0.1, 0.1]}, "has a value twice"),
        ({"scales": [0.0]}, "greater than 0"),
    ],
)
def test_what_could_only_fail_in_its_jobs_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        section_of(intervention, **changes)


def test_the_expected_norm_of_a_mean_is_that_of_draws():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((50, 6)) + 0.4
    drawn = [rows[generator.permutation(50)[:4]].mean(axis=0) for _ in range(4000)]
    expected = np.sqrt(np.mean(np.sum(np.square(drawn), axis=1)))
    # Without replacement a mean of 4 of 50 varies by 1 − 4/50 less.
    assert intervention._mean_norm(rows, 4) == pytest.approx(expected, rel=0.06)
