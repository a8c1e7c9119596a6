"""Exporting a version: one RO-Crate that is read without widthlab."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from widthlab import experiments
from widthlab.archive import contents, pages
from widthlab.archive.repository import Archive, Version
from widthlab.claims import Claim, from_json, to_json
from widthlab.code_digest import ROOT
from widthlab.crate import Crate, refuse_existing
from widthlab.errors import WidthlabError
from widthlab.plan import FOLDERS
from widthlab.store import datasets, inventory, verifying
from widthlab.store.manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    import xarray as xr

CHECKOUT = ROOT.parents[1]
"""Where the environment's lock, the licence and CITATION.cff lie, unless widthlab is installed."""
ZARR = "https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html"


@dataclass(frozen=True)
class Export:
    """An exported version, and what could not come along."""

    path: Path
    missing: Mapping[str, str]
    """Addresses of checkpoints that were asked for and are not in it, and why."""
    without_manifest: int
    """Results that are not on disk: the crate has their row of the table, not their manifest."""
    no_page: str | None
    """Why the report's page is not in it."""


@dataclass(frozen=True)
class Result:
    """A finished result on disk."""

    entry: inventory.Entry
    manifest: Manifest


class Source:
    """A version with all that belongs to it, in the archive and on disk."""

    def __init__(self, archive: Archive, version: Version, results: Path) -> None:
        self.version = version
        self.table = archive.results(version)
        self.config = contents.config_of(self.table)
        self.sweeps = dict(sorted(archive.sweeps(version).items()))
        wanted = dict(zip(self._column("address"), self._column("stage"), strict=True))
        found = (e for e in inventory.entries(results) if wanted.get(e.address) == e.stage)
        self.on_disk = [Result(e, m) for e in found if (m := e.finished()) is not None]
        there = {result.entry.address for result in self.on_disk}
        self.absent = {a: stage for a, stage in wanted.items() if a not in there}

    def _column(self, name: str) -> list[str]:
        values: list[str] = self.table[name].values.tolist()
        return values

    @cached_property
    def claims(self) -> dict[str, list[Claim]]:
        """The claims of each experiment's sweep."""
        return {name: from_json(sweep.attrs["claims"]) for name, sweep in self.sweeps.items()}


def export(
    archive: Archive,
    name: str,
    results: Path,
    out: Path | None = None,
    *,
    with_checkpoints: bool = False,
) -> Export:
    """Write a version as one RO-Crate, a zip file that is there whole or not at all.

    Raises WidthlabError where there is no such version, or the file is there already.
    """
    version = archive.find(name)
    target = out or Path(f"{version.study}-{re.sub(r'[^A-Za-z0-9._-]', '-', name)}.zip")
    refuse_existing(target)
    source = Source(archive, version, results)
    page, no_page = None, None
    try:
        page = pages.build(archive, version, name).page
    except Exception as error:  # today's figures may not fit yesterday's sweep
        no_page = " ".join(str(error).split()) or type(error).__name__
    crate = Crate()
    terms = _terms(crate)
    missing: dict[str, str] = {}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            target.parent.mkdir(parents=True, exist_ok=True)
            crate.describe({**_words(version), **terms})
            sweeps = _add_sweeps(crate, source, Path(scratch), terms)
            _add_claims(crate, source, page)
            study = _add_records(crate, source)
            _add_environment(crate, source)
            _add_run(crate, version, study, sweeps, terms)
            if with_checkpoints:
                missing = _add_checkpoints(crate, source, terms)
            crate.write(target)
    except OSError as error:
        place = error.filename or target
        raise WidthlabError(f"cannot write {place}: {error.strerror}; nothing is left") from error
    return Export(target, missing, len(source.absent), no_page)


# ── what is in a crate ──────────────────────────────────────────────────────────────────────


