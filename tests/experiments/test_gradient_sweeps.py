"""Gradients at initialisation: verdicts follow the data, and holes stay holes."""

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab import data, specs
from widthlab.claims import from_json
from widthlab.experiments import gradient_correlation
from widthlab.experiments.shared.base import Inputs, Measured
from widthlab.theory.finite_width import sample_mlp_ratio

RELU = {"name": "mlp", "activation": "relu"}


def section_of(models=None, **changes):
    options = {"width": [32, 64, 128], "depth": 3, "draws": 2000, "inputs": 2}
    return gradient_correlation.Section(models=models or {"relu": RELU}, **{**options, **changes})


def obeying(section, power=1.0, factor=1.0, signed=0.0):
    """Cells whose gradients have the exact law of ReLU's sizes, distorted as asked.

    Layers below multiply |g|² as layers above multiply signals; neurons share the size alone.
    """
    cells = []
    for request in gradient_correlation.cells(section, 0):
        width = request.cell.width
        rng = np.random.default_rng(width)
        size = sample_mlp_ratio("relu", [width] * section.depth, section.draws, rng) ** power
        size = (factor ** np.arange(section.depth + 1) * size)[:, ::-1]
        size = np.stack([size, size], axis=2)
        noise = signed + 0.01 * rng.standard_normal(size.shape)
        cells.append(Measured(request.label, request.cell, dataset_of(size, noise, width)))
    return cells


def dataset_of(size, noise, width):
    m2 = size / width
    values = {"gradient_norm": np.sqrt(size), "m2": m2, "m22": m2**2, "m11": noise * m2}
    return xr.Dataset(
        {name: (("draw", "layer", "input"), value) for name, value in values.items()},
        coords={"neurons": ("layer", np.full(size.shape[1], width))},
    )


def claims_of(dataset):
    return {claim.id.split(".")[-1]: claim for claim in from_json(dataset.attrs["claims"])}


def verdicts(section, **changes):
    dataset = gradient_correlation.sweep(section, obeying(section, **changes))
    return {name: claim.verdict for name, claim in claims_of(dataset).items()}


def test_every_claim_holds_for_gradients_that_obey_the_laws():
    """Claims are wrong in 1 of 100, slopes in 1 of 20 cases; the seeds are fixed."""
    names = ("exact", "exponent", "signed", "norm", "imbalance_mean", "imbalance_variance")
    assert verdicts(section_of()) == dict.fromkeys((*names, "imbalance"), "holds")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"factor": 1.1}, ("norm", "imbalance_mean")),
        ({"power": 1.3}, ("exact", "imbalance_variance")),
        ({"signed": 0.01}, ("signed",)),
    ],
)
def test_each_claim_fails_where_its_law_is_broken(changes, names):
    found = verdicts(section_of(), **changes)
    assert {found[name] for name in names} == {"fails"}


def test_fluctuations_that_fall_as_the_root_of_width_have_the_wrong_exponents():
    section = section_of()
    cells = obeying(section)
    for cell in cells:
        rng = np.random.default_rng(1)
        v = 0.1 * (section.depth - np.arange(section.depth + 1)) / cell.cell.width**0.5 + 1e-9
        size = rng.gamma(1 / v[:, None], v[:, None], (section.draws, len(v), 2))
        cell.statistics.update(dataset_of(size, 0 * size, cell.cell.width))
    claims = claims_of(gradient_correlation.sweep(section, cells))
    assert claims["exponent"].verdict == claims["imbalance"].verdict == "fails"
    assert claims["imbalance"].measured == pytest.approx(-0.5, abs=0.1)


def test_other_activations_are_held_against_leading_orders():
    """Gelu's signed correlation is not zero, and its squared one is not tanh's."""
    section = section_of({"net": {**RELU, "activation": "tanh"}}, draws=4000)
    cells = obeying(section)  # ReLU's sizes
    assert claims_of(gradient_correlation.sweep(section, cells))["leading"].verdict == "fails"
    section = section_of({"net": {**RELU, "activation": "gelu"}}, draws=4000)
    dataset = gradient_correlation.sweep(section, obeying(section, signed=0.01))
    law = dataset["signed_law"].sel(model="net", width=32)
    assert 0.001 < float(law.sel(layer=1)) < 0.003
    assert claims_of(dataset)["signed"].verdict == "fails"
    assert "stable from below only" in claims_of(dataset)["signed"].reason
    # zero lies within the noise of the law here, and so does the law
    undecided = claims_of(gradient_correlation.sweep(section, obeying(section)))["signed"]
    assert undecided.verdict == "undecided"
    section = section_of({"net": {**RELU, "name": "residual_mlp", "branch": "one_layer"}})
    dataset = gradient_correlation.sweep(section, obeying(section))
    assert np.isnan(dataset["signed_law"]).all()
    assert claims_of(dataset)["signed"].verdict == "holds"


def test_missing_cells_are_holes_and_dead_gradients_are_counted():
    section = section_of(depth=4)
    cells = obeying(section)
    for name in ("gradient_norm", "m2", "m22", "m11"):
        cells[1].statistics[name][5, :4] = 0.0
    dataset = gradient_correlation.sweep(section, cells[1:])
    hole = dataset.sel(model="relu", width=32)
    for name in gradient_correlation.MEASURED:
        assert np.isnan(hole[name]).all()
    assert hole["draws"] == 0
    own = dataset.sel(model="relu", width=64)
    np.testing.assert_allclose(own["alive"].sel(layer=1), 1999 / 2000)
    assert np.isfinite(own["log_mean"]).all()
    figure = gradient_correlation.figures(dataset)[3]
    assert "7,998 of 8,000 gradients are alive" in figure.caption
    for few in (cells[:1], []):
        dataset = gradient_correlation.sweep(section, few)
        assert len(gradient_correlation.figures(dataset)) == 6
    assert dataset.attrs["claims"].strip() == "[]"


@pytest.mark.parametrize("engine", ["weightfree", "dense"])
def test_real_networks_from_end_to_end(engine, tmp_path):
    """Five standard errors of the exact laws, and of the backward law with its next order."""
    models = {
        "relu": RELU,
        "res": {**RELU, "name": "residual_mlp", "activation": "tanh", "bias_variance": 0.1},
        "bn": {**RELU, "normalisation": "batch"},
        "post": {**RELU, "name": "residual_mlp", "position": "post"},
    }
    section = section_of(models, width=[24], depth=3, draws=200, engine=engine, inputs=3)
    prepared = data.prepare(specs.Digits(), tmp_path)
    measured = []
    for request in gradient_correlation.cells(section, 0):
        inputs = Inputs(prepared, (), torch.device("cpu"), np.random.SeedSequence(1))
        statistics = gradient_correlation.extract(request.cell, inputs)
        measured.append(Measured(request.label, request.cell, statistics))
    dataset = gradient_correlation.sweep(section, measured)
    own = dataset.sel(width=24, layer=slice(1, 2))
    relu = own.sel(model="relu")
    for name in ("log_mean", "log_variance"):
        assert (abs(relu[name] - relu[f"exact_{name}"]) < 5 * relu[f"{name}_error"]).all()
    res = own.sel(model="res")
    law = res["backward_law"]
    assert (abs(res["mean"] - law) < 5 * res["mean_error"] + law * 3 / 24).all()
    for label in ("bn", "post"):
        assert np.isnan(own["backward_law"].sel(model=label)).all()
    assert len(gradient_correlation.figures(dataset)) == 6
