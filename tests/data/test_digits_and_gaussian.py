"""The two data sets that need no files, and the file that every data set is saved to."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from widthlab import specs
from widthlab.data import PREPARERS, load, prepare, save
from widthlab.data.prepared import assemble
from widthlab.errors import WidthlabError

NOWHERE = Path("/nonexistent")


def test_digits_are_the_original_ones_at_the_recorded_indices():
    data = prepare(specs.Digits(), NOWHERE)
    original = load_digits()
    assert data.input_shape == (1, 8, 8)
    assert data.outputs == 10
    for x, y, indices in (
        (data.train_x, data.train_y, data.train_indices),
        (data.test_x, data.test_y, data.test_indices),
    ):
        np.testing.assert_array_equal(x[:, 0].numpy(), original.images[indices])
        np.testing.assert_array_equal(y.numpy(), original.target[indices])
    everything = torch.cat([data.train_indices, data.test_indices])
    assert sorted(everything.tolist()) == list(range(1797))
    assert len(data.test_y) == pytest.approx(0.2 * 1797, abs=5)


@pytest.mark.parametrize("spec", [specs.Digits(), specs.Gaussian(dimension=5, classes=3)])
def test_normalised_training_inputs_have_unit_variance_and_no_mean(spec):
    data = prepare(spec, NOWHERE)
    x, labels = data.train()
    assert x.dtype == torch.float32
    assert len(data.mean) == len(data.std) == 1
    assert float(x.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(x.double().square().mean()) == pytest.approx(1, abs=1e-6)
    test_x, _ = data.test()
    torch.testing.assert_close(test_x, (data.test_x.float() - data.mean[0]) / data.std[0])
    assert torch.equal(labels, data.train_y)


def test_colour_images_are_normalised_channel_by_channel():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(20, 3, 4, 4)).astype(np.uint8)
    images[:, 1] //= 4
    part = (images, np.zeros(20, dtype=np.int64), np.arange(20))
    x, _ = assemble("x", part, part, ("a", "b")).train()
    torch.testing.assert_close(x.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.square().mean(dim=(0, 2, 3)), torch.ones(3))


def test_constant_inputs_are_refused():
    part = (np.ones((4, 2), dtype=np.float32), np.zeros(4, dtype=np.int64), np.arange(4))
    with pytest.raises(WidthlabError, match="constant"):
        assemble("x", part, part, ("a", "b"))


@pytest.mark.parametrize("make", [specs.Digits, specs.Gaussian])
def test_fewer_samples_are_the_beginning_of_more(make):
    small = prepare(make(train_samples=30, test_samples=20), NOWHERE)
    large = prepare(make(train_samples=200, test_samples=50), NOWHERE)
    for part, count in (("train", 30), ("test", 20)):
        for kind in ("x", "y", "indices"):
            name = f"{part}_{kind}"
            assert torch.equal(getattr(small, name), getattr(large, name)[:count]), name


def test_digits_keep_class_balance():
    data = prepare(specs.Digits(train_samples=100, test_samples=50), NOWHERE)
    assert torch.bincount(data.train_y).tolist() == [10] * 10
    assert torch.bincount(data.test_y).tolist() == [5] * 10


def test_split_seed_changes_the_split():
    first = prepare(specs.Digits(split_seed=0), NOWHERE)
    second = prepare(specs.Digits(split_seed=1), NOWHERE)
    assert set(first.test_indices.tolist()) != set(second.test_indices.tolist())


def test_too_many_digits_are_refused():
    with pytest.raises(WidthlabError, match="train_samples: 1800 is more than"):
        prepare(specs.Digits(train_samples=1800), NOWHERE)


def test_gaussian_labels_come_from_one_linear_teacher():
    """Least squares recovers a linear teacher well; labels at random would give 1/3."""
    spec = specs.Gaussian(dimension=6, classes=3, train_samples=2000, test_samples=1000)
    data = prepare(spec, NOWHERE)
    x, labels = (tensor.double() for tensor in data.train())
    onehot = torch.nn.functional.one_hot(labels.long(), 3).double()
    teacher = torch.linalg.lstsq(x, onehot).solution
    test_x, test_labels = data.test()
    accuracy = ((test_x.double() @ teacher).argmax(1) == test_labels).double().mean()
    assert accuracy > 0.8
    assert set(data.test_y.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("spec", [specs.Digits(), specs.Gaussian()])
def test_saving_and_loading_gives_the_same_and_the_same_bytes(spec, tmp_path):
    data = prepare(spec, NOWHERE)
    save(data, tmp_path / "a.safetensors")
    save(prepare(spec, NOWHERE), tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = load(tmp_path / "a.safetensors")
    for field in fields(data):
        got, want = getattr(loaded, field.name), getattr(data, field.name)
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_a_file_that_is_no_data_set_is_named(content, tmp_path):
    path = tmp_path / "data.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WidthlabError, match=r"data\.safetensors is not a prepared data set"):
        load(path)


def test_every_data_set_of_the_specification_can_be_prepared():
    assert set(PREPARERS) == {
        "digits",
        "cifar10",
        "cifar100",
        "imagefolder",
        "gaussian",
        "textfile",
    }


def test_parsing_a_study_needs_no_torch():
    code = (
        "import sys, widthlab.data, widthlab.data.fingerprint;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'torchvision', 'PIL')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
