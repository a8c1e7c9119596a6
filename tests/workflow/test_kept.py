"""Results in a house that runs: verified, moved aside and made again, let go of, exported."""

import shutil

import pytest

pytestmark = pytest.mark.workflow


def test_a_damaged_sweep_is_found_moved_aside_and_made_again(laboratory):
    before = laboratory.digests()
    assert laboratory.run("widthlab", "verify")[0] == 0
    home = laboratory.home(laboratory.manifests()["sweep variance"])
    file = max(home.glob("sweep.zarr/**/c/*"), key=lambda path: path.is_file())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, said = laboratory.run("widthlab", "verify")
    assert code == 1
    assert "sweep.zarr differs from the digest" in said
    code, said = laboratory.run("widthlab", "verify", "--set-aside")
    assert code == 1
    assert "sweep.zarr.damaged-1" in said
    shutil.rmtree(laboratory.report)
    assert laboratory.planned() == ["report", "sweep variance"]
    laboratory.finish()
    assert laboratory.digests() == before
    assert laboratory.run("widthlab", "verify")[0] == 0


def test_gc_takes_nothing_that_a_run_would_make_again(laboratory):
    before = laboratory.digests()
    code, said = laboratory.run("widthlab", "gc", "--older-than", "0", "--delete")
    assert code == 0, said
    assert laboratory.digests() == before
    assert not laboratory.planned()
    assert laboratory.run("widthlab", "verify")[0] == 0
