"""Datasets in zarr: the same values back, in few files."""

import numpy as np
import pytest
import xarray as xr

from widthlab.errors import WidthlabError
from widthlab.store import datasets


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            "kernel": (("step", "sample", "other"), rng.normal(size=(6, 200, 200))),
            "words": (("step",), np.array(["a", "ab", "", "d", "e", "größe"])),
            "empty": (("nothing",), np.zeros(0)),
            "number": ((), 3.5),
        },
        coords={"step": [0, 1, 2, 4, 8, 16]},
        attrs={"title": "all kinds"},
    )


def test_what_is_written_comes_back(dataset, tmp_path):
    datasets.write(dataset, tmp_path / "it.zarr")
    xr.testing.assert_identical(datasets.open_dataset(tmp_path / "it.zarr").load(), dataset)


def test_files_do_not_grow_with_the_data(dataset, tmp_path):
    datasets.write(dataset, tmp_path / "large.zarr")
    datasets.write(dataset.isel(sample=[0], other=[0]), tmp_path / "small.zarr")
    large, small = (
        sum(file.is_file() for file in (tmp_path / name).rglob("*"))
        for name in ("large.zarr", "small.zarr")
    )
    assert large == small


@pytest.mark.parametrize("limit", [8 * 200 * 200 * 2, 8 * 200 * 70])
def test_chunks_keep_to_their_limit(dataset, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(datasets, "CHUNK", limit)
    datasets.write(dataset.isel(step=slice(2)), tmp_path / "it.zarr")
    found = datasets.open_dataset(tmp_path / "it.zarr")
    assert np.prod(found.kernel.encoding["chunks"]) * 8 <= max(limit, 8)
    xr.testing.assert_identical(found.load(), dataset.isel(step=slice(2)))


def test_a_store_that_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(WidthlabError, match="nothing"):
        datasets.open_dataset(tmp_path / "nothing.zarr")
