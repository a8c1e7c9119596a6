"""The tangent kernel at initialisation: verdicts follow the data, and holes stay holes."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab import data, specs
from widthlab.claims import from_json
from widthlab.experiments import ntk_init
from widthlab.experiments.shared import backward_laws
from widthlab.experiments.shared.base import Inputs, Measured

NTK = {"name": "mlp", "activation": "relu", "parameterisation": "ntk"}
GRAM = np.array([[1.0, 0.3], [0.3, 1.0]])


def section_of(models=None, **changes):
    options = {"width": [32, 64, 128], "depth": [2, 8], "draws": 4000, "inputs": 2}
    return ntk_init.Section(models=models or {"net": NTK}, **{**options, **changes})


def obeying(section, mean=1.0, variance=None, shift=lambda n, _: 10 / n):
    """Cells of kernels about that of infinite width, with the law's relative variance."""
    cells = []
    for request in ntk_init.cells(section, 0):
        cell = request.cell
        size = backward_laws.kernel_variance(cell.architecture, cell.width, cell.depth)
        v = variance(cell.width, cell.depth) if variance else size.get("exact", size["leading"])
        rng = np.random.default_rng(cell.width + 1000 * cell.depth)
        factor = rng.gamma(1 / v, v, (section.draws, 1, 1))
        limit = backward_laws.kernel(cell.architecture, cell.depth, GRAM)
        off = shift(cell.width, cell.depth) * np.linalg.norm(limit) * (1 - np.eye(2)) / 2**0.5
        kernels = mean * limit * factor + off
        cells.append(Measured(request.label, cell, dataset_of(kernels)))
    return cells


def dataset_of(kernels):
    return xr.Dataset(
        {
            "ntk": (("draw", "row", "column"), kernels),
            "gram": (("row", "column"), GRAM),
        }
    )


def claims_of(dataset):
    return {claim.id.split(".")[-1]: claim for claim in from_json(dataset.attrs["claims"])}


def verdicts(section, **changes):
    dataset = ntk_init.sweep(section, obeying(section, **changes))
    return {name: claim.verdict for name, claim in claims_of(dataset).items()}


def test_every_claim_holds_for_kernels_that_obey_the_laws():
    """Claims are wrong in 1 of 100, slopes in 1 of 20 cases; the seeds are fixed."""
    assert verdicts(section_of()) == dict.fromkeys(
        ("mean", "variance", "collapse", "fluctuation", "shift"), "holds"
    )


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mean": 1.05}, "mean"),
        ({"variance": lambda n, depth: 1.5 * depth / n}, "variance"),
        ({"variance": lambda n, _: 3 / n}, "collapse"),
        ({"variance": lambda n, depth: depth / 10 / n**0.5}, "fluctuation"),
        ({"shift": lambda n, _: 2 / n**0.5}, "shift"),
    ],
)
def test_each_claim_fails_where_its_law_is_broken(changes, name):
    assert verdicts(section_of(), **changes)[name] == "fails"


def test_another_activation_is_held_against_its_leading_order():
    section = section_of({"net": {**NTK, "activation": "tanh"}})
    assert verdicts(section)["variance"] == "holds"
    relu = verdicts(section, variance=lambda n, d: d * (11 * d + 7) / (3 * (d + 1) * n))
    assert relu["variance"] == "fails"


def test_a_shift_under_the_noise_of_the_mean_is_undecided():
    dataset = ntk_init.sweep(section_of(), obeying(section_of(), shift=lambda n, _: 0.0))
    claim = claims_of(dataset)["shift"]
    assert claim.verdict == "undecided"
    assert "4,000 draws" in claim.reason
    # what is stated of the shift is within its interval, and the noise is beside it
    assert (dataset["shift_high"] < 10 * dataset["floor"]).all()


def test_linear_networks_have_no_shift_to_scale():
    section = section_of({"net": {**NTK, "activation": "linear"}})
    found = verdicts(section, shift=lambda n, _: 0.0)
    assert found["mean"] == found["variance"] == "holds"
    assert "shift" not in found


def test_missing_cells_are_holes_and_not_zeros():
    section = section_of()
    cells = obeying(section)
    dataset = ntk_init.sweep(section, cells[1:])
    hole = dataset.sel(model="net", depth=2, width=32)
    for name in ntk_init.MEASURED:
        assert np.isnan(hole[name])
    assert hole["finite"] == 0
    ntk_init.figures(dataset)
    for few in (cells[:1], []):
        dataset = ntk_init.sweep(section, few)
        assert all(claim.verdict == "undecided" for claim in claims_of(dataset).values() if not few)
        assert len(ntk_init.figures(dataset)) == 5


def test_kernels_that_are_not_finite_or_dead_are_counted():
    section = section_of(width=[64], depth=[2], draws=20)
    (cell,) = obeying(section)
    cell.statistics["ntk"][3] = np.inf
    cell.statistics["ntk"][4] = 0.0
    dataset = ntk_init.sweep(section, [cell]).squeeze()
    assert dataset["finite"] == 19
    assert dataset["alive"] == pytest.approx(18 / 19)
    assert (
        "19 of 20 kernels are finite, and of their 38 entries Θ(x, x) 36 are alive"
        in ntk_init.figures(ntk_init.sweep(section, [cell]))[1].caption
    )
    # with singular kernels among them, medians have intervals without an end
    cell.statistics["ntk"][5:13] = 1.0
    dataset = ntk_init.sweep(section, [cell])
    assert np.isfinite(dataset["condition"].item())
    assert np.isinf(dataset["condition_high"].item())
    assert len(ntk_init.figures(dataset)) == 5
    cell.statistics["ntk"][:] = 0.0
    assert ntk_init.sweep(section, [cell])["alive"].item() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameterisation": "standard"}, r"models\.net\.parameterisation: is 'standard'.*ntk"),
        ({"normalisation": "batch"}, r"models\.net\.normalisation: is 'batch'.*none or layer"),
    ],
)
def test_networks_whose_kernel_has_no_limit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        section_of({"net": {**NTK, **changes}})


@pytest.mark.parametrize("engine", ["weightfree", "dense"])
def test_real_networks_from_end_to_end(engine, tmp_path):
    """Means within five standard errors of infinite width and its next order, by both engines."""
    models = {
        "relu": NTK,
        "res": {**NTK, "name": "residual_mlp", "activation": "tanh", "bias_variance": 0.1},
        "post": {**NTK, "name": "residual_mlp", "position": "post"},
    }
    section = section_of(models, width=[24], depth=[2], draws=60, engine=engine)
    prepared = data.prepare(specs.Digits(), tmp_path)
    measured = []
    for request in ntk_init.cells(section, 0):
        inputs = Inputs(prepared, (), torch.device("cpu"), np.random.SeedSequence(1))
        measured.append(
            Measured(request.label, request.cell, ntk_init.extract(request.cell, inputs))
        )
    dataset = ntk_init.sweep(section, measured)
    row = dataset.isel(depth=0, width=0)
    for label in ("relu", "res"):
        own = row.sel(model=label)
        law = float(own["infinite_mean"])
        assert abs(float(own["mean"]) - law) < 5 * float(own["mean_error"]) + law * 2 / 24
    assert np.isnan(row["infinite_mean"].sel(model="post"))
    assert np.isfinite(row["fluctuation"].sel(model="post"))
    assert np.isnan(row["shift"].sel(model="post"))
    assert not any(
        claim.id == "ntk_init.post.shift" for claim in from_json(dataset.attrs["claims"])
    )
    assert len(ntk_init.figures(dataset)) == 5
