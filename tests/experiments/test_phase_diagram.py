"""The phase diagram: verdicts follow the data, a diverged run is a point, and holes stay holes."""

import numpy as np
import pytest
import torch

from widthlab import data, specs
from widthlab.claims import from_json
from widthlab.experiments import phase_diagram
from widthlab.experiments.phase_diagram.phases import PHASES
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.experiments.shared.deep_runs import CHANGES, changes_dataset

GAUSSIAN = specs.Gaussian(dimension=5, train_samples=24, test_samples=8)
NAMES = {
    f"phase_diagram.tanh.{name}"
    for name in (
        "lazy_width",
        "lazy_depth",
        "exploding_width",
        "exploding_depth",
        "mlu",
        "lazy_decay",
    )
}


def section_of(**changes):
    options = {
        "sigma_v": [0.1, 0.5, 1, 2, 3, 4.5, 8, 16, 32, 64, 128],
        "width": [8, 16, 32, 64],
        "depth": [16, 64],
        "hidden": 256,
        "draws": 12,
    }
    return phase_diagram.Section(**{**options, **changes})


def statistics_of(cell, edge, burst, size=1.0, power=1.0, noise=0.1, **changes):
    """Curves that fall as sigma_v^-power beyond `edge`, and double at `burst`, both in σ_v."""
    generator = np.random.default_rng(cell.width * 1000 + cell.depth)
    sigma = np.array(cell.sigma_v)[:, None] * np.sqrt(cell.width)
    shape = len(cell.sigma_v), cell.draws
    of_draw = np.exp(noise * generator.standard_normal(cell.draws))
    found = {name: np.full(shape, 0.5) for name in CHANGES}
    found["local_update"] = size * of_draw / (1 + (sigma / edge) ** 4) ** (power / 4)
    gain = np.sqrt(1 + 3 * (sigma / burst * of_draw**0.3) ** 2)
    found["forward_gain"] = found["backward_gain"] = gain
    found |= {name: np.broadcast_to(value, shape) for name, value in changes.items()}
    return changes_dataset(
        found, ("sigma_v", "draw"), np.full(shape, -1), sigma_v=list(cell.sigma_v)
    )


def measured(section, edge=None, burst=None, **changes):
    edge = edge or (lambda d, depth: 2.0 * np.sqrt(d))
    burst = burst or (lambda d, depth: 2.0 * np.sqrt(section.hidden * depth))
    cells = []
    for request in phase_diagram.cells(section, 0):
        cell = request.cell
        at = cell.width, cell.depth
        own = {n: v(*at) if callable(v) else v for n, v in changes.items()}
        statistics = statistics_of(cell, edge(*at), burst(*at), **own)
        cells.append(Measured(request.label, cell, statistics))
    return cells


def verdicts(section, cells):
    claims = from_json(phase_diagram.sweep(section, cells).attrs["claims"])
    return {claim.id: claim.verdict for claim in claims}


def test_claims_hold_for_curves_that_obey_the_laws():
    """Intervals are of 95 %; the seeds are fixed."""
    section = section_of()
    assert verdicts(section, measured(section)) == dict.fromkeys(NAMES, "holds")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lazy_width", {"edge": lambda d, depth: 0.3 * d}),
        ("lazy_depth", {"edge": lambda d, depth: np.sqrt(d * depth / 10)}),
        ("exploding_width", {"burst": lambda d, depth: 30.0 * np.sqrt(d)}),
        ("exploding_depth", {"burst": lambda d, depth: 200.0}),
        ("mlu", {"size": lambda d, depth: d**-0.5}),
        ("lazy_decay", {"power": 0.5}),
    ],
)
def test_each_claim_fails_where_its_law_is_broken(name, changes):
    section = section_of()
    assert verdicts(section, measured(section, **changes))[f"phase_diagram.tanh.{name}"] == "fails"


def test_explosion_is_claimed_only_where_the_grid_reaches_it():
    section = section_of(models={"tanh": {"sigma_u": 0.01}})
    found = verdicts(section, measured(section))
    assert set(found) == {name for name in NAMES if "exploding" not in name}


def test_noise_leaves_the_width_of_the_boundary_undecided():
    section = section_of(draws=4, width=[8, 16])
    cells = measured(section, noise=0.1)
    generator = np.random.default_rng(0)
    for one in cells:
        one.statistics["local_update"] *= np.exp(0.8 * generator.standard_normal((11, 4)))
    assert verdicts(section, cells)["phase_diagram.tanh.lazy_width"] == "undecided"


def test_outside_the_domain_of_the_lazy_law_nothing_is_judged():
    section = section_of(hidden=1)
    found = verdicts(section, measured(section))
    for name in ("lazy_width", "lazy_depth", "lazy_decay"):
        assert found[f"phase_diagram.tanh.{name}"] == "undecided"