def _words(version: Version) -> dict[str, Any]:
    tags = f" ({', '.join(version.tags)})" if version.tags else ""
    return {
        "name": f"{version.study}: sweeps of a widthlab study{tags}",
        "description": (
            f"Version {version.id} of the study {version.study} ({version.message}). Each folder "
            "in sweeps/ is a zarr store for xarray.open_zarr; claims.csv holds every claim with "
            "its verdict, results.csv every result that the sweeps were made of."
        ),
        "identifier": version.id,
        "version": version.tags[0] if version.tags else version.id,
        "datePublished": version.written_at.isoformat(),
    }


def _terms(crate: Crate) -> dict[str, Any]:
    """Return author and licence, those of the checkout's CITATION.cff."""
    citation = _citation()
    terms: dict[str, Any] = {
        "author": [
            crate.context(f"#author-{number}", _author(author))
            for number, author in enumerate(citation.get("authors", []), 1)
        ]
    }
    if name := citation.get("license"):
        link = f"https://spdx.org/licenses/{name}"
        licence = {"@type": "CreativeWork", "name": name, "url": link}
        terms["license"] = crate.context(link, licence)
    return terms


def _add_sweeps(crate: Crate, source: Source, scratch: Path, terms: Mapping[str, Any]) -> list[Any]:
    specification = {"@type": "WebPage", "name": "Zarr core specification, version 3", "url": ZARR}
    zarr = crate.context(ZARR, specification)
    added = []
    for name, sweep in source.sweeps.items():
        path = scratch / f"{name}.zarr"
        # The archive's chunks and codecs are its own business.
        datasets.write(sweep.drop_encoding(), path)
        known = name in experiments.names()
        words = experiments.load(name) if known else None
        properties = {
            "name": f"Sweep of {name}: {words.TITLE}" if words else f"Sweep of {name}",
            "description": words.QUESTION if words else "The cells of an experiment, collected",
            "identifier": source.version.sweeps[name],
            "encodingFormat": ["application/vnd+zarr", zarr],
            "variableMeasured": [
                *(
                    _variable(crate, name, key, sweep[key])
                    for key in sorted(sweep.data_vars, key=str)
                ),
                *(_claim(crate, claim) for claim in source.claims[name]),
            ],
            **terms,
        }
        added.append(crate.folder(f"sweeps/{name}.zarr/", path, properties))
    return added


def _variable(crate: Crate, experiment: str, name: Any, variable: xr.DataArray) -> Any:
    properties = {
        "@type": "PropertyValue",
        "name": str(name),
        "description": str(variable.attrs.get("description", name)),
        "unitText": str(variable.attrs.get("units", "1")),
    }
    return crate.context(f"#variable-{experiment}-{name}", properties)


def _claim(crate: Crate, claim: Claim) -> Any:
    numbers = {"value": claim.measured, "minValue": claim.low, "maxValue": claim.high}
    properties = {
        "@type": "PropertyValue",
        "propertyID": claim.id,
        "name": claim.statement,
        "description": f"{claim.verdict}: {claim.reason} (claimed in: {claim.source})",
        **{key: number for key, number in numbers.items() if number is not None},
    }
    return crate.context(f"#claim-{claim.id}", properties)


def _add_claims(crate: Crate, source: Source, page: str | None) -> None:
    claims = [claim for found in source.claims.values() for claim in found]
    table = _csv([claim.model_dump() for claim in claims], list(Claim.model_fields))
    what = "Every claim: predicted and measured value, interval, verdict and reason"
    crate.file("claims.csv", table, _file("Claims", what, "text/csv"))
    crate.file(
        "report/claims.json", to_json(claims), _file("Claims, typed", what, "application/json")
    )
    if page is not None:
        what = "Claims and figures, the plotted numbers, and every result with its status"
        crate.file("report/index.html", page, _file("Report", what, "text/html"))


