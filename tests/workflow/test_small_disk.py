"""Snakemake on a results folder that is full or read-only: a sentence, and later the same end."""

import shutil

import pytest
from laboratory import jobs_of

pytestmark = pytest.mark.workflow


@pytest.fixture
def on_disk(laboratory, disk):
    """The finished study with its results on a small disk."""
    disk.grow("16m")
    place = disk.folder / "results"
    shutil.move(laboratory.results, place)
    laboratory.results.symlink_to(place)
    return laboratory


def sentence(laboratory, words):
    """Run the documented command in vain and return what it wrote."""
    code, output = laboratory.snakemake()
    assert code != 0
    assert "Traceback" not in output
    assert words in output
    return output


def test_a_finished_study_on_a_read_only_disk_is_a_finished_study(finished, on_disk, disk):
    disk.read_only()
    assert on_disk.planned() == []
    shutil.rmtree(on_disk.report)
    on_disk.finish()
    assert on_disk.claims() == finished.claims()
    assert on_disk.planned() == []


def test_what_cannot_be_written_is_a_sentence_and_made_later(finished, on_disk, disk):
    on_disk.remove("extract variance-mlp-w8-d2", "sweep variance")
    shutil.rmtree(on_disk.report)
    before = on_disk.digests()
    disk.read_only()
    output = sentence(on_disk, "Error: cannot write results: Read-only file system")
    assert jobs_of(output) == []
    disk.read_only(False)
    disk.fill()
    output = sentence(on_disk, "Error: cannot write results: No space left on device")
    assert jobs_of(output) == []
    # Room to begin with, and not enough to end.
    disk.clear()
    disk.fill(left=5 * 4096)
    output = sentence(on_disk, "No space left on device")
    assert "Error: cannot write results/" in output
    assert on_disk.digests() == before
    disk.grow("32m")
    on_disk.finish()
    assert on_disk.digests() == finished.digests()
    assert on_disk.claims() == finished.claims()
    assert on_disk.planned() == []