def test_each_phase_is_told_by_its_rule():
    section = section_of(width=[16], depth=[64])
    burst = {"burst": lambda d, depth: 1.9 * np.sqrt(section.hidden * depth)}
    (cell,) = measured(section, noise=0.0, **burst)
    found = phase_diagram.sweep(section, [cell])["phase"].to_numpy().ravel()
    names = [PHASES[number] for number in found]
    # 4.5 √D is beyond half of the maximum; both passes double at 1.9 √(ML) = 61 √D.
    assert names == ["MLU"] * 5 + ["lazy"] * 4 + ["exploding"] * 2
    (stuck,) = measured(section, noise=0.0, loss_ratio=0.95, **burst)
    found = phase_diagram.sweep(section, [stuck])["phase"].to_numpy().ravel()
    assert {PHASES[number] for number in found[:-2]} == {"nothing learned"}


def test_diverged_runs_are_points_of_the_map_and_counted():
    section = section_of(width=[16], depth=[64])
    (cell,) = measured(section)
    for name in CHANGES:
        cell.statistics[name][2, :7] = np.nan
    cell.statistics["diverged"][2, :7] = 3
    dataset = phase_diagram.sweep(section, [cell])
    point = dataset.isel(model=0, width=0, depth=0, sigma_v=2)
    assert point["diverged"] == 7
    assert point["finite"] == 5
    assert PHASES[int(point["phase"])] == "exploding"
    assert "of 132 networks did not diverge" in phase_diagram.figures(dataset)[0].caption


@pytest.mark.filterwarnings("error")
def test_missing_cells_are_holes_and_figures_are_drawn():
    section = section_of()
    cells = measured(section)
    assert len(phase_diagram.figures(phase_diagram.sweep(section, cells))) == 3
    dataset = phase_diagram.sweep(section, cells[1:])
    hole = dataset.sel(model="tanh", depth=16, width=8)
    assert (hole["phase"] == -1).all()
    assert np.isnan(hole["local_update"]).all()
    phase_diagram.figures(dataset)
    for few in (cells[:1], []):
        dataset = phase_diagram.sweep(section, few)
        assert {c.verdict for c in from_json(dataset.attrs["claims"])} <= {"undecided", "holds"}
        phase_diagram.figures(dataset)


def test_a_cell_measures_real_networks(monkeypatch):
    section = section_of(
        sigma_v=[0.5, 1, 1000], width=[4], depth=[3], hidden=2, draws=4, inputs=2, data=GAUSSIAN
    )
    (request,) = phase_diagram.cells(section, 7)
    inputs = Inputs(
        data.prepare(GAUSSIAN, None), (), torch.device("cpu"), np.random.SeedSequence(1)
    )
    found = phase_diagram.extract(request.cell, inputs)
    assert found["local_update"].shape == (3, 4)
    assert (found["diverged"] == -1).all()
    assert (found["forward_gain"].sel(sigma_v=1000) > 2).all()
    assert (found["local_update"].isel(sigma_v=0) > 0).all()
    again = phase_diagram.extract(request.cell, inputs)
    assert found.identical(again)


def test_rates_keep_the_speed_of_the_tangent_kernel():
    """Its parts of inner and outer weights are as σ_v²/D to 1 for linear blocks with |h|² = D."""
    from widthlab.theory.deep_limits import perceptron_tangent_kernel

    (request,) = phase_diagram.cells(section_of(width=[16], depth=[16]), 0)
    speeds = []
    for sigma_v in (0.1, 1.0, 10.0):
        inner, outer = perceptron_tangent_kernel(
            [[16.0]], "linear", inner_deviation=4, outer_deviation=4 * sigma_v, inner_scale=1 / 16
        )
        speeds.append(request.cell.at(sigma_v).learning_rate * (inner + outer).item())
    assert speeds == pytest.approx([speeds[0]] * 3)


def test_small_updates_before_the_maximum_are_not_lazy():
    section = section_of(width=[16], depth=[64])
    (cell,) = measured(section, noise=0.0)
    cell.statistics["local_update"][:2] = 0.01
    found = phase_diagram.sweep(section, [cell])["phase"].to_numpy().ravel()
    assert [PHASES[number] for number in found[:2]] == ["MLU", "MLU"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma_v": [1, 1, 2]}, "value twice"),
        ({"sigma_v": [0, 1, 2]}, "greater than 0"),
        ({"hidden": 0}, "greater than or equal to 1"),
        ({"inputs": 10**6}, "inputs: 1000000 are asked for"),
    ],
)
def test_bad_grids_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        section_of(**changes)
