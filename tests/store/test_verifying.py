"""Verifying: every kind of damage is found and named, and what is moved aside is made again."""

import shutil
from dataclasses import replace

import pytest
from shelves import CELL, CHAIN, DATA, SWEEP, TRAIN, forget, make, tree, work

from widthlab.errors import WidthlabError
from widthlab.store.lease import Lease
from widthlab.store.manifest import MANIFEST, read
from widthlab.store.publish import LEASE, finished, folder, payload
from widthlab.store.verifying import set_aside, verify


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def flip_a_bit(results):
    flip(payload(results, TRAIN) / "part-1")


def truncate(results):
    file = payload(results, TRAIN) / "part-2"
    file.write_bytes(file.read_bytes()[:-1])


def remove_a_file(results):
    (payload(results, TRAIN) / "part-0").unlink()


def rename_a_file(results):
    (payload(results, TRAIN) / "part-0").rename(payload(results, TRAIN) / "part-00")


def remove_the_payload(results):
    shutil.rmtree(payload(results, TRAIN))


def cut_the_manifest(results):
    file = folder(results, TRAIN) / MANIFEST
    file.write_text(file.read_text()[:100])


def remove_the_manifest(results):
    forget(results, TRAIN)


def take_another_manifest(results):
    shutil.copy(folder(results, DATA) / MANIFEST, folder(results, TRAIN) / MANIFEST)


def point_elsewhere(results):
    home = folder(results, TRAIN)
    replace(read(home), payload="../elsewhere").write(home)


DAMAGES = {
    flip_a_bit: "snapshots differs from the digest",
    truncate: "snapshots differs from the digest",
    remove_a_file: "snapshots differs from the digest",
    rename_a_file: "snapshots differs from the digest",
    remove_the_payload: "snapshots is missing",
    cut_the_manifest: "cannot be read",
    remove_the_manifest: "has no manifest",
    take_another_manifest: "is that of another result",
    point_elsewhere: "elsewhere",
}


@pytest.fixture
def results(tmp_path):
    make(tmp_path / "results", *CHAIN)
    return tmp_path / "results"


def test_what_is_whole_is_intact(results):
    before = tree(results)
    found = verify(results)
    assert (found.intact, found.damaged, found.unfinished) == (4, [], [])
    assert tree(results) == before


def test_nothing_at_all_is_fine(tmp_path):
    assert verify(tmp_path / "nowhere").intact == 0


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found_named_and_moved_aside_to_be_made_again(results, damage):
    damage(results)
    broken = tree(folder(results, TRAIN))
    found = verify(results)
    assert found.intact == 3
    (one,) = found.damaged
    assert one.entry.name == f"checkpoints/{TRAIN.address}"
    assert DAMAGES[damage] in one.problem

    moved = set_aside(one)
    assert moved
    assert all(path.name.endswith(".damaged-1") for path in moved)
    assert finished(results, TRAIN) is None
    kept = {name.replace(".damaged-1", ""): content for name, content in tree(results).items()}
    for name, content in broken.items():
        assert kept[f"checkpoints/{TRAIN.address}/{name}"] == content  # nothing is lost
    assert not verify(results).damaged

    make(results, TRAIN)
    assert verify(results).intact == 4


def test_what_is_damaged_twice_is_kept_twice(results):
    for _ in range(2):
        flip_a_bit(results)
        (one,) = verify(results).damaged
        set_aside(one)
        make(results, TRAIN)
    names = {path.name for path in folder(results, TRAIN).iterdir()}
    assert {"snapshots", "snapshots.damaged-1", "snapshots.damaged-2"} <= names


def test_what_became_whole_in_the_meantime_stays(results):
    file = payload(results, TRAIN) / "part-1"
    whole = file.read_bytes()
    flip(file)
    (one,) = verify(results).damaged
    file.write_bytes(whole)
    assert set_aside(one) == []
    assert verify(results).intact == 4


def test_what_a_job_has_in_hand_is_not_moved(results):
    flip_a_bit(results)
    (one,) = verify(results).damaged
    with (
        Lease(folder(results, TRAIN) / LEASE),
        pytest.raises(WidthlabError, match=r"not moved aside: process .* has it in hand"),
    ):
        set_aside(one)
    assert read(folder(results, TRAIN)) is not None


def test_a_running_job_is_no_damage(results):
    forget(results, TRAIN)
    with Lease(folder(results, TRAIN) / LEASE):
        found = verify(results)
    assert not found.damaged
    assert [entry.address for entry in found.unfinished] == [TRAIN.address]


def test_a_version_has_its_own_results_only(results):
    other = work("train", "mlp-w16", DATA)
    make(results, other)
    flip(payload(results, other) / "part-0")
    shutil.rmtree(folder(results, TRAIN))
    found = verify(results, [each.address for each in (DATA, TRAIN, CELL, SWEEP)])
    assert (found.intact, found.damaged) == (3, [])
    assert found.absent == [TRAIN.address]
