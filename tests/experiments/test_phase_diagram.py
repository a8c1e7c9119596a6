"""The phase diagram: verdicts follow the data, a diverged run is a point, and holes stay holes."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from widthlab import data, specs
from widthlab.claims import from_json
from widthlab.experiments import phase_diagram
from widthlab.experiments.phase_diagram.phases import DOUBLED, PHASES
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.experiments.shared.deep_networks import deep_problem
from widthlab.experiments.shared.deep_runs import CHANGES, changes_dataset
from widthlab.meanode import stability_limit
from widthlab.theory.block_law import residual_variance

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
        "lazy_stream",
        "lazy_tangent",
        "lazy_blocks",
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


def statistics_of(
    cell,
    edge,
    burst,
    size=1.0,
    power=1.0,
    noise=0.1,
    stream=1.0,
    tangent=1.0,
    blocks=1.5,
    **changes,
):
    """Curves that fall as sigma_v^-power beyond `edge`, and double at `burst`, both in σ_v."""
    generator = np.random.default_rng(cell.width * 1000 + cell.depth)
    sigma = np.array(cell.sigma_v)[:, None] * np.sqrt(cell.width)
    shape = len(cell.sigma_v), cell.draws
    of_draw = np.exp(noise * generator.standard_normal(cell.draws))
    found = {name: np.full(shape, 0.5) for name in CHANGES}
    found["local_update"] = size * of_draw / (1 + (sigma / edge) ** 4) ** (power / 4)
    relative = np.array(cell.sigma_v)[:, None]
    for name, fall in (("preactivation_change", stream), ("distance", tangent)):
        found[name] = 0.3 * of_draw * relative**-fall
    found["distance_lazy"] = 0.2 * of_draw * relative**-blocks
    gain = np.sqrt(1 + 3 * (sigma / burst * of_draw**0.3) ** 2)
    found["forward_gain"] = found["backward_gain"] = gain
    found |= {name: np.broadcast_to(value, shape) for name, value in changes.items()}
    dims = ("sigma_v", "draw")
    dataset = changes_dataset(found, dims, np.full(shape, -1), sigma_v=list(cell.sigma_v))
    return dataset.assign(learning_rate=(dims, np.full(shape, 0.5)))


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
        ("lazy_stream", {"stream": 0.2}),
        ("lazy_tangent", {"tangent": 0.0}),
        ("lazy_blocks", {"blocks": 0.2}),
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
    for name in {name for name in NAMES if "lazy" in name}:
        name = name.removeprefix("phase_diagram.tanh.")
        assert found[f"phase_diagram.tanh.{name}"] == "undecided"


def test_each_phase_is_told_by_its_rule():
    section = section_of(width=[16], depth=[64])
    burst = {"burst": lambda d, depth: 1.9 * np.sqrt(section.hidden * depth)}
    (cell,) = measured(section, noise=0.0, **burst)
    found = phase_diagram.sweep(section, [cell])["phase"].to_numpy().ravel()
    names = [PHASES[number] for number in found]
    # 4.5 √D is beyond half of the maximum; both passes double at 1.9 √(ML) = 61 √D.
    assert names == ["MLU"] * 5 + ["lazy"] * 4 + ["exploding"] * 2
    (far,) = measured(section, noise=0.0, distance_lazy=0.13, **burst)
    found = phase_diagram.sweep(section, [far])["phase"].to_numpy().ravel()
    # The same local updates, but not near the linearised network.
    assert [PHASES[number] for number in found[5:]] == ["small updates"] * 4 + ["exploding"] * 2
    (replaced,) = measured(section, noise=0.0, preactivation_change=9.0, **burst)
    again = phase_diagram.sweep(section, [replaced])["phase"].to_numpy().ravel()
    assert (again == found).all()
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


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_rates_are_one_share_of_each_networks_stability_limit(activation):
    """No power of D or σ_v stands in the rule; only the largest rate bounds what it gives."""
    sigma_v = [0.1, 1, 10]
    section = section_of(
        models={"a": {"activation": activation}, "b": {"activation": activation, "sigma_u": 1e-3}},
        sigma_v=sigma_v,
        width=[6],
        depth=[3],
        hidden=2,
        draws=4,
        inputs=2,
        steps=1,
        data=GAUSSIAN,
    )
    inputs = Inputs(
        data.prepare(GAUSSIAN, None), (), torch.device("cpu"), np.random.SeedSequence(1)
    )
    for request in phase_diagram.cells(section, 7):
        cell = request.cell
        rates = phase_diagram.extract(cell, inputs)["learning_rate"].to_numpy()
        for draw in range(4):
            problem = deep_problem(cell.at(1), inputs, draw)
            limits = np.array([stability_limit(cell.at(s).network, problem) for s in sigma_v])
            expected = np.minimum(section.learning_rate, section.share * limits)
            assert rates[:, draw] == pytest.approx(expected)
    # Both branches of the rule are seen with small inner weights.
    assert (rates[0] == section.learning_rate).all()
    assert (rates[-1] < section.learning_rate).all()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_pass_doubles_where_the_block_law_says(activation):
    """Also between points of the grid: gains interpolated themselves are up to 4 % off here."""
    models = {"a": {"activation": activation}}
    grid = [1, 3, 8, 13, 20, 32, 50, 80]
    section = section_of(models=models, sigma_v=grid, width=[32], depth=[16], hidden=192)
    (cell,) = measured(section, noise=0.0)

    def gain(sigma):
        alpha = sigma * np.sqrt(32 / 192) / 16
        law = residual_variance(1.0, 16, activation, 1.0, 0.0, alpha=alpha)
        return np.sqrt(law[-1])

    law = np.array([gain(sigma) for sigma in grid])[:, None]
    for name in ("forward_gain", "backward_gain"):
        cell.statistics[name][:] = np.broadcast_to(law, cell.statistics[name].shape)
    expected = np.sqrt(32) * brentq(lambda sigma: gain(sigma) - DOUBLED, 1, 80)
    found = phase_diagram.sweep(section, [cell])["exploding_boundary"].item()
    assert found == pytest.approx(expected, rel=0.004)


def test_slugs_tell_kinds_of_blocks_apart():
    section = section_of(models={"a": {}, "b": {"sigma_u": 0.01}}, width=[8], depth=[4])
    assert len({request.slug for request in phase_diagram.cells(section, 0)}) == 2


def test_the_largest_scales_allowed_end_in_a_diagram():
    """At any admitted scale there is a plan, and a sweep with a verdict for each claim."""
    section = section_of(models={"relu": {"activation": "relu"}}, sigma_v=[1e-6, 1, 3, 1e6])
    dataset = phase_diagram.sweep(section, measured(section))
    assert from_json(dataset.attrs["claims"])
    assert len(phase_diagram.figures(dataset)) == 3
    assert phase_diagram.cells(section_of(sigma_v=[1e5, 3e5, 1e6]), 0)


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
        ({"sigma_v": [1, 3, 1e200]}, "less than or equal to 1000000"),
        ({"sigma_v": [1e-200, 1, 3]}, "greater than or equal to 0.000001"),
        ({"models": {"a": {"sigma_u": 1e200}}}, "less than or equal to 1000000"),
        ({"hidden": 0}, "greater than or equal to 1"),
        ({"inputs": 10**6}, "inputs: 1000000 are asked for"),
    ],
)
def test_bad_grids_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        section_of(**changes)
