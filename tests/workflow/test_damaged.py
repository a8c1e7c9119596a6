"""Damage of every kind at once: one run of the documented command puts it right."""

import shutil

import pytest

pytestmark = pytest.mark.workflow

CHECKPOINTS = ("train residualmlp-gaussian-w8-d1-s0", "train residualmlp-gaussian-w16-d1-s0")
CELLS = ("extract ntkdrift-residualmlp-w8-d1-s0", "extract ntkdrift-residualmlp-w16-d1-s0")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-20])
    return file.read_bytes()


def test_damage_of_every_kind_is_put_right_in_one_run(finished, laboratory):
    homes = {name: laboratory.home(manifest) for name, manifest in laboratory.manifests().items()}
    laboratory.remove(CELLS[0], "sweep ntkdrift")
    shutil.rmtree(laboratory.report)
    kept = {
        "data gaussian": truncate(homes["data gaussian"] / "data.safetensors"),
        CHECKPOINTS[0]: flip(homes[CHECKPOINTS[0]] / "snapshots/step-0002000.safetensors"),
        # What the sweep looks at first finds more damage below it.
        CELLS[1]: flip(largest(homes[CELLS[1]] / "statistics.zarr")),
        CHECKPOINTS[1]: flip(homes[CHECKPOINTS[1]] / "manifest.json"),
        # Nothing asks for this sweep but the report.
        "sweep variance": flip(largest(homes["sweep variance"] / "sweep.zarr")),
    }
    terminal = laboratory.finish()
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert laboratory.planned() == []
    logs = [*laboratory.results.glob("logs/*/*.log"), laboratory.report / "report.log"]
    said = "".join([terminal, *(log.read_text() for log in logs)])
    for name, content in kept.items():
        assert content in {file.read_bytes() for file in aside(homes[name])}, name
        assert f"{homes[name].name} is damaged: " in said, name


def largest(folder):
    return max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def aside(home):
    """Return all files of a result that were moved aside."""
    return [
        file
        for place in home.glob("*.damaged-*")
        for file in [place, *place.rglob("*")]
        if file.is_file()
    ]
