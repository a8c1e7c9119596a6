"""The expansion experiment: what is refused, what a cell measures, and what its sweep claims."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from widthlab import training
from widthlab.claims import from_json
from widthlab.data import prepare
from widthlab.experiments import expansion
from widthlab.experiments.expansion.measuring import ignorance
from widthlab.experiments.shared.base import Inputs, Measured, Trained
from widthlab.specs import Training
from widthlab.statistics.alignment.expansion_bounds import VERDICTS

CPU = torch.device("cpu")
GAUSSIAN = {"name": "gaussian", "train_samples": 60, "test_samples": 80}
SMALL = {"train_samples": 32, "test_samples": 70, "step_samples": 12, "held_out_samples": 8}


def section(model=None, **changes):
    family = {
        "model": model or {"name": "mlp", "activation": "tanh"},
        "width": [6, 9],
        "depth": 2,
        "seeds": 2,
        "data": GAUSSIAN,
        "training": {"steps": 4, "snapshots": 2},
    }
    return expansion.Section.model_validate({"families": {"net": family}, **SMALL, **changes})


def extracted(request, folder, entropy=0):
    (checkpoint,) = request.checkpoints
    data = prepare(checkpoint.data, Path("/nonexistent"))
    out = folder / f"{request.slug}"
    if not out.exists():
        training.train(
            checkpoint, data, out=out, scratch=folder / "scratch", device=CPU, log=lambda line: None
        )
    status = json.loads((out / "history.json").read_text())["status"]
    inputs = Inputs(data, (Trained(checkpoint, out, status),), CPU, np.random.SeedSequence(entropy))
    return expansion.extract(request.cell, inputs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"draws": 3}, "train_samples: 3 draws of 12 need 36, but it is 32"),
        ({"draws": 5, "step_samples": 6}, "test_samples: 70 leave 30 fresh"),
        (
            {"samples_from": "unseen"},
            "test_samples: 70 leave 30 fresh samples beside the draws' 40",
        ),
        ({"blocks": ["bias", "bias"]}, "has a block twice"),
        ({"test_samples": 90}, "90 is too many"),
        ({"scale": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        section(**changes)


def test_a_cell_has_every_block_point_and_draw(tmp_path):
    torch.set_num_threads(1)
    asked = section()
    requests = expansion.cells(asked, 0)
    assert [r.slug for r in requests] == [f"mlp-w{w}-d2-s{s}" for w in (6, 9) for s in (0, 1)]
    dataset = extracted(requests[0], tmp_path)
    sizes = {"block": 2, "point": 3, "draw": 2, "state": 3, "part": 3, "bound": 2, "interval": 3}
    assert dict(dataset.sizes) == sizes
    assert float(dataset["cap"]) == pytest.approx(2 * np.log(2))
    assert int(dataset["fresh_samples"]) == 70 - 2 * 8
    for variable in dataset.data_vars.values():
        assert variable.attrs["description"]
        assert np.isfinite(variable.where(np.isfinite(variable), 0)).all()
    # The step is that of the bias, whatever the block; draws differ.
    for name in ("delta_r", "eta"):
        bias, residual = (dataset[name].sel(block=block).to_numpy() for block in asked.blocks)
        np.testing.assert_array_equal(bias, residual)
        assert (bias[:, 0] != bias[:, 1]).all()
    again = extracted(requests[0], tmp_path)
    xr.testing.assert_identical(dataset, again)
    assert not dataset["loss"].equals(extracted(requests[0], tmp_path, entropy=1)["loss"])


@pytest.mark.parametrize(
    "changes",
    [
        {"samples_from": "unseen", "draws": 1},
        {"snapshot": 0, "pooling": "whole", "blocks": ["residual"], "draws": 1, "cap": 0.5},
    ],
)
def test_samples_and_snapshots_are_those_asked_for(changes, tmp_path):
    requests = expansion.cells(section(**changes), 0)
    dataset = extracted(requests[1], tmp_path)
    assert int(dataset["step"]) == (0 if "snapshot" in changes else 4)
    unseen = changes.get("samples_from") == "unseen"
    assert int(dataset["fresh_samples"]) == 70 - 8 - 12 * unseen
    assert float(dataset["cap"]) == changes.get("cap", ignorance("cross_entropy", 2))


def test_fresh_samples_chose_nothing(tmp_path):
    """Other fresh samples leave the blocks as they are."""
    request = expansion.cells(section(), 0)[0]
    few = expansion.cells(section(test_samples=60), 0)[0]
    first, second = extracted(request, tmp_path), extracted(few, tmp_path)
    assert int(first["fresh_samples"]) != int(second["fresh_samples"])
    for name in ("eta", "bias_norm", "residual_norm", "delta_erm", "delta_r"):
        np.testing.assert_array_equal(first[name], second[name])
    assert not np.allclose(first["change"], second["change"])


def test_a_diverged_network_is_counted_and_enters_no_claim(tmp_path):
    asked = section({"name": "mlp", "activation": "linear"})
    wild = Training(learning_rate=1e12, loss="mse", steps=20, snapshots=2)
    lost = asked.families["net"].model_copy(update={"training": wild, "seeds": 1})
    wild = asked.model_copy(update={"families": {"net": lost}})
    (bad, _) = expansion.cells(wild, 0)
    gone = extracted(bad, tmp_path / "bad")
    assert gone.attrs["status"] == "diverged"
    good = expansion.cells(asked, 0)[0]
    measured = [
        Measured("net", good.cell, extracted(good, tmp_path / "good")),
        Measured("net", bad.cell.model_copy(update={"seed": 1}), gone),
    ]
    dataset = expansion.sweep(asked, measured)
    assert dataset["diverged"].to_numpy().tolist() == [False, True]
    assert {claim.verdict for claim in claims_of(dataset).values()} <= {"holds", "undecided"}
    figures = expansion.figures(dataset)
    assert [figure.id for figure in figures] == [
        "expansion-fresh",
        "expansion-bounds",
        "expansion-points",
        "expansion-aligned",
    ]
    assert "1 of 2 networks are finite to the end" in figures[0].caption
    empty = expansion.sweep(wild, [Measured("net", bad.cell, gone)])
    assert claims_of(empty) == {}
    assert expansion.figures(empty) == []


def claims_of(dataset):
    return {claim.id: claim for claim in from_json(dataset.attrs["claims"])}


def made(asked, change=-0.1, verdict="vacuous bound", holds=True, delta=0.1, limit=0.2):
    """Cells of 2 points and 2 draws with what is said about them, one number for each or all."""
    generator = np.random.default_rng(0)
    cells = []
    for request in expansion.cells(asked, 0):
        shape = {"block": 2, "layer": 2, "draw": 2}
        ones = np.ones(tuple(shape.values()))
        each = change * (1 + 0.1 * generator.standard_normal(ones.shape))
        dims = ("block", "point", "draw")
        by_bound = ones[..., None] * np.ones(2)
        data = {
            "change": (dims, each),
            "change_high": ((*dims, "interval"), each[..., None] + np.array([0.5, 0.6, 0.01])),
            "loss": ((*dims, "state", "part"), np.ones((2, 2, 2, 3, 3))),
            "needed": (dims, 0.01 * ones),
            "delta_r": (dims, delta * ones),
            "delta_erm": (dims, 0.1 * ones),
            "holds": ((*dims, "bound"), by_bound * holds),
            "verdict": ((*dims, "bound"), by_bound * VERDICTS.index(verdict)),
            "epsilon_train": ((*dims, "bound"), by_bound),
            "epsilon_test": ((*dims, "bound"), by_bound),
            "samples_needed": ((*dims, "bound"), 1e6 * by_bound),
            "b_align_limit": ("point", np.array([limit, 1.0])),
            "cap": ((), 4.6),
            "fresh_samples": ((), 54),
        }
        coords = {
            "block": ["bias", "residual"],
            "point": ["h.0", "h.1"],
            "state": ["old", "stepped", "new"],
            "part": ["train", "step_test", "fresh"],
            "bound": ["generic", "paired"],
            "interval": ["bernstein", "hoeffding", "student"],
        }
        statistics = xr.Dataset(data, coords=coords, attrs={"status": "finished"})
        cells.append(Measured(request.label, request.cell, statistics))
    return claims_of(expansion.sweep(asked, cells))


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "words"),
    [
        ({}, "bias.inequality", "undecided", "vacuous in all 40 expansions"),
        ({"verdict": "not certified"}, "bias.inequality", "holds", "in 1 of the 40"),
        ({"verdict": "not certified", "holds": False}, "bias.inequality", "fails", "less often"),
        ({}, "residual.vacuous", "holds", "40 of 40 expansions"),
        ({"verdict": "not certified"}, "residual.vacuous", "fails", "0 of 40 expansions"),
        ({}, "bias.improves", "holds", "5 of 5 at width 6, 5 of 5 at width 9"),
        ({}, "bias.improves", "holds", "0 of 40 by empirical Bernstein, 40 by Student's t"),
        ({"change": 0.1}, "bias.improves", "fails", "0 of 5 at width 6"),
        ({}, "aligned", "holds", "Δ_R > 0 in 1 of draws there, against 0.8"),
        ({"delta": -0.1}, "aligned", "fails", "10 of 20 points are certified"),
        ({"limit": 1.0}, "aligned", "undecided", "nothing is certified"),
    ],
)
def test_claims_are_what_the_data_say(changes, name, verdict, words):
    asked = section()
    family = asked.families["net"].model_copy(update={"seeds": 5})
    claim = made(asked.model_copy(update={"families": {"net": family}}), **changes)
    claim = claim[f"expansion.net.{name}"]
    assert claim.verdict == verdict
    assert words in claim.reason


def test_few_networks_decide_nothing():
    assert made(section())["expansion.net.bias.improves"].verdict == "undecided"
