"""What it costs to archive the sweeps of a study of 10,000 cells, beside writing them to zarr.

`python tests/benchmarks/bench_archive.py` prints the table; `rows()` returns it. The sweeps are
synthetic, of the shape and size that such a study has; cells and checkpoints are manifests only.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import xarray as xr
from bench_plan import config
from pairs import Pair, in_turns, print_table

from widthlab import study as studies
from widthlab.archive.repository import Archive
from widthlab.plan import Plan, Work
from widthlab.store import datasets
from widthlab.store.manifest import Manifest, environment, tree_digest
from widthlab.store.publish import PAYLOADS, folder, payload

CELLS = 10_000
LIMIT = 30.0
"""Core seconds in which a commit has to be done, on any machine."""
VARIABLES = 16
"""Of a sweep along the whole grid, as the variance experiment has them."""
CLAIMS_PER_MODEL = 5


def sweep(work: Work, random: np.random.Generator) -> xr.Dataset:
    """Return a synthetic sweep over the grid of an experiment, with claims for each model."""
    section = work.specification["section"]
    grid = {
        "model": list(section["models"]),
        "width": section["width"],
        "seed": range(section.get("seeds", 1)),
        "layer": range(6),
    }
    shape = [len(values) for values in grid.values()]
    claim = {
        "experiment": work.specification["experiment"],
        "statement": "the variance of log q over draws falls as 1/N at fixed depth",
        "source": "a paper with authors and a year, theorem 1",
        "predicted": -1.0,
        "measured": -1.0123456789,
        "low": -1.1,
        "high": -0.9,
        "verdict": "holds",
        "reason": "measured -1.012 [-1.1, -0.9] contains the predicted -1",
    }
    claims = [
        {"id": f"{model}.{number}", **claim}
        for model in grid["model"]
        for number in range(CLAIMS_PER_MODEL)
    ]
    return xr.Dataset(
        {f"statistic_{n}": (tuple(grid), random.normal(size=shape)) for n in range(VARIABLES)},
        coords={name: list(values) for name, values in grid.items()},
        attrs={"claims": json.dumps(claims, indent=2)},
    )


def finish(home: Path) -> Plan:
    """Write a finished study of `CELLS` cells below a folder and return its plan."""
    raw = config(CELLS) | {"results": str(home / "results")}
    plan = Plan.of(studies.parse(raw))
    random = np.random.default_rng(0)
    made_by = environment()
    # Nothing here has to outlive a power cut.
    with patch("os.fsync"):
        for work in plan.all_work():
            place = folder(plan.results, work)
            place.mkdir(parents=True)
            path = place / PAYLOADS[work.stage]
            if work.stage == "sweep":
                datasets.write(sweep(work, random), path)
            else:
                path.touch()
            Manifest(
                address=work.address,
                stage=work.stage,
                specification=work.specification,
                inputs=[source.address for source in work.inputs],
                code=work.code,
                payload=path.name,
                digest=tree_digest(path),
                seconds=12.3,
                environment=made_by,
            ).write(place)
    return plan


def rows() -> Iterator[Pair]:
    """Measure, and yield one row after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        plan = finish(home)
        sweeps = {
            address: datasets.open_dataset(payload(plan.results, work)).load().drop_encoding()
            for address, work in plan.sweeps.items()
        }
        numbers = itertools.count()

        def commit() -> float:
            place = str(home / f"archive-{next(numbers)}")
            archive = Archive.create(plan.study.model_copy(update={"archive": place}))
            start = time.process_time()
            if archive.commit(plan) is None:
                raise RuntimeError("a new archive held the sweeps already")
            return time.process_time() - start

        def write() -> float:
            place = home / f"plain-{next(numbers)}"
            start = time.process_time()
            for address, dataset in sweeps.items():
                datasets.write(dataset, place / address)
            return time.process_time() - start

        held = Archive.create(plan.study)
        held.commit(plan)

        def nothing() -> float:
            start = time.process_time()
            if held.commit(plan) is not None:
                raise RuntimeError("sweeps that had not changed were committed again")
            return time.process_time() - start

        names = f"{CELLS:,} cells", "to_zarr"
        times = in_turns(commit, write, turns=3)
        yield Pair("archive all sweeps", *names, *times, long_limit_s=LIMIT)
        times = in_turns(nothing, write, turns=3)
        yield Pair("archive, nothing changed", *names, *times, long_limit_s=LIMIT)


if __name__ == "__main__":
    sys.exit(0 if print_table(rows()) else 1)
