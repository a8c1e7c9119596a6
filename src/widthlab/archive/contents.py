"""What a version holds beside its sweeps: every result of the study as a row of one table.

With it a figure leads back to its checkpoints, and the report can be made again, when the
results folder is long gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import xarray as xr

from widthlab import reporting
from widthlab.address import canonical_json, digest
from widthlab.errors import WidthlabError
from widthlab.plan import Plan, Work
from widthlab.report.page import CellRow, Provenance
from widthlab.store.manifest import Manifest
from widthlab.study import Study, parse

TEXTS = {
    "address": "name of the result",
    "stage": "what made it",
    "kind": "what it is",
    "experiment": "the experiments that use it, joined by a comma",
    "slug": "readable part of the address",
    "label": "label of a cell's architecture in figures",
    "status": "done, diverged, failed or missing",
    "detail": "the reason of the status",
    "device": "what computed it",
    "payload": "name of its payload in its folder",
    "digest": "SHA-256 of its payload",
    "code": "digest of the code that made it",
    "inputs": "addresses of its inputs, joined by spaces",
    "specification": "what its stage was told, as JSON",
    "environment": "versions of what computed it, as JSON",
}
"""The columns of text; what is not known is empty."""
NUMBERS = {
    "seconds": ("wall time; not finite where it is not known", "s"),
    "peak_memory": ("largest resident memory; not finite where it is not known", "B"),
}


def study_digest(plan: Plan) -> str:
    """Return the digest of what a study asks for, wherever it runs and keeps its results."""
    asked = [sweep.identity for sweep in plan.sweeps.values()]
    return digest(canonical_json([plan.study.name, plan.study.seed, asked]))


def table(plan: Plan, found: Mapping[str, Manifest]) -> xr.Dataset:
    """Return all work of a plan along `result`, given the manifests that there are.

    The attributes hold the study and the report's provenance, as JSON.
    """
    works = {work.address: work for work in plan.all_work()}
    lines = [
        _line(works[row.address], row, found.get(row.address))
        for row in reporting.rows(plan, found)
    ]
    columns: dict[str, xr.Variable] = {}
    for name, words in TEXTS.items():
        values = np.array([line[name] for line in lines], dtype=object)
        columns[name] = xr.Variable("result", values, {"description": words})
    for name, (words, unit) in NUMBERS.items():
        numbers = np.array([line[name] for line in lines], dtype=np.float64)
        columns[name] = xr.Variable("result", numbers, {"description": words, "units": unit})
    attributes = {
        # In the order of its keys, as a person would write it.
        "study": json.dumps(plan.study.model_dump(mode="json", exclude_none=True)),
        "provenance": canonical_json(asdict(reporting.provenance_of(plan, found))),
    }
    return xr.Dataset(columns, attrs=attributes).set_coords("address")


def _line(work: Work, row: CellRow, manifest: Manifest | None) -> dict[str, Any]:
    return {
        "address": work.address,
        "stage": work.stage,
        "kind": row.kind,
        "experiment": row.experiment,
        "slug": row.label,
        "label": work.specification["label"] if work.stage == "extract" else "",
        "status": row.status,
        "detail": row.detail,
        "device": manifest.device if manifest else "",
        "payload": manifest.payload if manifest else "",
        "digest": manifest.digest if manifest else "",
        "code": work.code,
        "inputs": " ".join(source.address for source in work.inputs),
        "specification": work.json,
        "environment": canonical_json(manifest.environment) if manifest else "",
        "seconds": manifest.seconds if manifest else np.nan,
        "peak_memory": manifest.peak_memory if manifest else np.nan,
    }


def rows(results: xr.Dataset) -> Iterator[CellRow]:
    """Yield the rows of a report from the table of its results."""
    for line in lines(results):
        known = bool(np.isfinite(line["seconds"]))
        yield CellRow(
            experiment=line["experiment"],
            label=line["slug"],
            address=line["address"],
            status=line["status"],
            detail=line["detail"],
            seconds=float(line["seconds"]) if known else None,
            device=line["device"] if known else None,
            kind=line["kind"],
        )


def lines(
    results: xr.Dataset, names: Iterable[str] = (*TEXTS, *NUMBERS)
) -> Iterator[dict[str, Any]]:
    """Yield the results of a table one by one: text and numbers by column."""
    names = tuple(names)
    columns = [results[name].values.tolist() for name in names]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def provenance(results: xr.Dataset) -> Provenance:
    """Return the provenance of a report from the table of its results."""
    return Provenance(**json.loads(results.attrs["provenance"]))


def study_of(results: xr.Dataset, source: str) -> Study:
    """Return the study; raises WidthlabError where today's widthlab no longer reads it."""
    try:
        return parse(config_of(results), source)
    except WidthlabError as error:
        raise WidthlabError(f"{error}\n  (its own code reads it; see 'git commit')") from None


def config_of(results: xr.Dataset) -> dict[str, Any]:
    """Return the study as it was written, whether today's widthlab reads it or not."""
    config: dict[str, Any] = json.loads(results.attrs["study"])
    return config
