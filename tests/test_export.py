"""A version exported: one zip that others read without widthlab."""

import csv
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from markupsafe import escape
from rocrate.rocrate import ROCrate
from safetensors.numpy import load_file

from widthlab import cli, crate, stages
from widthlab import study as studies
from widthlab.archive.repository import Archive
from widthlab.errors import WidthlabError
from widthlab.plan import Plan
from widthlab.store.manifest import MANIFEST
from widthlab.store.publish import folder, payload

DATA = {"name": "gaussian", "dimension": 6, "train_samples": 32, "test_samples": 16}
STUDY = {
    "name": "small",
    "device": "cpu",
    "experiments": {
        "variance": {
            "models": {"relu": {"name": "mlp"}},
            "width": [4, 8],
            "depth": 1,
            "draws": 8,
            "inputs": 2,
            "data": DATA,
        },
        "ntk_drift": {
            "models": {"tanh": {"name": "residual_mlp", "activation": "tanh"}},
            "width": [4, 8],
            "depth": 1,
            "seeds": 2,
            "training": {"steps": 4, "snapshots": 2},
            "probe": 6,
            "data": DATA,
        },
    },
}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A folder with a finished study and its archive with the version v1."""
    house = tmp_path_factory.mktemp("a house ü")
    (house / "config.yaml").write_text(yaml.safe_dump(STUDY))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(house)
        study = studies.parse(STUDY)
        plan = Plan.of(study)
        for work in plan.all_work():
            stages.make(plan.results, work, "cpu", lambda line: None)
        archive = Archive.create(study)
        archive.tag("v1", archive.commit(plan))
    return house


@pytest.fixture
def plan(house, monkeypatch):
    monkeypatch.chdir(house)
    return Plan.of(studies.parse(STUDY))


def shell(*arguments):
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def exported(house, tmp_path_factory):
    """The version in a zip, and unpacked."""
    zipped = tmp_path_factory.mktemp("elsewhere") / "v1.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(house)
        code, said = shell("export", "v1", "--with-checkpoints", "--out", str(zipped))
    assert (code, said) == (0, f"{zipped}\n")
    with zipfile.ZipFile(zipped) as archive:
        assert archive.testzip() is None
        archive.extractall(zipped.parent / "unpacked")
    return zipped


READ = """
import json, sys
sys.modules["widthlab"] = None
import xarray as xr
found = {}
for name in sys.argv[1:]:
    with xr.open_zarr(name) as sweep:
        found[name.rsplit("/", 1)[1]] = json.loads(json.dumps(sweep.load().to_dict(), default=str))
