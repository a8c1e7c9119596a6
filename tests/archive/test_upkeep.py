"""Upkeep of an archive: what its versions need, and that every damage is found."""

import random
import shutil
from pathlib import Path

import pytest
import yaml
from archived import run, small
from click.testing import CliRunner

from widthlab import cli
from widthlab.archive import upkeep
from widthlab.archive.digests import content_digest
from widthlab.archive.repository import Archive
from widthlab.errors import WidthlabError
from widthlab.plan import Plan


@pytest.fixture
def house(results, monkeypatch):
    """A folder with a study, its results, and an archive with one tagged version."""
    monkeypatch.chdir(results.parent)
    write(small("results"))
    archive = Archive.create(small("results"))
    archive.tag("v1", archive.commit(Plan.of(small("results"))))
    return results.parent


def write(study):
    text = yaml.safe_dump(study.model_dump(mode="json", exclude_none=True))
    Path("config.yaml").write_text(text, encoding="utf-8")


def shell(*arguments):
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def addresses(study):
    return {work.address for work in Plan.of(study).all_work()}


def on_disk():
    from widthlab.store.inventory import entries

    return {entry.address for entry in entries(Plan.of(small("results")).results)}


OTHER = {"width": [4]}


@pytest.fixture
def three(house):
    """The current study, a tagged version and one without a tag, that differ in their cells."""
    other, third = small("results", OTHER, False), small("results", {"draws": 9}, False)
    run(other)
    Archive.open(other).commit(Plan.of(other))
    run(third)
    write(third)
    return small("results"), other, third


def test_gc_keeps_what_versions_and_the_study_need(three):
    code, said = shell("gc", "--older-than", "0", "--delete")
    assert code == 0, said
    assert on_disk() == set().union(*map(addresses, three))


def test_gc_keeps_what_tags_need_where_only_tags_count(three):
    tagged, untagged, current = map(addresses, three)
    assert untagged - tagged - current
    code, said = shell("gc", "--keep-tags", "--older-than", "0", "--delete")
    assert code == 0, said
    assert on_disk() == tagged | current
    code, said = shell("verify", "v1")
    assert code == 0, said


@pytest.mark.parametrize("text", ["", '{"snapshot":"1CECHNKREP0F1RSTCMZZ"}'])
def test_gc_deletes_nothing_where_a_tag_is_damaged(three, text):
    (file,) = Plan.of(three[0]).results.glob("archive/refs/tag.v1/ref.json")
    file.write_text(text)
    before = on_disk()
    code, said = shell("gc", "--keep-tags", "--older-than", "0", "--delete")
    assert code == 1
    assert "the tag v1" in said
    assert on_disk() == before
    assert shell("verify")[0] == 1


def test_gc_deletes_nothing_where_the_archive_cannot_be_read(three):
    for file in Plan.of(three[0]).results.glob("archive/snapshots/*"):
        file.write_bytes(file.read_bytes()[:50])
    before = on_disk()
    code, said = shell("gc", "--older-than", "0", "--delete")
    assert code == 1
    assert "cannot read the archive" in said
    assert on_disk() == before


def test_verify_reads_the_archive_and_the_version(house):
    code, said = shell("verify")
    assert code == 0, said
    assert "9 intact, 0 damaged" in said
    assert "1 versions read, 0 problems" in said
    shutil.rmtree(house / "results" / "cells")
    code, said = shell("verify", "v1")
    assert code == 0, said
    assert "3 intact" in said
    assert "not on disk: 6" in said


def test_without_an_archive_the_results_are_verified(results, monkeypatch):
    monkeypatch.chdir(results.parent)
    write(small("results"))
    assert upkeep.existing(small("results")) is None
    code, said = shell("verify")
    assert code == 0, said
    assert "9 intact" in said


def test_no_flipped_bit_gives_other_numbers_unnoticed(house):
    study = small("results")
    archive = Archive.open(study)
    (version,) = archive.versions()
    before = contents(archive, version)
    rng = random.Random(0)
    files = [p for p in house.glob("results/archive/*/*") if p.is_file()]
    found = 0
    for _ in range(40):
        file = rng.choice(files)
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            archive = Archive.open(study)
            problems = list(upkeep.unreadable(archive, upkeep.tags_and_heads(archive)))
            if problems:
                found += 1
                with pytest.raises(WidthlabError):
                    contents(archive, archive.find("v1"))
            else:
                after = contents(archive, archive.find("v1"))
                assert all(before[name].identical(after[name]) for name in before)
        except WidthlabError:
            found += 1
        file.write_bytes(whole)
    assert found > 5


def contents(archive, version):
    groups = {**archive.sweeps(version), "results": archive.results(version)}
    return {name: group.load() for name, group in groups.items()}


def test_a_digest_is_of_the_content(results):
    study = small(str(results))
    archive = Archive.create(study)
    version = archive.commit(Plan.of(study))
    sweep = archive.sweeps(version)["variance"].load()
    digest = content_digest(sweep)
    assert digest == version.contents["variance"]
    name = sorted(sweep.data_vars)[0]
    order = sorted(sweep.data_vars, reverse=True)
    assert content_digest(sweep[order].assign_attrs(sweep.attrs)) == digest
    for other in (
        sweep.drop_vars(name),
        sweep.rename({name: "another"}),
        sweep.assign_attrs(more=1),
        sweep.assign({name: sweep[name].astype("float32")}),
        sweep.assign({name: sweep[name] + 1e-9}),
        sweep.assign_coords(model=["relu", "other"]),
    ):
        assert content_digest(other) != digest
