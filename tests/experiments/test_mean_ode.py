"""The mean-ODE experiment: verdicts follow the data, holes stay holes, bad grids are refused."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab import data
from widthlab.claims import from_json
from widthlab.experiments import mean_ode
from widthlab.experiments.mean_ode.measuring import PLACE
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.experiments.shared.deep_networks import recorded

GAUSSIAN = {"name": "gaussian", "dimension": 5, "train_samples": 24, "test_samples": 8}
SIZES = {"embedding": (2, 8), "output": (2, 2)}
EXACT = {"embedding": 1.0, "output": 0.3}


def section_of(**changes):
    options = {
        "depth": [4, 8, 16, 32, 64, 128, 512],
        "hidden": [1, 4, 128, 1024],
        "more_seeds": [{"hidden": 128, "seeds": 400}, {"hidden": 1024, "seeds": 64}],
        "inputs": 2,
        "width": 8,
        "width_sweep": {"width": [8, 16, 32, 64, 128], "depth": 64, "hidden": 16},
        "reference": {"depth": 256, "hidden": 128},
        "data": GAUSSIAN,
    }
    return mean_ode.Section(**{**options, **changes})


def sampled(depth, hidden, width):
    return 0.6 * (width / (depth * hidden)) ** 0.5


def sampled_output(depth, hidden, width):
    return 0.2 / (depth * hidden) ** 0.5


def obeying(
    section,
    *,
    spread=sampled,
    output=sampled_output,
    bias=lambda L, M: 0.3 / L,
    off=0.0,
    late=None,
    limit_noise=2.8,
):
    """Cells of Gaussian errors of the sizes given, about a limit that is known."""
    steps = recorded(section.steps)
    rng = np.random.default_rng(3)
    truth = {part: rng.normal(size=(len(steps), *shape)) for part, shape in SIZES.items()}
    spreads = {"embedding": spread, "output": output}
    dims = {
        "embedding": ("step", "input", "coordinate"),
        "output": ("step", "input", "output_coordinate"),
    }
    path = rng.normal(size=(len(PLACE), 8)), rng.normal(size=(section.steps + 1, 2))
    cells = []
    for request in mean_ode.cells(section, 0):
        cell = request.cell
        rng = np.random.default_rng([cell.depth, cell.hidden, cell.width])
        if cell.kind == "width":
            variances = {
                f"{part}_variance": (
                    "draw",
                    size(cell.depth, cell.hidden, cell.width) ** 2
                    * rng.normal(1, 0.05, cell.embeddings),
                )
                for part, size in spreads.items()
            }
            found = xr.Dataset({**variances, "diverged": ((), 0)}, attrs={"outputs": 2})
        elif cell.kind == "network":
            found = xr.Dataset(coords={"step": steps})
            for part, values in truth.items():
                size = spreads[part](cell.depth, cell.hidden, cell.width)
                noise = rng.normal(size=(cell.seeds, *values.shape)) * size
                if late is not None:
                    noise[:, -1] *= late(cell.depth)
                # Before training nothing is off but by sampling.
                shift = bias(cell.depth, cell.hidden) * (np.array(steps) > 0)[:, None, None]
                found[part] = (("seed", *dims[part]), values + shift + noise)
            found["diverged"] = ("seed", np.full(cell.seeds, -1))
            if cell.traced:
                found = found.assign(traces(rng, path))
        else:
            error = 0.002 if cell.kind == "reference" else 0.0005
            found = xr.Dataset(coords={"step": steps})
            for part, values in truth.items():
                shift = off if cell.kind == "reference" else 0.0
                found[part] = (dims[part], values + shift + rng.normal(size=values.shape) * error)
                found[f"{part}_error"] = (dims[part], np.full(values.shape, error))
                if cell.kind == "limit":
                    apart = rng.normal(size=(cell.seeds, *values.shape)) * error * limit_noise
                    each = found[part].to_numpy() + apart - apart.mean(0)
                    found[f"{part}_replicates"] = (("replicate", *dims[part]), each)
            if cell.kind == "limit":
                found["depth_trace"] = (("position", "coordinate"), path[0])
                found["training_trace"] = (("training_step", "output_coordinate"), path[1])
        cells.append(Measured(request.label, cell, found))
    return cells


def traces(rng, path):
    depth, training = (one + 0.1 * rng.normal(size=(4, *one.shape)) for one in path)
    return xr.Dataset(
        {
            "depth_trace": (("traced_seed", "position", "coordinate"), depth),
            "training_trace": (("traced_seed", "training_step", "output_coordinate"), training),
        },
        {"position": PLACE},
    )


def claims_of(dataset):
    found = from_json(dataset.attrs["claims"])
    return {claim.id.removeprefix("mean_ode."): claim for claim in found}


def verdicts(section, **changes):
    dataset = mean_ode.sweep(section, obeying(section, **changes))
    return {name: claim.verdict for name, claim in claims_of(dataset).items()}


def test_every_claim_holds_for_networks_that_obey_the_laws():
    """Each verdict is wrong in 1 of 20 cases at most; the seeds are fixed."""
    laws = (
        "limits",
        "euler",
        "sampling_depth",
        "sampling_hidden",
        "sampling_width",
        "thin",
        "collapse",
        "training",
    )
    names = [f"{part}.{law}" for part in SIZES for law in laws]
    assert verdicts(section_of()) == dict.fromkeys([*names, "embedding.bound"], "holds")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (
            {"spread": lambda L, M, D: 0.3 * (D / M) ** 0.5 / L**0.2},
            ("embedding.sampling_depth", "embedding.thin", "embedding.training"),
        ),
        (
            {"output": lambda L, M, D: 0.5 / (L * M**0.5)},
            ("output.sampling_depth", "output.training"),
        ),
        (
            {"spread": lambda L, M, D: 0.3 * (D / L) ** 0.5 / M**0.2},
            ("embedding.sampling_hidden", "embedding.collapse"),
        ),
        (
            {"spread": lambda L, M, D: 0.1 * D / (L * M) ** 0.5},
            ("embedding.sampling_width",),
        ),
        (
            {"output": lambda L, M, D: 0.1 * (D / (L * M)) ** 0.5},
            ("output.sampling_width",),
        ),
        ({"bias": lambda L, M: 0.3 / L**0.5}, ("embedding.euler", "output.euler")),
        ({"bias": lambda L, M: 0.3}, ("embedding.thin", "embedding.bound")),
        ({"off": 0.03}, ("embedding.limits", "output.limits")),
    ],
)
def test_claims_fail_where_their_law_is_broken(changes, names):
    found = verdicts(section_of(), **changes)
    assert {name: found[name] for name in names} == dict.fromkeys(names, "fails")


def test_one_step_at_which_the_law_is_broken_fails():
    """The others, five of six, obey it; the rival is excluded at each of them."""
    dataset = mean_ode.sweep(section_of(), obeying(section_of(), late=lambda L: L**0.4))
    for part in SIZES:
        claim = claims_of(dataset)[f"{part}.training"]
        assert claim.verdict == "fails"
        assert "after step 10" in claim.reason


def test_a_step_of_which_the_exponent_is_not_known_leaves_training_undecided():
    section = section_of(seeds=8)
    cells = obeying(section)
    for cell in cells:
        if cell.cell.kind == "network" and cell.cell.hidden == 1:
            own = cell.statistics["output"].to_numpy()
            own[:, 3] *= np.exp(2 * np.random.default_rng(0).normal(size=(len(own), 1, 1)))
    claim = claims_of(mean_ode.sweep(section, cells))["output.training"]
    assert claim.verdict == "undecided"
    assert "5 holds" not in claim.reason or "1 undecided" in claim.reason


def test_the_euler_interval_has_the_error_of_the_limit():
    """All depths have it in common, so that the seeds do not show it."""
    widths = []
    for limit_noise in (0.0, 20.0):
        dataset = mean_ode.sweep(section_of(), obeying(section_of(), limit_noise=limit_noise))
        claim = claims_of(dataset)["embedding.euler"]
        widths.append(claim.high - claim.low)
    assert widths[1] > 1.1 * widths[0]


def test_networks_that_do_not_move_make_holes():
    """Weights so small that all errors are zero, or their squares are."""
    cells = obeying(section_of())
    for cell in cells:
        for name, values in cell.statistics.items():
            if name != "diverged":
                cell.statistics[name] = values * 0.0
    dataset = mean_ode.sweep(section_of(), cells)
    assert {claim.verdict for claim in claims_of(dataset).values()} == {"undecided"}
    assert len(mean_ode.figures(dataset)) == 6


def test_a_bias_under_the_noise_of_the_mean_is_undecided():
    dataset = mean_ode.sweep(section_of(), obeying(section_of(), bias=lambda L, M: 0.0))
    claim = claims_of(dataset)["embedding.euler"]
    assert claim.verdict == "undecided"
    assert "more seeds" in claim.reason or claim.measured is None
    # and without it one term of the bound would do
    assert claims_of(dataset)["embedding.bound"].verdict == "undecided"


def test_errors_are_those_that_were_put_in():
    """To a tenth: six standard errors of the spread of 400 seeds and 16 coordinates, and more."""
    dataset = mean_ode.sweep(section_of(), obeying(section_of()))
    point = dataset.sel(part="embedding", depth=4, hidden=128)
    assert float(point["sampling"]) == pytest.approx(sampled(4, 128, 8), rel=0.1)
    assert float(point["bias"]) == pytest.approx(0.075, rel=0.1)
    assert float(point["total"]) == pytest.approx(np.hypot(0.075, sampled(4, 128, 8)), rel=0.1)
    a, b = dataset["coefficient"].sel(part="embedding").to_numpy()
    # A sum that is fitted to roots of squares has too small coefficients, by a factor of 2 at most.
    assert 0.5 * 0.3 < a < 1.1 * 0.3
    assert 0.5 * 0.6 < b < 1.1 * 0.6


def test_networks_that_diverged_are_counted_and_left_out():
    section = section_of()
    cells = obeying(section)
    thin = next(c for c in cells if (c.cell.depth, c.cell.hidden) == (32, 1))
    thin.statistics["embedding"][3, -1] = np.nan
    dataset = mean_ode.sweep(section, cells)
    assert int(dataset["finite"].sel(depth=32, hidden=1)) == section.seeds - 1
    total = int(dataset["seeds"].sum())
    assert f"{total - 1:,} of {total:,} networks" in mean_ode.figures(dataset)[0].caption


def test_missing_cells_are_holes():
    section = section_of()
    cells = obeying(section)
    some = [c for c in cells if c.cell.kind not in ("limit", "reference")][1:]
    dataset = mean_ode.sweep(section, some)
    assert np.isnan(dataset["sampling"].sel(depth=4, hidden=1)).all()
    assert np.isnan(dataset["total"]).all()
    assert claims_of(dataset)["embedding.euler"].verdict == "undecided"
    assert claims_of(dataset)["embedding.sampling_depth"].verdict == "holds"
    for few in (some, cells[-1:], []):
        assert len(mean_ode.figures(mean_ode.sweep(section, few))) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": {"depth": 128, "hidden": 128}}, r"L·M is 16384.*make it 32768"),
        ({"reference": {"depth": 255, "hidden": 1024}}, "multiple of 2"),
        ({"more_seeds": [{"hidden": 3, "seeds": 99}]}, "3 is not one of hidden"),
        ({"more_seeds": [{"hidden": 4, "seeds": 2}]}, "fewer than seeds"),
        ({"more_seeds": [{"hidden": 4, "seeds": 99}] * 2}, "twice"),
        ({"units": 3}, "no network of the grid"),
        ({"inputs": 25}, "data has 24 at most"),
        (
            {"width_sweep": {"width": [8], "depth": 64, "hidden": 16, "inputs": 25}},
            "width_sweep: 25 inputs",
        ),
        ({"sigma_u": 1e160}, "sigma_u"),
        ({"sigma_v": 1e7}, "sigma_v"),
        ({"replicates": 4}, "replicates"),
        ({"hidden": [0, 2]}, "hidden"),
        ({"learning_rate": 0}, "learning_rate"),
    ],
)
def test_grids_that_cannot_be_meant_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        section_of(**changes)


def test_cells_measure_what_the_library_does(tmp_path):
    """One tiny cell of each kind; all learn the same task, whatever their own seeds."""
    section = section_of(
        depth=[2, 4],
        hidden=[2],
        more_seeds=[],
        seeds=8,
        steps=2,
        width=3,
        width_sweep={"width": [3], "depth": 2, "hidden": 2, "embeddings": 4, "seeds": 4},
        reference={"depth": 16, "hidden": 16, "seeds": 16},
        particles=512,
    )
    prepared = data.prepare(section.data, tmp_path)
    found = {}
    for request in mean_ode.cells(section, 0):
        seeds = np.random.SeedSequence([len(found)])
        inputs = Inputs(prepared, (), torch.device("cpu"), seeds)
        found[request.slug] = mean_ode.extract(request.cell, inputs)
    limit, check = found["limit-d3"], found["reference-d3"]
    assert (found["l2-m2-d3"]["embedding"].sel(step=0).std("seed") > 0).all()
    # Before training E φ = 0, so that the limit is h_0, which all have in common.
    start = limit["embedding"].sel(step=0)
    off = check["embedding"].sel(step=0) - start
    assert float(np.sqrt((off**2).mean())) < 3 * float(check["embedding_error"].sel(step=0).mean())
    distance = np.sqrt(((check["embedding"] - limit["embedding"]) ** 2).mean())
    assert float(distance) < 3 * float(np.sqrt((check["embedding_error"] ** 2).mean()))
    assert found["width-d3"]["embedding_variance"].sizes == {"draw": 4}
    # Traces begin at the same h_0.
    assert float(found["l4-m2-d3"]["depth_trace"].isel(position=0).std("traced_seed").max()) == 0