print(json.dumps(found))
"""


def test_sweeps_are_read_without_widthlab(house, exported, plan):
    places = sorted(map(str, exported.parent.glob("unpacked/sweeps/*.zarr")))
    command = [sys.executable, "-c", READ, *places]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    there = json.loads(output)
    archive = Archive.open(plan.study)
    sweeps = archive.sweeps(archive.find("v1"))
    assert set(there) == {f"{name}.zarr" for name in sweeps}
    for name, sweep in sweeps.items():
        expected = json.loads(json.dumps(sweep.load().to_dict(), default=str))
        assert json.dumps(there[f"{name}.zarr"], sort_keys=True) == json.dumps(
            expected, sort_keys=True
        )


def test_the_crate_is_read_by_rocrate_and_describes_what_is_in_it(exported, plan):
    found = ROCrate(exported)
    root = found.root_dataset
    assert found.metadata["conformsTo"] == "https://w3id.org/ro/crate/1.1"
    for key in ("name", "description", "datePublished", "license", "author", "identifier"):
        assert root[key], key
    assert root["license"].id == "https://spdx.org/licenses/BSD-3-Clause"
    assert "v1" in root["name"]
    unpacked = exported.parent / "unpacked"
    places = {entity.id for entity in found.data_entities}
    for entity in found.data_entities:
        assert (unpacked / entity.id).exists(), entity.id
        for key in ("name", "description", "encodingFormat"):
            assert entity[key], (entity.id, key)
    described = [place for place in places if place.endswith("/")]
    for file in (path for path in unpacked.rglob("*") if path.is_file()):
        place = file.relative_to(unpacked).as_posix()
        known = place in places or place.startswith(("ro-crate-", *described))
        assert known, f"{place} is not described"
    assert {
        "sweeps/variance.zarr/",
        "sweeps/ntk_drift.zarr/",
        "study.yaml",
        "claims.csv",
        "results.csv",
        "report/index.html",
        "report/claims.json",
        "manifests/",
        "environment/requirements.lock",
        "environment/versions.json",
        "CITATION.cff",
        "LICENSE",
    } <= places
    (run,) = found.get_by_type("CreateAction")
    assert {entity.id for entity in run["result"]} == {
        "sweeps/variance.zarr/",
        "sweeps/ntk_drift.zarr/",
    }


def test_references_within_the_crate_lead_somewhere(exported):
    graph = json.loads((exported.parent / "unpacked/ro-crate-metadata.json").read_text())["@graph"]
    ids = [entity["@id"] for entity in graph]
    assert len(ids) == len(set(ids))
    outside = ("https://w3id.org/ro/crate/",)
    for entity in graph:
        for values in entity.values():
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, dict):
                    assert value["@id"] in ids or value["@id"].startswith(outside), value


def test_claims_are_there_for_people_and_programs(exported, plan):
    unpacked = exported.parent / "unpacked"
    claims = json.loads((unpacked / "report/claims.json").read_text())
    assert claims
    with (unpacked / "claims.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == [claim["verdict"] for claim in claims]
    values = {
        e["propertyID"]: e
        for e in ROCrate(exported).get_by_type("PropertyValue")
        if "propertyID" in e
    }
    for claim in claims:
        assert values[claim["id"]].get("value") == claim["measured"]
        assert values[claim["id"]]["description"].startswith(claim["verdict"])
    page = (unpacked / "report/index.html").read_text()
    assert all(escape(claim["reason"]) in page for claim in claims)


def test_records_lead_back_to_what_made_the_sweeps(exported, plan):
    unpacked = exported.parent / "unpacked"
    works = list(plan.all_work())
    with (unpacked / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["address"]: row for row in csv.DictReader(file)}
    assert set(rows) == {work.address for work in works}
    manifests = {path.stem: json.loads(path.read_text()) for path in unpacked.glob("manifests/*/*")}
    assert set(manifests) == set(rows)
    for address, manifest in manifests.items():
        assert manifest["digest"] == rows[address]["digest"]
    study = yaml.safe_load((unpacked / "study.yaml").read_text())
    assert studies.parse(study) == plan.study
    assert json.loads((unpacked / "environment/versions.json").read_text())["torch"]


def test_weights_come_along_when_asked_for(exported, plan):
    unpacked = exported.parent / "unpacked"
    assert len(plan.checkpoints) == 4
    for work in plan.checkpoints.values():
        home = unpacked / "checkpoints" / work.address
        (first, *rest) = sorted(home.glob("*.safetensors"))
        assert rest
        assert load_file(first)
        original = payload(plan.results, work)
        assert {p.name: p.read_bytes() for p in home.iterdir()} == {
            p.name: p.read_bytes() for p in original.iterdir()
        }


def test_the_same_version_gives_the_same_bytes(exported, plan, tmp_path):
    code, said = shell("export", "v1", "--with-checkpoints", "--out", str(tmp_path / "again.zip"))
    assert code == 0, said
    assert (tmp_path / "again.zip").read_bytes() == exported.read_bytes()


def test_what_is_not_on_disk_is_named(house, plan):
    gone, damaged, *_ = plan.checkpoints.values()
    home, aside = folder(plan.results, gone), house / "aside"
    file = sorted(payload(plan.results, damaged).glob("*.safetensors"))[0]
    whole = file.read_bytes()
    home.rename(aside)
    file.write_bytes(whole[:-1])
    try:
        code, said = shell("export", "v1", "--out", "without.zip")
        assert code == 0
        assert "1 results are not on disk" in said
        code, said = shell("export", "v1", "--with-checkpoints", "--out", "with.zip")
        assert code == 1
        assert "2 checkpoints are not in it" in said
        assert f"{gone.address}: is not on disk" in said
        assert f"{damaged.address}: snapshots differs" in said
    finally:
        aside.rename(home)
        file.write_bytes(whole)
    names = zipfile.ZipFile("with.zip").namelist()
    assert not [n for n in names if n.startswith(f"checkpoints/{damaged.address}")]
    assert [n for n in names if n.startswith("checkpoints/")]
    assert f"manifests/checkpoints/{gone.address}.json" not in names
    assert not [n for n in zipfile.ZipFile("without.zip").namelist() if n.startswith("checkp")]


def test_no_file_is_written_over(plan, tmp_path):
    out = tmp_path / "mine.zip"
    out.write_text("mine")
    code, said = shell("export", "v1", "--out", str(out))
    assert code == 1
    assert "is there already" in said
    assert out.read_text() == "mine"
    written = crate.Crate()
    with pytest.raises(WidthlabError, match="is there already"):
        written.write(out)
    assert out.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.zip"]


def test_the_file_is_named_after_study_and_version(house, plan):
    assert shell("export", "v1") == (0, "small-v1.zip\n")
    (house / "small-v1.zip").unlink()


def test_an_unknown_version_is_said_in_words(plan, tmp_path):
    code, said = shell("export", "v2", "--out", str(tmp_path / "v2.zip"))
    assert code == 1
    assert "has no version 'v2'" in said
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_leaves_nothing(plan, tmp_path):
    out = tmp_path / "file" / "v1.zip"
    out.parent.write_text("no folder")
    code, said = shell("export", "v1", "--out", str(out))
    assert code == 1
    assert "cannot write" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_manifest_that_is_gone_does_not_stop_the_export(plan, tmp_path):
    (cell, *_) = plan.cells.values()
    file = folder(plan.results, cell) / MANIFEST
    text = file.read_text()
    file.unlink()
    try:
        code, said = shell("export", "v1", "--out", str(tmp_path / "v1.zip"))
    finally:
        file.write_text(text)
    assert code == 0
    assert "1 results are not on disk" in said
    assert Path(tmp_path / "v1.zip").exists()
