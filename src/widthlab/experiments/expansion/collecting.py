"""All cells of a sweep in one dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from widthlab.experiments.shared.base import Measured

if TYPE_CHECKING:
    import xarray as xr

    from widthlab.experiments.expansion import Section

GRID = ("family", "width", "seed")
INSIDE = ("block", "point", "draw")


def collected(section: Section, measured: list[Measured]) -> xr.Dataset:
    """Return every variable of the cells over (family, width, seed, …), NaN where there is none.

    `asked`, `present` and `diverged` say which networks there should be, are, and were lost.
    """
    import xarray as xr

    labels = list(section.families)
    widths = sorted({width for family in section.families.values() for width in family.width})
    seeds = max(family.seeds for family in section.families.values())
    shape = (len(labels), len(widths), seeds)
    asked, there, lost = (np.zeros(shape, dtype=bool) for _ in range(3))
    for i, family in enumerate(section.families.values()):
        for width in family.width:
            asked[i, widths.index(width), : family.seeds] = True
    alive = [one for one in measured if one.statistics.data_vars]
    named = (name for one in alive for name in one.statistics["point"].values.tolist())
    points = list(dict.fromkeys(named))
    inside: dict[str, list[object]] = {
        "block": list(section.blocks),
        "point": points,
        "draw": list(range(section.draws)),
    }
    found: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, object]]] = {}
    for one in measured:
        at = labels.index(one.label), widths.index(one.cell.network.width), one.cell.seed
        there[at] = True
        lost[at] = one.statistics.attrs["status"] == "diverged"
    for one in alive:
        at = labels.index(one.label), widths.index(one.cell.network.width), one.cell.seed
        rows = [points.index(name) for name in one.statistics["point"].values.tolist()]
        for name, variable in one.statistics.data_vars.items():
            dims = tuple(str(dim) for dim in variable.dims)
            sizes = [len(inside[d]) if d in inside else variable.sizes[d] for d in dims]
            if name not in found:
                values = np.full((*shape, *sizes), np.nan)
                found[str(name)] = ((*GRID, *dims), values, dict(variable.attrs))
            where = [rows if dim == "point" else slice(None) for dim in dims]
            found[str(name)][1][at][tuple(where)] = variable.to_numpy()
    words = {"asked": "whether the study asks for it", "present": "whether the cell is finished"}
    words["diverged"] = "whether training diverged"
    flags = dict(zip(words, (asked, there, lost), strict=True))
    coords: dict[str, object] = {"family": labels, "width": widths, "seed": np.arange(seeds)}
    if alive:
        coords |= inside
        first = alive[0].statistics
        coords |= {d: first[d].to_numpy() for d in ("state", "part", "bound", "method")}
    caps = {one.label: float(one.statistics.attrs["cap"]) for one in alive}
    return xr.Dataset(
        {
            **found,
            **{name: (GRID, flags[name], {"description": words[name]}) for name in words},
            "cap": (
                "family",
                np.array([caps.get(label, np.nan) for label in labels]),
                {"units": "loss", "description": "where losses are clipped"},
            ),
        },
        coords=coords,
        attrs={
            "experiment": "expansion",
            "step_samples": section.step_samples,
            "step_test_samples": section.step_test_samples,
            "fresh_samples": int(alive[0].statistics.attrs["fresh_samples"]) if alive else 0,
            "samples_from": section.samples_from,
            "step": section.step,
            "training_steps": section.block_training.steps,
        },
    )
