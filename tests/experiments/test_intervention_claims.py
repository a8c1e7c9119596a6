"""The intervention experiment judges small steps at the smallest that is resolved."""

import numpy as np
import pytest
import xarray as xr
from gradient_families import section_of

from widthlab.claims import from_json
from widthlab.experiments import intervention
from widthlab.experiments.shared.base import Measured

SCALES = [0.001, 0.01, 0.1, 1.0]


def cells(section, ratio, sign, resolved=(False, True, True, True)):
    """Networks with given ratios and sign agreements (scales,) at both of two points."""
    found = []
    for request in intervention.cells(section, 0):
        cell = request.cell
        generator = np.random.default_rng([cell.network.width, cell.seed])
        shift = 0.003 * generator.standard_normal()
        shape = (2, len(SCALES))
        predicted = -np.ones((2, len(SCALES), 3))
        dims = ("point", "scale")
        data = xr.Dataset(
            {
                "ratio": (dims, np.broadcast_to(ratio, shape) + shift),
                "sign_agreement": (dims, np.broadcast_to(sign, shape)),
                "resolved": (dims, np.broadcast_to(resolved, shape)),
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


def test_the_smallest_resolved_step_decides():
    # The first step is too small for the loss's precision: what it says does not count.
    _, found = judged([7.0, 0.99, 0.8, -3.0], [0.4, 1.0, 0.9, 0.5])
    assert found["intervention.mlp.ratio"].verdict == "holds"
    assert found["intervention.mlp.ratio"].measured == pytest.approx(0.99, abs=0.01)
    assert found["intervention.mlp.sign"].verdict == "holds"
    assert "at b/z of 0.01 to 0.01" in found["intervention.mlp.ratio"].reason


def test_a_change_that_is_not_preserved_fails():
    _, found = judged([0.9, 0.9, 0.8, 0.7], [0.9, 0.9, 0.9, 0.5])
    assert {claim.verdict for claim in found.values()} == {"fails"}


def test_nothing_resolved_is_undecided():
    dataset, found = judged([1.0] * 4, [1.0] * 4, resolved=[False] * 4)
    assert {claim.verdict for claim in found.values()} == {"undecided"}
    assert "no step is resolved" in found["intervention.mlp.ratio"].reason
    assert len(intervention.figures(dataset)) == 2


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
