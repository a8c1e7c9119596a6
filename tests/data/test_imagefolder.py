"""Image folders: generated ones, their mistakes, and the real CIFAR-10 subset where it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from widthlab import specs
from widthlab.data import prepare
from widthlab.data.fingerprint import fingerprint
from widthlab.errors import WidthlabError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-jpeg"
NOWHERE = Path("/nonexistent")


def _fill(folder, classes=("ant", "bee"), count=6, size=(8, 8), mode="RGB", seed=0):
    rng = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, size=(size[1], size[0], 3)).astype(np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{number:02d}.png")
    return folder


def _spec(folder, **fields):
    return specs.ImageFolder(path=str(folder), **{"size": 8, **fields})


def test_images_of_the_right_size_arrive_unchanged_in_a_recorded_order(tmp_path):
    _fill(tmp_path)
    data = prepare(_spec(tmp_path, test_fraction=0.34), NOWHERE)
    files = sorted(tmp_path.glob("*/*.png"))
    assert data.classes == ("ant", "bee")
    assert (len(data.train_y), len(data.test_y)) == (8, 4)
    for x, y, indices in (
        (data.train_x, data.train_y, data.train_indices),
        (data.test_x, data.test_y, data.test_indices),
    ):
        for image, label, index in zip(x, y, indices, strict=True):
            assert data.classes[label] == files[index].parent.name
            with Image.open(files[index]) as original:
                np.testing.assert_array_equal(image.numpy().transpose(1, 2, 0), original)
    together = torch.cat([data.train_indices, data.test_indices])
    assert sorted(together.tolist()) == list(range(12))


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_a_folder_with_its_own_test_part_is_not_split(tmp_path, test_name):
    _fill(tmp_path / "train", count=5)
    _fill(tmp_path / test_name, count=3, seed=1)
    data = prepare(_spec(tmp_path), NOWHERE)
    assert sorted(data.train_indices.tolist()) == list(range(10))
    assert sorted(data.test_indices.tolist()) == list(range(6))


def test_test_goes_before_val(tmp_path):
    for name, count in (("train", 5), ("test", 3), ("val", 4)):
        _fill(tmp_path / name, count=count)
    assert len(prepare(_spec(tmp_path), NOWHERE).test_y) == 6


def test_classes_may_be_called_train_and_test(tmp_path):
    """A folder of trains beside one of cars is a class, not a part."""
    _fill(tmp_path, classes=("car", "train"))
    assert prepare(_spec(tmp_path), NOWHERE).classes == ("car", "train")


def test_samples_are_nested_and_balanced(tmp_path):
    _fill(tmp_path / "train", classes=("a", "b", "c"))
    _fill(tmp_path / "test", classes=("a", "b", "c"), seed=1)
    small = prepare(_spec(tmp_path, train_samples=6, test_samples=3), NOWHERE)
    large = prepare(_spec(tmp_path, train_samples=12), NOWHERE)
    assert torch.bincount(small.train_y).tolist() == [2, 2, 2]
    assert torch.equal(small.train_indices, large.train_indices[:6])
    assert torch.equal(small.test_indices, large.test_indices[:3])


def test_resizing_takes_the_centre_square(tmp_path):
    """A wide image, red in its middle and blue at both ends, becomes red all over."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            pixels = np.zeros((20, 60, 3), dtype=np.uint8)
            pixels[..., 2] = 255
            pixels[:, 20:40] = (250 - number, 10 * number, 3)
            pixels[8:12, 24:36, 2] = 90 + 50 * number
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    data = prepare(_spec(tmp_path, size=10, test_fraction=0.5, split_seed=2), NOWHERE)
    assert data.input_shape == (3, 10, 10)
    assert (data.train_x[:, 0] > 225).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA"])
def test_other_modes_become_rgb(tmp_path, mode):
    _fill(tmp_path, mode=mode)
    assert prepare(_spec(tmp_path), NOWHERE).input_shape == (3, 8, 8)


def test_other_files_and_hidden_folders_are_passed_over(tmp_path):
    _fill(tmp_path)
    before = fingerprint(tmp_path)
    (tmp_path / "ant" / "notes.txt").write_text("x")
    (tmp_path / "ant" / ".hidden.png").write_text("x")
    (tmp_path / ".cache").mkdir()
    assert prepare(_spec(tmp_path), NOWHERE).outputs == 2
    assert fingerprint(tmp_path) == before


def _missing(folder):
    shutil.rmtree(folder)


def _no_classes(folder):
    shutil.rmtree(folder / "ant")


def _empty_class(folder):
    (folder / "cat").mkdir()


def _text_image(folder):
    (folder / "ant" / "00.png").write_text("no image")


def _truncated(folder):
    path = folder / "ant" / "00.png"
    path.write_bytes(path.read_bytes()[:90])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_missing, "is not a folder that can be read"),
        (_no_classes, "1 class folders, and at least two"),
        (_empty_class, r"class folder .*cat holds no images"),
        (_text_image, r"image .*ant/00\.png cannot be read"),
        (_truncated, r"image .*ant/00\.png cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path, damage, message):
    folder = _fill(tmp_path / "images")
    spec = _spec(folder).model_copy(update={"fingerprint": None})
    damage(folder)
    with pytest.raises(WidthlabError, match=message):
        prepare(spec, NOWHERE)


def test_parts_with_different_classes_are_named(tmp_path):
    _fill(tmp_path / "train", classes=("a", "b"))
    _fill(tmp_path / "test", classes=("a", "c"))
    with pytest.raises(WidthlabError, match="in one only: b, c"):
        prepare(_spec(tmp_path), NOWHERE)


def test_fingerprint_sees_names_and_sizes_and_nothing_else(tmp_path):
    first, second = _fill(tmp_path / "one"), _fill(tmp_path / "two")
    digest = fingerprint(first)
    assert len(digest) == 64
    assert fingerprint(second) == digest
    (second / "ant" / "00.png").rename(second / "ant" / "99.png")
    renamed = fingerprint(second)
    assert renamed != digest
    with (second / "ant" / "99.png").open("ab") as file:
        file.write(b"x")
    assert fingerprint(second) != renamed
    with pytest.raises(WidthlabError, match="not a folder"):
        fingerprint(tmp_path / "three")


def test_a_folder_that_changed_since_the_study_was_read_is_refused(tmp_path):
    _fill(tmp_path)
    spec = _spec(tmp_path, fingerprint=fingerprint(tmp_path))
    assert prepare(spec, NOWHERE).outputs == 2
    (tmp_path / "ant" / "00.png").unlink()
    with pytest.raises(WidthlabError, match="changed since the study was read"):
        prepare(spec, NOWHERE)


@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data/cifar10-jpeg is not here")
def test_the_real_cifar_subset():
    data = prepare(
        specs.ImageFolder(path=str(REAL), size=32, train_samples=200, test_samples=50), NOWHERE
    )
    assert data.classes[0] == "airplane"
    assert data.train_x.shape == (200, 3, 32, 32)
    assert torch.bincount(data.train_y).tolist() == [20] * 10
    assert torch.bincount(data.test_y).tolist() == [5] * 10
    # Known statistics of CIFAR-10: means of about (125, 123, 114), deviations of about 63.
    np.testing.assert_allclose(data.mean, (125.3, 123.0, 113.9), atol=10)
    np.testing.assert_allclose(data.std, (63.0, 62.1, 66.7), atol=8)
    assert len(fingerprint(REAL)) == 64
