"""Damaged results are found by their digests before use, kept aside, named, and made again."""

import shutil

import pytest
import yaml
from small import STUDY

from widthlab import reading
from widthlab.errors import WidthlabError
from widthlab.store.manifest import MANIFEST
from widthlab.store.publish import folder, payload


def flip(file):
    """Flip one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def delete(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


DAMAGES = [flip, truncate, delete]
USED_BY = {"data": "train", "train": "extract", "extract": "sweep"}
"""A stage that uses the results of another."""


def part(small, work, which):
    """Return a file of a result: its manifest, its payload (a folder, maybe), or a piece of it."""
    target = payload(small.results, work)
    if which == "manifest":
        return folder(small.results, work) / MANIFEST
    if which == "payload" or target.is_file():
        return target
    # The largest is a snapshot of weights, or a chunk of an array.
    return max((f for f in target.rglob("*") if f.is_file()), key=lambda f: (f.stat().st_size, f))


PLACES = [(which, damage) for which in ("piece", "manifest") for damage in DAMAGES]
PLACES += [("payload", delete)]


@pytest.mark.parametrize("stage", list(USED_BY))
@pytest.mark.parametrize(("which", "damage"), PLACES, ids=lambda v: getattr(v, "__name__", v))
def test_a_damaged_input_is_made_again_before_it_is_used(undisturbed, small, stage, which, damage):
    source = small.only(stage)
    user = next(w for w in small.stage(USED_BY[stage]) if source in w.inputs)
    shutil.rmtree(folder(small.results, user))
    spoilt = part(small, source, which)
    damage(spoilt)
    left = spoilt.read_bytes() if spoilt.exists() else None

    done = small.run(user)
    assert (done.code, done.terminal) == (0, "")
    assert small.digests() == undisturbed.digests()
    assert small.leftovers() == []
    log = small.log(user).read_text()
    assert f"{source.address}, which {user.address} needs, is not there: making it" in log
    if left is not None:
        assert f"{source.address} is damaged: " in log
        kept = {f.read_bytes() for f in aside(small, source)}
        assert left in kept


def aside(small, work):
    """Return all files of a result that were moved aside."""
    places = folder(small.results, work).glob("*.damaged-*")
    return [f for place in places for f in [place, *place.rglob("*")] if f.is_file()]


@pytest.fixture
def config(small, monkeypatch):
    (small.home / "config.yaml").write_text(
        yaml.safe_dump(STUDY.model_dump(mode="json", exclude_none=True))
    )
    monkeypatch.chdir(small.home)
    return small.home / "config.yaml"


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_report_shows_no_damaged_sweep(undisturbed, small, config, damage):
    assert small.command("report").code == 0
    pages = [small.home / "reports/small" / name for name in ("index.html", "claims.json")]
    whole = [page.read_bytes() for page in pages]
    (sweep,) = small.plan.sweeps.values()
    spoilt = part(small, sweep, "piece")
    damage(spoilt)
    left = spoilt.read_bytes() if spoilt.exists() else None

    done = small.command("report")
    assert done.code == 0
    assert f"{sweep.address} is damaged" in done.terminal
    assert small.digests() == undisturbed.digests()
    assert pages[1].read_bytes() == whole[1]
    assert left is None or left in {file.read_bytes() for file in aside(small, sweep)}


def test_without_its_cells_a_damaged_sweep_is_a_hole(undisturbed, small, config):
    (sweep,) = small.plan.sweeps.values()
    flip(part(small, sweep, "piece"))
    shutil.rmtree(folder(small.results, sweep.inputs[0]))
    flip(part(small, sweep.inputs[1], "piece"))
    done = small.command("report")
    assert done.code == 0
    for work in (sweep, sweep.inputs[1]):
        assert f"{work.address} is damaged" in done.terminal
    page = (small.home / "reports/small/index.html").read_text()
    assert "2 of 4 cells are missing" in page
    assert small.digests().items() < undisturbed.digests().items()


def test_no_damaged_sweep_is_read_from_python(small, config):
    (sweep,) = small.plan.sweeps.values()
    flip(part(small, sweep, "piece"))
    with (
        pytest.warns(UserWarning, match=f"{sweep.address} is damaged"),
        pytest.raises(WidthlabError, match="run snakemake"),
    ):
        reading.open(config)["ntk_drift"]
