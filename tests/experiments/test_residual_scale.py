"""Residual scales: verdicts follow the data, diverged seeds are counted, holes stay holes."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab import data, specs
from widthlab.claims import from_json
from widthlab.experiments import residual_scale
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.experiments.shared.deep_runs import CHANGES, changes_dataset

GAUSSIAN = specs.Gaussian(dimension=5, train_samples=24, test_samples=8)
LAWS = {
    1.0: {"spread": -0.5, "local_update": 0.0, "gain": 0.0, "blocks": 0.0},
    0.5: {"spread": 0.0, "local_update": -0.5, "gain": 0.0, "blocks": -0.8},
    0.0: {"spread": 0.5, "local_update": 0.5, "gain": 0.5, "blocks": 0.0},
}
NAMES = (
    "inverse.limit",
    "inverse.features",
    "root.random",
    "root.lazy",
    "root.blocks",
    "constant.explodes",
)


def section_of(**changes):
    options = {"depth": [8, 32, 128, 512], "width": 8, "hidden": 8, "seeds": 24, "inputs": 2}
    return residual_scale.Section(**{**options, **changes})


def measured(section, laws=LAWS, noise=0.1):
    cells = []
    for request in residual_scale.cells(section, 0):
        cell = request.cell
        generator = np.random.default_rng([cell.depth, int(10 * cell.exponent)])
        law = {name: (cell.depth / 8) ** power for name, power in laws[cell.exponent].items()}
        jitter = np.exp(noise * generator.standard_normal(cell.seeds))
        found = {name: np.full(cell.seeds, 0.5) * jitter for name in CHANGES}
        found["local_update"] = law["local_update"] * jitter
        found["distance_lazy"] = law["blocks"] * jitter
        found["forward_gain"] = law["gain"] * jitter
        shape = cell.seeds, 2, cell.inputs, cell.width
        h = law["spread"] * 0.3 * generator.standard_normal(shape)
        statistics = changes_dataset(found, ("seed",), np.full(cell.seeds, -1))
        statistics = statistics.assign(
            embedding=xr.DataArray(h, dims=("seed", "step", "input", "coordinate")),
            input_embedding=(("input", "coordinate"), np.ones((cell.inputs, cell.width))),
        )
        cells.append(Measured(request.label, cell, statistics))
    return cells


def verdicts(section, cells):
    claims = from_json(residual_scale.sweep(section, cells).attrs["claims"])
    return {claim.id.removeprefix("residual_scale."): claim.verdict for claim in claims}


def test_claims_hold_for_data_that_obey_the_laws():
    """Intervals are of 95 %; the seeds are fixed."""
    section = section_of()
    assert verdicts(section, measured(section)) == dict.fromkeys(NAMES, "holds")


@pytest.mark.parametrize(
    ("name", "exponent", "quantity", "power"),
    [
        ("inverse.limit", 1.0, "spread", 0.0),
        ("inverse.features", 1.0, "local_update", -0.5),
        ("root.random", 0.5, "spread", -0.5),
        ("root.lazy", 0.5, "local_update", 0.0),
        ("root.blocks", 0.5, "blocks", -0.2),
        ("constant.explodes", 0.0, "gain", -0.5),
    ],
)
def test_each_claim_fails_where_its_law_is_broken(name, exponent, quantity, power):
    section = section_of()
    laws = {**LAWS, exponent: {**LAWS[exponent], quantity: power}}
    assert verdicts(section, measured(section, laws))[name] == "fails"


def test_a_grid_too_short_for_its_noise_is_undecided():
    section = section_of(depth=[8, 12], seeds=4)
    found = verdicts(section, measured(section, noise=1.0))
    assert found["inverse.features"] == found["root.lazy"] == "undecided"


def test_diverged_seeds_are_counted_and_left_out():
    section = section_of(exponent=[0], depth=[8, 32])
    cells = measured(section)
    for name in CHANGES:
        cells[1].statistics[name][:5] = np.nan
    cells[1].statistics["embedding"][:5] = np.nan
    cells[1].statistics["diverged"][:5] = 2
    dataset = residual_scale.sweep(section, cells)
    assert dataset["diverged"].to_numpy().tolist() == [[0, 5]]
    assert np.isfinite(dataset["spread"]).all()
    (claim,) = from_json(dataset.attrs["claims"])
    assert "5 of 48 networks diverged" in claim.reason
    assert "43 of 48 networks did not diverge" in residual_scale.figures(dataset)[0].caption


@pytest.mark.filterwarnings("error")
def test_missing_cells_are_holes_and_figures_are_drawn():
    section = section_of()
    cells = measured(section)
    dataset = residual_scale.sweep(section, cells[1:])
    hole = dataset.sel(exponent=1.0, depth=8)
    assert np.isnan(hole["spread"])
    assert hole["finite"] == 0
    for few in (cells, cells[1:], cells[:1], []):
        dataset = residual_scale.sweep(section, few)
        assert len(residual_scale.figures(dataset)) == 1
    assert {c.verdict for c in from_json(dataset.attrs["claims"])} == {"undecided"}


def test_a_cell_measures_real_networks_and_the_forward_law_is_theirs():
    """At infinite D and M the gain is the block law's; here within a tenth."""
    section = section_of(
        exponent=[0.5], depth=[16], width=64, hidden=64, seeds=4, data=GAUSSIAN, steps=2
    )
    (request,) = residual_scale.cells(section, 0)
    inputs = Inputs(
        data.prepare(GAUSSIAN, None), (), torch.device("cpu"), np.random.SeedSequence(1)
    )
    found = residual_scale.extract(request.cell, inputs)
    assert found["embedding"].shape == (4, 2, 2, 64)
    dataset = residual_scale.sweep(section, [Measured("tanh", request.cell, found)])
    law = dataset["theory_forward_gain"].item()
    assert law > 1.1
    assert dataset["forward_gain"].item() == pytest.approx(law, rel=0.1)


def test_a_law_beyond_all_numbers_is_infinite_and_drawn():
    """Homogeneous blocks that are not scaled outgrow double precision near depth 3,000."""
    section = section_of(activation="relu", depth=[8, 4096])
    dataset = residual_scale.sweep(section, measured(section))
    assert np.isinf(dataset["theory_forward_gain"].sel(exponent=0.0, depth=4096))
    assert len(residual_scale.figures(dataset)) == 1


def test_cells_of_a_study_share_their_task():
    one, other = (
        request.cell for request in residual_scale.cells(section_of(depth=[8, 16]), 5)[:2]
    )
    assert one.task_seed == other.task_seed == 5
    assert one.alpha == 1.0
    assert residual_scale.cells(section_of(exponent=[0.5]), 5)[0].cell.alpha == pytest.approx(
        8**0.5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exponent": [1, 1]}, "value twice"),
        ({"exponent": [-1]}, "greater than or equal to 0"),
        ({"exponent": [1000]}, "less than or equal to 4"),
        ({"exponent": [1, 4]}, "exponent: 4 at depth 512 makes α = L.* nearer to 1"),
    ],
)
def test_bad_grids_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        section_of(**changes)
