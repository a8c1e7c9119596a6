"""A study runs, is tagged, changes and runs again; its versions are compared and restored."""

import json
import shutil

import pytest
import yaml
from laboratory import changed, jobs_of

pytestmark = pytest.mark.workflow

CHANGED = changed(experiments__variance__width=[8, 32], experiments__variance__draws=64)


def command(laboratory, *words):
    code, output = laboratory.run("widthlab", *words)
    assert code == 0, output
    return output


def test_versions_are_kept_compared_restored_and_reported(finished, laboratory):
    (receipt,) = laboratory.results.glob("archived/*.json")
    first = json.loads(receipt.read_text())["version"]
    assert f"v1 is version {first} of tiny" in command(laboratory, "tag", "v1")
    assert laboratory.planned() == []

    laboratory.configure(CHANGED)
    assert "archive" in laboratory.planned()
    laboratory.finish()
    said = command(laboratory, "diff", "v1", json_version(laboratory, receipt))
    assert "experiment variance" in said
    assert "experiment ntk_drift" not in said
    assert "cells: 1 added, 1 removed, 1 made anew" in said
    assert "experiments.variance.draws" in said

    # The report of the first version, from the archive alone.
    shutil.move(laboratory.results / "sweeps", laboratory.folder / "sweeps")
    output = laboratory.finish("report", "--config", "version=v1")
    assert jobs_of(output) == ["report"]
    old = laboratory.folder / "reports/tiny@v1"
    assert (old / "claims.json").read_bytes() == (finished.report / "claims.json").read_bytes()
    assert json.loads((old / "claims.json").read_text()) != laboratory.claims()
    assert laboratory.planned("report", "--config", "version=v1") == []
    assert laboratory.planned("--config", "version=v1") == []
    shutil.move(laboratory.folder / "sweeps", laboratory.results / "sweeps")

    # Back to the first version: all of its results are there.
    said = command(laboratory, "restore", "v1", "--out", "first.yaml")
    assert "nothing of it is missing here" in said
    laboratory.configure(yaml.safe_load((laboratory.folder / "first.yaml").read_text()))
    assert laboratory.planned() == ["report"]
    laboratory.finish()
    assert laboratory.claims() == finished.claims()
    assert laboratory.planned() == []


def json_version(laboratory, before):
    (new,) = (path for path in laboratory.results.glob("archived/*.json") if path != before)
    return json.loads(new.read_text())["version"]


def test_an_archive_that_was_deleted_is_made_again_from_the_sweeps(laboratory):
    shutil.rmtree(laboratory.results / "archive")
    assert laboratory.planned() == ["archive"]
    laboratory.finish()
    assert "ntk_drift, 2 cells" in command(laboratory, "versions")
    assert laboratory.planned() == []


def test_a_version_that_is_not_there_is_one_clear_sentence(laboratory):
    code, output = laboratory.snakemake("report", "--config", "version=v9")
    assert code == 1
    assert "Error: the archive results/archive has no version 'v9'" in output
    assert "Traceback" not in output
