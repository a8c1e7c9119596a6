"""CIFAR from archives made here: no network, and no pickle that could run code."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from torchvision import datasets

from widthlab import specs
from widthlab.data import cifar, prepare
from widthlab.errors import WidthlabError


class _Harmful:
    def __reduce__(self):
        return os.mkdir, ("harmful-pickle-was-run",)


def _python2_pickle(content):
    """Pickle as the archives do: protocol 2, with numpy's old module names."""
    text = pickle.dumps(content, protocol=2)
    return text.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def _archive(folder, name, train=40, test=20, classes=4, extra=None):
    """Write an archive in the layout of `name` and return its description and pixels."""
    known = cifar.ARCHIVES[name]
    rng = np.random.default_rng(0)
    members, pixels = {}, {"train": [], "test": []}
    for part, names, total in (("train", known.train, train), ("test", known.test, test)):
        for file in names:
            count = total // len(names)
            data = rng.integers(0, 256, size=(count, 3072)).astype(np.uint8)
            pixels[part].append(data)
            labels = [int(index) % classes for index in range(count)]
            members[file] = {"data": data, known.label_key: labels, "batch_label": "x"}
    members[known.meta] = {known.names_key: [f"class {index}" for index in range(classes)]}
    members.update(extra or {})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / known.url.rsplit("/", 1)[-1]
    with tarfile.open(path, "w:gz") as tar:
        for file, content in members.items():
            raw = _python2_pickle(content)
            info = tarfile.TarInfo(f"{known.folder}/{file}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    images = {part: np.concatenate(parts) for part, parts in pixels.items()}
    return path, known._replace(md5=md5), images


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_archive_in_place_is_used_without_a_download(name, tmp_path, monkeypatch):
    _, archive, images = _archive(tmp_path, name)
    monkeypatch.setitem(cifar.ARCHIVES, name, archive)
    data = prepare(specs.CIFAR(name=name, train_samples=12), tmp_path)
    assert data.train_x.shape == (12, 3, 32, 32)
    assert data.test_x.shape == (20, 3, 32, 32)
    assert data.classes == ("class 0", "class 1", "class 2", "class 3")
    assert torch.bincount(data.train_y).tolist() == [3, 3, 3, 3]
    for part, x, indices in (
        ("train", data.train_x, data.train_indices),
        ("test", data.test_x, data.test_indices),
    ):
        expected = images[part].reshape(-1, 3, 32, 32)[indices]
        np.testing.assert_array_equal(x.numpy(), expected)


def test_a_harmful_pickle_is_refused_and_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, archive, _ = _archive(tmp_path, "cifar10", extra={"data_batch_3": _Harmful()})
    with pytest.raises(WidthlabError, match="mkdir is not allowed"):
        cifar.read_archive(path, archive)
    assert not (tmp_path / "harmful-pickle-was-run").exists()


@pytest.mark.parametrize(
    "harmful",
    [
        b"cos\nsystem\n(S'touch harm'\ntR.",
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cnumpy.core.multiarray\nfromstring\n(S'1'\ntR.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
    ],
)
def test_the_unpickler_refuses_other_names(harmful):
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        cifar.ArrayUnpickler(io.BytesIO(harmful)).load()


def test_the_unpickler_reads_what_the_archives_hold():
    content = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2]}
    loaded = cifar.ArrayUnpickler(io.BytesIO(_python2_pickle(content))).load()
    np.testing.assert_array_equal(loaded["data"], content["data"])
    assert loaded["labels"] == [1, 2]


def test_an_archive_of_something_else_is_named(tmp_path):
    path, archive, _ = _archive(tmp_path, "cifar10")
    with pytest.raises(WidthlabError, match="is not the archive of"):
        cifar.read_archive(path, archive._replace(meta="missing"))
    path.write_bytes(b"nothing")
    with pytest.raises(WidthlabError, match="is not the archive of"):
        cifar.read_archive(path, archive)


def test_a_failed_download_says_how_to_do_it_by_hand(tmp_path, monkeypatch):
    def fail(url, root, filename, md5):
        raise OSError("no network")

    monkeypatch.setattr(cifar, "download_url", fail)
    with pytest.raises(WidthlabError) as caught:
        prepare(specs.CIFAR(name="cifar100"), tmp_path / "cache")
    message = str(caught.value)
    assert "cifar100" in message
    assert "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz" in message
    assert str(tmp_path / "cache" / "cifar-100-python.tar.gz") in message


@pytest.mark.parametrize(
    ("name", "theirs"), [("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)]
)
def test_addresses_and_checksums_are_torchvisions(name, theirs):
    ours = cifar.ARCHIVES[name]
    assert (ours.url, ours.md5, ours.folder) == (theirs.url, theirs.tgz_md5, theirs.base_folder)
    assert ours.train == tuple(file for file, _ in theirs.train_list)
    assert ours.test == tuple(file for file, _ in theirs.test_list)
    assert (ours.meta, ours.names_key) == (theirs.meta["filename"], theirs.meta["key"])