def _add_records(crate: Crate, source: Source) -> Any:
    """Add the table of results and the manifests that are on disk; return the study."""
    what = "Every result that the sweeps were made of: address, status, digest, specification"
    table = source.table.to_dataframe().reset_index()
    order = ["address", *(name for name in contents.TEXTS if name != "address"), *contents.NUMBERS]
    crate.file("results.csv", table[order].to_csv(index=False), _file("Results", what, "text/csv"))
    if source.on_disk:
        what = (
            "What each result is, what made it, its digest, device and environment: one JSON file "
            "for each result, by kind and address"
        )
        paths = {f"{r.entry.name}.json": r.entry.home / MANIFEST for r in source.on_disk}
        crate.folder("manifests/", paths, _file("Manifests", what, "application/json"))
    text = yaml.safe_dump(source.config, sort_keys=False, allow_unicode=True)
    what = "The configuration from which all of this was computed"
    return crate.file("study.yaml", text, _file("Study", what, "application/yaml"))


def _add_environment(crate: Crate, source: Source) -> None:
    what = "Versions of Python and packages, and git commits, that made the results"
    versions = json.dumps(_versions(source), indent=1, sort_keys=True) + "\n"
    crate.file("environment/versions.json", versions, _file("Versions", what, "application/json"))
    for place, path, name, what, kind in (
        (
            "environment/requirements.lock",
            "envs/requirements.lock",
            "Locked environment",
            "Every package with its version, for pip: those of the checkout that wrote this crate",
            "text/plain",
        ),
        ("CITATION.cff", "CITATION.cff", "Citation", "How to cite", "application/yaml"),
        ("LICENSE", "LICENSE", "Licence", "The terms of use", "text/plain"),
    ):
        if (CHECKOUT / path).is_file():
            crate.file(place, CHECKOUT / path, _file(name, what, kind))


def _add_run(
    crate: Crate, version: Version, study: Any, sweeps: list[Any], terms: Mapping[str, Any]
) -> None:
    """Say which software made the sweeps from the study."""
    software = {
        "@type": "SoftwareApplication",
        "name": _citation().get("title", "widthlab"),
        "softwareVersion": version.git_commit or "unknown",
        **terms,
    }
    run = {
        "@type": "CreateAction",
        "name": "Running the study",
        "endTime": version.written_at.isoformat(),
        "instrument": crate.context("#widthlab", software),
        "object": [study],
        "result": sweeps,
    }
    crate.describe({"mentions": [crate.context("#run", run)]})


def _add_checkpoints(crate: Crate, source: Source, terms: Mapping[str, Any]) -> dict[str, str]:
    """Add the weights that are on disk and intact; return the other checkpoints, and why."""
    missing = {a: "is not on disk" for a, stage in source.absent.items() if stage == "train"}
    for result in source.on_disk:
        address, manifest = result.entry.address, result.manifest
        if result.entry.stage != "train":
            continue
        if problem := verifying.examine(result.entry):
            missing[address] = problem
            continue
        properties = {
            "name": f"Checkpoint {address}",
            "description": "Weights along one training run, a safetensors file for each snapshot, "
            f"and its history; the run {manifest.status} {manifest.detail}".strip(),
            "identifier": address,
            "encodingFormat": "application/safetensors",
            **terms,
        }
        path = result.entry.home / manifest.payload
        crate.folder(f"{FOLDERS['train']}/{address}/", path, properties)
    return missing


def _file(name: str, description: str, encoding: str) -> dict[str, str]:
    return {"name": name, "description": description, "encodingFormat": encoding}


def _citation() -> dict[str, Any]:
    try:
        found = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _author(author: Mapping[str, Any]) -> dict[str, Any]:
    """Return an author of CITATION.cff as schema.org has it."""
    if "name" in author:
        return {"@type": "Organization", "name": author["name"]}
    names = (author.get("given-names"), author.get("family-names"))
    return {"@type": "Person", "name": " ".join(name for name in names if name)}


def _versions(source: Source) -> dict[str, list[str]]:
    """Return the versions that the results name, by package."""
    found: dict[str, set[str]] = {}
    for text in source.table["environment"].values.tolist():
        for name, version in json.loads(text or "{}").items():
            if version is not None:
                found.setdefault(name, set()).add(str(version))
    return {name: sorted(versions) for name, versions in found.items()}


def _csv(rows: list[dict[str, Any]], columns: list[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
