"""The plan of a study: what is in it, under which addresses, and at what estimated cost."""

import json
import math
import shutil

import numpy as np
import pytest
from PIL import Image

from widthlab import models, specs, study
from widthlab.costs import memory_mb, minutes, size
from widthlab.errors import WidthlabError
from widthlab.plan import Plan

DATA = {"name": "gaussian", "dimension": 6, "train_samples": 32, "test_samples": 16}
MODELS = {"tanh": {"name": "residual_mlp", "activation": "tanh"}, "relu": {"name": "mlp"}}
VARIANCE = {"models": MODELS, "width": [8, 16], "depth": 2, "data": DATA}
DRIFT = {
    "models": MODELS,
    "width": [8, 16, 32],
    "depth": 2,
    "seeds": 2,
    "training": {"steps": 5, "snapshots": 3},
    "probe": 8,
    "data": DATA,
}


def plan(experiments, **top):
    return Plan.of(study.parse({"name": "small", "experiments": experiments, **top}))


def drift(**changes):
    return plan({"ntk_drift": {**DRIFT, **changes}})


def all_addresses(planned):
    return {planned.report.address, *(work.address for work in planned.all_work())}


def test_the_grid_is_expanded_and_what_is_shared_is_there_once():
    planned = plan({"variance": VARIANCE, "gradient_correlation": VARIANCE, "ntk_drift": DRIFT})
    assert len(planned.data) == 1
    assert len(planned.checkpoints) == 2 * 3 * 2
    assert len(planned.cells) == 2 * 2 + 2 * 2 + 2 * 3 * 2
    assert len(planned.sweeps) == 3
    assert len(all_addresses(planned)) == 1 + 12 + 20 + 3 + 1


def test_inputs_come_before_what_needs_them():
    planned = plan({"variance": VARIANCE, "ntk_drift": DRIFT})
    seen = set()
    for work in planned.all_work():
        assert {source.address for source in work.inputs} <= seen
        seen.add(work.address)


@pytest.mark.parametrize("changes", [{"probe": 4}, {"kernel": "full"}, {"width": [8, 16, 32, 64]}])
def test_checkpoints_are_shared_by_studies_that_measure_otherwise(changes):
    assert set(drift().checkpoints) <= set(drift(**changes).checkpoints)
    assert set(drift().sweeps) != set(drift(**changes).sweeps)


def test_another_seed_of_the_study_or_another_training_shares_data_only():
    for other in (
        plan({"ntk_drift": DRIFT}, seed=1),
        drift(training={"steps": 6, "snapshots": 3}),
    ):
        assert set(other.data) == set(drift().data)
        assert not set(other.checkpoints) & set(drift().checkpoints)
        assert not set(other.cells) & set(drift().cells)


def test_a_wider_grid_keeps_the_cells_that_it_had():
    wider = drift(width=[8, 16, 32, 64], seeds=3)
    assert set(drift().cells) < set(wider.cells)


def test_the_device_and_the_place_of_results_are_no_part_of_results_addresses():
    here = plan({"ntk_drift": DRIFT})
    there = plan({"ntk_drift": DRIFT}, device="cpu", results="elsewhere", name="other")
    assert {w.address for w in here.all_work()} == {w.address for w in there.all_work()}


def test_specifications_survive_json():
    for work in plan({"variance": VARIANCE, "ntk_drift": DRIFT}).all_work():
        assert json.loads(work.json) == work.specification


# ── costs ───────────────────────────────────────────────────────────────────────────────────


def test_costs_are_positive_and_grow_with_the_work():
    planned = plan({"variance": VARIANCE, "ntk_drift": DRIFT})
    for work in planned.all_work():
        assert memory_mb([work.cost]) > 0
        assert minutes([work.cost]) >= 10
        assert work.cost.core_seconds > work.cost.gpu_seconds or work.stage == "sweep"
        assert work.cost.files > 0
        if work.stage != "sweep":
            assert min(work.cost.flops, work.cost.memory, work.cost.disk) > 0
    by_width = {w.specification["cell"]["width"]: w.cost.flops for w in planned.cells.values()}
    assert by_width[8] < by_width[16] < by_width[32]


def parameters(architecture, width, depth, shape):
    network = specs.Network.model_validate(
        {"architecture": architecture, "width": width, "depth": depth}
    )
    model = models.build(network, shape, outputs=10, seed=0)
    return size(network, shape, 10).parameters, sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(
    "architecture",
    [
        {"name": "mlp"},
        {"name": "mlp", "parameterisation": "mup"},
        {"name": "residual_mlp"},
        {"name": "residual_mlp", "branch": "one_layer"},
        {"name": "residual_mlp", "position": "post"},
        {"name": "residual_mlp", "position": "post", "branch": "one_layer"},
        {"name": "residual_mlp", "hidden_ratio": 2.5},
    ],
)
def test_the_estimated_size_of_perceptrons_without_biases_is_exact(architecture, depth):
    estimate, actual = parameters(architecture, 24, depth, (1, 8, 8))
    assert estimate == actual


@pytest.mark.parametrize(
    "architecture",
    [
        {"name": "mlp", "bias": True},
        {"name": "mlp", "normalisation": "batch"},
        {"name": "residual_mlp", "bias": True, "branch": "two_layer"},
        {"name": "residual_mlp", "normalisation": "layer", "branch": "one_layer"},
    ],
)
def test_biases_and_normalisations_are_left_out_of_the_estimate(architecture):
    """They are at most 3 vectors of N in a layer of at least N² weights."""
    estimate, actual = parameters(architecture, 128, 3, (1, 8, 8))
    assert estimate < actual < estimate * (1 + 3 / 128)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8)])
def test_the_estimated_size_of_resnet20_leaves_out_normalisations(width, shape):
    """19 of them, with two vectors for at least 9·N weights of each channel."""
    estimate, actual = parameters({"name": "resnet20"}, width, 20, shape)
    assert estimate < actual < estimate * (1 + 2 / (9 * width) + 10 / estimate)


def test_a_network_that_cannot_take_the_data_is_said_before_anything_runs():
    with pytest.raises(WidthlabError, match="resnet20 takes images"):
        drift(models={"resnet": {"name": "resnet20"}})


# ── folders of images ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def images(tmp_path):
    generator = np.random.default_rng(0)
    folder = tmp_path / "images"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 256, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def of_images(folder):
    return drift(data={"name": "imagefolder", "path": str(folder)})


def test_a_folder_of_images_that_moved_is_the_same_data(images, tmp_path):
    before = of_images(images)
    moved = tmp_path / "elsewhere"
    shutil.move(images, moved)
    after = of_images(moved)
    assert {w.address for w in after.all_work()} == {w.address for w in before.all_work()}
    (data,) = after.data.values()
    assert data.specification["data"]["path"] == str(moved)
    (sweep,) = after.sweeps.values()
    assert sweep.specification["section"]["data"]["path"] == str(moved)


@pytest.mark.parametrize("change", ["larger", "renamed", "removed"])
def test_a_folder_of_images_that_changed_is_other_data(images, change):
    before = of_images(images)
    file = images / "cat/0.png"
    if change == "larger":
        file.write_bytes(file.read_bytes() + b"0")
    elif change == "renamed":
        file.rename(images / "cat/other.png")
    else:
        file.unlink()
    after = of_images(images)
    assert not {w.address for w in after.all_work()} & {w.address for w in before.all_work()}


def test_estimates_are_finite_for_every_data_set():
    for data in ({"name": "digits"}, {"name": "cifar10"}, {"name": "cifar100"}, DATA):
        for work in drift(data=data).all_work():
            assert math.isfinite(work.cost.core_seconds)
