"""Trained networks of several families side by side, though their widths and layers differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from widthlab.experiments.shared.base import Measured

Array = NDArray[np.float64]


def side_by_side(measured: list[Measured]) -> xr.Dataset:
    """Return the statistics of all networks along one dimension, `network`.

    `family`, `width`, `seed` and `diverged` say which each is; its insertion points are numbered by
    `layer` from 0, with their names in `point`. What one network does not have is NaN. Numbers
    only: texts by point are left out.
    """
    import xarray as xr

    parts, points = [], []
    for one in measured:
        statistics = one.statistics.load()
        names = statistics.coords.get("point")
        points.append([] if names is None else [str(name) for name in names.to_numpy()])
        texts = [name for name, v in statistics.data_vars.items() if v.dtype.kind in "OUST"]
        part = statistics.drop_vars([*texts, "point"], errors="ignore")
        part = part.rename(point="layer") if "point" in part.dims else part
        for dim in ("layer", "snapshot"):
            if dim in part.dims:
                part = part.assign_coords({dim: np.arange(part.sizes[dim])})
        # A number for a snapshot that a network lacks is none, so steps are data here.
        part = part.reset_coords("step") if "step" in part.coords else part
        parts.append(part.map(lambda v: v.astype(float)))
    if not parts:
        return xr.Dataset()
    merged = xr.concat(
        parts,
        dim="network",
        join="outer",
        data_vars="all",
        coords="minimal",
        compat="override",
        combine_attrs="override",
    )
    for name in merged.data_vars:
        known = next((p[name].attrs for p in parts if name in p), {})
        merged[name].attrs = dict(known)
    merged.attrs = {}
    return merged.assign_coords(
        family=("network", [one.label for one in measured]),
        width=("network", [one.cell.network.width for one in measured]),
        seed=("network", [one.cell.seed for one in measured]),
        diverged=("network", [one.statistics.attrs["status"] == "diverged" for one in measured]),
        point=(("network", "layer"), _padded(points, merged.sizes.get("layer", 0))),
    )


def _padded(points: list[list[str]], layers: int) -> NDArray[np.str_]:
    return np.array([names + [""] * (layers - len(names)) for names in points], dtype=np.str_)


def first_snapshot(dataset: xr.Dataset) -> xr.Dataset:
    """Return every network's state at initialisation; NaN for one that was not measured there."""
    steps = dataset["step"]
    there = (steps.isel(snapshot=0) == 0) & (steps.notnull().sum("snapshot") > 1)
    found: xr.Dataset = dataset.isel(snapshot=0).where(there)
    return found


def last_snapshot(dataset: xr.Dataset) -> xr.Dataset:
    """Return every network's state at the end of its training; NaN for one that diverged."""

    known = dataset["step"].notnull()
    last = (known * np.arange(dataset.sizes["snapshot"])).max("snapshot")
    found: xr.Dataset = dataset.isel(snapshot=last.astype(int))
    return found.where(~found["diverged"])


def by_width(dataset: xr.Dataset, family: str, values: Array) -> tuple[list[int], list[Array]]:
    """Return the widths of a family, and at each the values (networks, …) of its networks."""
    own = dataset["family"].to_numpy() == family
    width = dataset["width"].to_numpy()
    widths = sorted(set(width[own].tolist()))
    return widths, [values[own & (width == n)] for n in widths]


def networks_of(dataset: xr.Dataset, family: str) -> xr.Dataset:
    """Return the networks of one family."""
    found: xr.Dataset = dataset.isel(network=dataset["family"].to_numpy() == family)
    return found


def families_of(dataset: xr.Dataset) -> list[str]:
    """Return the labels of the families, in order."""
    return sorted(set(dataset["family"].to_numpy().tolist())) if "family" in dataset else []


def over_seeds(dataset: xr.Dataset, values: xr.DataArray, name: str) -> pd.DataFrame:
    """Return means over seeds of values (network,), by family and width.

    `low` and `high` are the ends of 95 % t intervals, `least` and `most` the range over seeds.
    """
    import pandas as pd

    from widthlab.scaling import mean_interval

    rows = []
    for family in families_of(dataset):
        for width, group in zip(*by_width(dataset, family, values.to_numpy()), strict=True):
            found = mean_interval(group)
            finite = group[np.isfinite(group)]
            ends = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
            rows.append(
                {
                    "family": family,
                    "width": width,
                    name: found.value,
                    "low": found.low,
                    "high": found.high,
                    "least": ends[0],
                    "most": ends[1],
                    "networks": found.finite,
                }
            )
    return pd.DataFrame(rows)


def counted(dataset: xr.Dataset) -> str:
    """Say how many networks there are, and how many of them stayed finite."""
    total, lost = dataset.sizes["network"], int(dataset["diverged"].sum())
    return f"{total - lost} of {total} networks are finite to the end"


def all_widths(dataset: xr.Dataset) -> list[int]:
    """Return the widths of all families, in order: what colours of a figure stand for."""
    return sorted(set(dataset["width"].to_numpy().tolist()))
