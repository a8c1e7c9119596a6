"""The archive holds every version whole, once, and says plainly what it cannot do."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import icechunk
import numpy as np
import pytest
import xarray as xr
from archived import VARIANCE, changed_sweep, run, small

from widthlab import WidthlabError, reporting, study
from widthlab.archive import contents
from widthlab.archive.repository import Archive
from widthlab.plan import Plan
from widthlab.store import datasets
from widthlab.store.publish import folder, payload


@pytest.fixture
def plan(results):
    return Plan.of(small(results))


@pytest.fixture
def archive(plan):
    return Archive.create(plan.study)


def on_disk(plan):
    """Return the sweeps of a plan from its results folder."""
    return {
        work.specification["experiment"]: datasets.open_dataset(payload(plan.results, work)).load()
        for work in plan.sweeps.values()
    }


def test_a_version_holds_the_very_sweeps_and_says_what_it_is(plan, archive):
    version = archive.commit(plan)
    assert version.study == "small"
    assert version.tags == ()
    assert version.message == "gradient_correlation, 2 cells; variance, 4 cells"
    assert set(version.sweeps.values()) == set(plan.sweeps)
    found = Archive.open(plan.study)
    assert found.versions() == [version]
    expected = on_disk(plan)
    sweeps = found.sweeps(version)
    assert sweeps.keys() == expected.keys()
    for name, sweep in sweeps.items():
        xr.testing.assert_identical(sweep.load(), expected[name])
        assert list(sweep.variables) == list(expected[name].variables)
    assert found.study(version) == plan.study


def test_a_figure_leads_back_to_what_it_was_made_of(plan, archive):
    version = archive.commit(plan)
    results = archive.results(version)
    lines = {line["address"]: line for line in contents.lines(results)}
    assert lines.keys() == {work.address for work in plan.all_work()}
    for work in plan.all_work():
        line = lines[work.address]
        assert line["inputs"].split() == [source.address for source in work.inputs]
        assert json.loads(line["specification"]) == work.specification
        assert (
            line["digest"]
            == json.loads((folder(plan.results, work) / "manifest.json").read_text())["digest"]
        )
        assert line["seconds"] > 0
    assert list(contents.rows(results)) == list(reporting.rows(plan, reporting.manifests(plan)))
    assert contents.provenance(results) == reporting.provenance_of(plan, reporting.manifests(plan))


def test_what_has_not_changed_is_not_committed_again(plan, archive):
    version = archive.commit(plan)
    elsewhere = Plan.of(small(plan.results, device="auto", reports="elsewhere"))
    for same in (plan, elsewhere):
        assert archive.commit(same) is None
    assert Archive.open(plan.study).versions() == [version]


def test_each_change_is_a_version_and_says_what_changed(plan, archive):
    first = archive.commit(plan)
    fewer = run(small(plan.results, {"width": [4, 16]}, correlation=False))
    second = archive.commit(fewer)
    assert second.message == "gradient_correlation removed; variance, 2 new cells, 2 gone"
    assert set(archive.sweeps(second)) == {"variance"}
    changed_sweep(fewer, "variance", lambda sweep: sweep + 1)
    third = archive.commit(fewer)
    assert third.message == "variance made again, with other numbers"
    back = archive.commit(plan)
    assert back.sweeps == first.sweeps
    assert back.id != first.id
    assert archive.versions("small") == [back, third, second, first]
    old, new = (archive.sweeps(v)["variance"] for v in (second, third))
    xr.testing.assert_allclose(new, old + 1)
    xr.testing.assert_identical(archive.sweeps(back)["variance"], archive.sweeps(first)["variance"])


def test_a_sweep_that_has_not_changed_is_stored_once(plan, archive):
    noise = np.random.default_rng(0).normal(size=50_000)
    changed_sweep(plan, "variance", lambda sweep: sweep.assign(noise=("sample", noise)))
    archive.commit(plan)
    before = archive.repository.chunk_storage_stats().native_bytes
    assert before > noise.nbytes / 2
    changed_sweep(plan, "gradient_correlation", lambda sweep: sweep + 1)
    version = archive.commit(plan)
    assert archive.repository.chunk_storage_stats().native_bytes < 1.5 * before
    np.testing.assert_array_equal(archive.sweeps(version)["variance"]["noise"], noise)


def test_studies_do_not_mix(plan, archive):
    archive.commit(plan)
    other = run(small(plan.results, correlation=False, name="main"))
    version = archive.commit(other)
    third = archive.commit(run(small(plan.results, correlation=False, name="third")))
    assert archive.versions("main") == [version]
    assert archive.versions("third") == [third]
    assert len(archive.versions("small")) == 1
    assert len(archive.versions()) == 3
    assert archive.versions("nothing") == []


def test_tags_are_for_good_and_find_versions(plan, archive):
    version = archive.commit(plan)
    archive.tag("v1", version)
    archive.tag("the-paper_2.0", version)
    assert archive.find("v1").id == version.id
    assert archive.find("v1").tags == ("the-paper_2.0", "v1")
    assert archive.find(version.id[:6].lower()).id == version.id
    with pytest.raises(WidthlabError, match=f"'v1' is taken: it is version {version.id}"):
        archive.tag("v1", version)
    archive.repository.delete_tag("v1")
    with pytest.raises(WidthlabError, match="used and deleted"):
        archive.tag("v1", version)
    for name in ("", "a/b", "../up", "-v", "two words", "é"):
        with pytest.raises(WidthlabError, match="no name for a version"):
            archive.tag(name, version)


def test_what_is_not_found_is_said_with_what_there_is(plan, archive):
    with pytest.raises(WidthlabError, match="no version of the study 'small' yet"):
        archive.newest("small")
    version = archive.commit(plan)
    with pytest.raises(WidthlabError, match="has no tags; 'widthlab versions' lists ids"):
        archive.find("paper")
    archive.tag("paper", version)
    with pytest.raises(WidthlabError, match="no version 'papre'; did you mean 'paper'"):
        archive.find("papre")
    changed_sweep(plan, "variance", lambda sweep: sweep + 1)
    several = [version.id]
    while len({name[0] for name in several}) == len(several):
        changed_sweep(plan, "variance", lambda sweep: sweep + 1)
        several.append(archive.commit(plan).id)
    twice = next(n[0] for n in several if sum(m[0] == n[0] for m in several) > 1)
    with pytest.raises(WidthlabError, match="begins several versions"):
        archive.find(twice)


def test_an_archive_that_is_not_there_is_one_clear_sentence(plan):
    with pytest.raises(WidthlabError, match=r"there is no archive at .*; a run of snakemake"):
        Archive.open(plan.study)
    assert not (plan.results / "archive").exists()


def test_a_sweep_that_is_not_finished_or_damaged_is_not_committed(plan, archive):
    sweep = next(w for w in plan.sweeps.values() if w.specification["experiment"] == "variance")
    file = next(f for f in payload(plan.results, sweep).rglob("c/*") if f.is_file())
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(WidthlabError, match="is damaged"):
        archive.commit(plan)
    assert archive.versions() == []
    file.write_bytes(whole)
    manifest = folder(plan.results, sweep) / "manifest.json"
    text = manifest.read_text()
    manifest.unlink()
    with pytest.raises(WidthlabError, match="sweep of variance is not finished"):
        archive.commit(plan)
    manifest.write_text(text)
    assert archive.commit(plan) is not None


def test_writers_at_the_same_time_lose_nothing(plan):
    """Eight studies at once into an archive that none of them has seen, each with its own lock."""
    plans = []
    for number in range(8):
        plans.append(Plan.of(small(plan.results, name=f"study{number}")))

    def commit(one):
        return Archive.create(one.study).commit(one)

    with ThreadPoolExecutor(len(plans)) as pool:
        versions = list(pool.map(commit, plans))
    assert {v.id for v in Archive.open(plan.study).versions()} == {v.id for v in versions}
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(commit, [plan] * 4))
    assert sum(version is not None for version in again) == 1


def test_a_folder_with_other_things_is_left_alone(results):
    place = results / "taken"
    place.mkdir()
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(WidthlabError, match=r"cannot make the archive .*taken"):
        Archive.create(small(results, archive=str(place)))
    assert [f.name for f in place.iterdir()] == ["thesis.txt"]


def test_an_archive_may_be_moved_with_its_results(plan, archive, tmp_path):
    version = archive.commit(plan)
    plan.results.rename(tmp_path / "moved")
    moved = Archive.open(small(tmp_path / "moved"))
    assert moved.versions() == [version]
    assert np.isfinite(moved.sweeps(version)["variance"]["mean"]).all()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("gs://bucket/archive", "must be a folder or an address s3://"),
        ("", "archive"),
        ("arch{ive}", "no braces"),
    ],
)
def test_a_place_that_cannot_be_is_an_error_of_the_study(place, words):
    config = {"name": "small", "archive": place, "experiments": {"variance": VARIANCE}}
    with pytest.raises(WidthlabError, match=words):
        study.parse(config)


@pytest.mark.parametrize(
    ("place", "words"),
    [("s3:///prefix", "names no bucket"), ("s3://lab/a?endpont=x", "unknown option 'endpont'")],
)
def test_an_address_that_cannot_be_is_one_clear_sentence(place, words, tmp_path):
    with pytest.raises(WidthlabError, match=words):
        Archive.open(small(tmp_path, archive=place))


def test_where_the_archive_is_enters_no_address(plan):
    other = Plan.of(small(plan.results, archive="s3://lab/elsewhere"))
    assert other.report.address == plan.report.address
    assert [w.address for w in other.all_work()] == [w.address for w in plan.all_work()]


def test_reading_a_study_does_not_import_icechunk():
    code = (
        "import sys; from widthlab.plan import Plan; from widthlab import cli, study; "
        "from widthlab.archive import receipts, versions; "
        "sys.exit(any(name in sys.modules for name in ('icechunk', 'xarray', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_results_made_outside_of_git_name_no_commit(plan):
    found = {
        address: replace(manifest, environment={**manifest.environment, "git_commit": None})
        for address, manifest in reporting.manifests(plan).items()
    }
    assert reporting.provenance_of(plan, found).git_commit is None


def test_icechunks_own_errors_become_one_sentence(plan, archive, monkeypatch):
    archive.commit(plan)

    def broken(*_, **__):
        raise icechunk.IcechunkError("  x session error\n  |\n  `-> disk quota exceeded\n")

    monkeypatch.setattr(archive, "repository", _Broken(archive.repository, broken))
    changed_sweep(plan, "variance", lambda sweep: sweep + 1)
    with pytest.raises(WidthlabError, match=r"cannot write the archive .*: disk quota exceeded"):
        archive.commit(plan)


class _Broken:
    """A repository that cannot open a session for writing."""

    def __init__(self, repository, broken):
        self._repository, self.writable_session = repository, broken

    def __getattr__(self, name):
        return getattr(self._repository, name)
