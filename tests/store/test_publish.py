"""Publishing: whole or not at all, one writer, never twice, nothing lost."""

import errno
import multiprocessing
import os
import signal
import time

import pytest

from widthlab.costs import Cost
from widthlab.errors import WidthlabError
from widthlab.plan import Work
from widthlab.store import failure
from widthlab.store.lease import Taken
from widthlab.store.manifest import MANIFEST, read, tree_digest
from widthlab.store.publish import (
    LEASE,
    Outcome,
    finished,
    folder,
    intact,
    payload,
    publish,
    scratch,
)

WORK = Work("data", "digits-0123456789ab", {"data": {}}, {}, "c0de", (), Cost())


def writer(text, calls=None):
    def make(path):
        if calls is not None:
            calls.append(text)
        path.write_text(text)
        return Outcome(device="cpu")

    return make


def test_a_result_is_published_once(tmp_path):
    calls = []
    first = publish(tmp_path, WORK, writer("one", calls), print)
    second = publish(tmp_path, WORK, writer("two", calls), print)
    assert calls == ["one"]
    assert first == second == read(folder(tmp_path, WORK))
    assert payload(tmp_path, WORK).read_text() == "one"
    assert first.digest == tree_digest(payload(tmp_path, WORK))
    assert first.code == "c0de"
    assert first.environment["torch"]


def test_scratch_is_kept_until_the_result_is_there(tmp_path):
    state = scratch(tmp_path, WORK)
    state.mkdir(parents=True)

    def broken(path):
        path.write_text("half")
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        publish(tmp_path, WORK, broken, print)
    assert state.exists()
    assert read(folder(tmp_path, WORK)) is None
    assert not payload(tmp_path, WORK).exists()
    assert failure.read(folder(tmp_path, WORK)) == "RuntimeError: out of luck"
    publish(tmp_path, WORK, writer("whole"), print)
    assert not state.exists()
    assert failure.read(folder(tmp_path, WORK)) is None


def test_a_payload_that_changed_is_moved_aside_and_made_again(tmp_path):
    publish(tmp_path, WORK, writer("one"), print)
    (folder(tmp_path, WORK) / MANIFEST).unlink()
    payload(tmp_path, WORK).write_text("tampered")
    lines = []
    publish(tmp_path, WORK, writer("two"), lines.append)
    assert payload(tmp_path, WORK).read_text() == "two"
    aside = payload(tmp_path, WORK).with_name("data.safetensors.damaged-1")
    assert aside.read_text() == "tampered"
    assert aside.name in lines[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": 1}', "null"])
def test_a_damaged_manifest_is_none(tmp_path, text):
    publish(tmp_path, WORK, writer("one"), print)
    home = folder(tmp_path, WORK)
    (home / MANIFEST).write_text(text)
    assert read(home) is None
    publish(tmp_path, WORK, writer("two"), print)
    assert payload(tmp_path, WORK).read_text() == "two"
    assert read(home).address == WORK.address


def test_a_flipped_bit_anywhere_in_a_manifest_is_seen(tmp_path):
    publish(tmp_path, WORK, writer("one"), print)
    home = folder(tmp_path, WORK)
    whole = (home / MANIFEST).read_bytes()
    known = read(home)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (home / MANIFEST).write_bytes(damaged)
        # White space between values may change without changing what is said.
        assert read(home) in (None, known)
        assert read(home) is None or not whole[place : place + 1].strip()


@pytest.mark.parametrize("damage", ["flipped", "truncated", "manifest", "gone"])
def test_a_damaged_result_is_found_before_use_and_moved_aside(tmp_path, damage):
    publish(tmp_path, WORK, writer("a payload"), print)
    home, target = folder(tmp_path, WORK), payload(tmp_path, WORK)
    if damage == "flipped":
        target.write_text("a pbyload")
    elif damage == "truncated":
        target.write_text("a pay")
    elif damage == "manifest":
        (home / MANIFEST).write_text((home / MANIFEST).read_text().replace("c0de", "c0df"))
    else:
        target.unlink()
    left = target.read_text() if target.exists() else None
    lines = []
    assert not intact(tmp_path, WORK, lines.append)
    assert finished(tmp_path, WORK) is None
    assert all(WORK.address in line and "damaged" in line for line in lines)
    if left is not None:
        assert target.with_name(f"{target.name}.damaged-1").read_text() == left
    publish(tmp_path, WORK, writer("a payload"), print)
    assert intact(tmp_path, WORK, lines.append)
    assert target.read_text() == "a payload"


def test_a_result_that_cannot_be_read_is_neither_intact_nor_damaged(tmp_path, monkeypatch):
    publish(tmp_path, WORK, writer("whole"), print)

    def unreadable(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("widthlab.store.publish.tree_digest", unreadable)
        with pytest.raises(WidthlabError, match=r"cannot read .*data\.safetensors: Permission"):
            intact(tmp_path, WORK, print)
    assert intact(tmp_path, WORK, print)


def test_a_result_that_is_not_there_is_not_intact_and_leaves_no_folder(tmp_path):
    assert not intact(tmp_path, WORK, print)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_who_lost_the_lease_takes_what_the_other_made(tmp_path):
    def slow(path):
        path.write_text("late")
        lease = folder(tmp_path, WORK) / LEASE
        lease.unlink()  # as if this process had been asleep for long, and declared dead
        publish(tmp_path, WORK, writer("early"), print)
        return Outcome()

    lines = []
    manifest = publish(tmp_path, WORK, slow, lines.append)
    assert payload(tmp_path, WORK).read_text() == "early"
    assert manifest.digest == tree_digest(payload(tmp_path, WORK))
    assert any("taken over" in line for line in lines)


def test_with_no_wait_a_result_that_is_being_made_is_left_alone(tmp_path):
    def busy(path):
        with pytest.raises(Taken):
            publish(tmp_path, WORK, writer("other"), print, wait=False)
        path.write_text("mine")
        return Outcome()

    publish(tmp_path, WORK, busy, print)
    assert payload(tmp_path, WORK).read_text() == "mine"


def test_a_full_disk_is_one_sentence(tmp_path):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with pytest.raises(WidthlabError, match="No space left on device"):
        publish(tmp_path, WORK, full, print)


def test_another_error_stays_itself(tmp_path):
    def lost(path):
        raise FileNotFoundError(errno.ENOENT, "No such file", "elsewhere")

    with pytest.raises(FileNotFoundError):
        publish(tmp_path, WORK, lost, print)


def _publish_slowly(results, text, done):
    def make(path):
        path.write_text(text)
        time.sleep(0.5)
        return Outcome()

    publish(results, WORK, make, lambda line: None)
    done.put(text)


def test_two_processes_that_make_the_same_result_both_end_well(tmp_path):
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    both = [
        context.Process(target=_publish_slowly, args=(tmp_path, text, done)) for text in ("a", "b")
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    manifest = read(folder(tmp_path, WORK))
    assert manifest.digest == tree_digest(payload(tmp_path, WORK))


def _publish_and_die(results, moment):
    def make(path):
        path.mkdir()
        for number in range(50):
            (path / str(number)).write_text("x" * 1000)
            if number == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        return Outcome()

    publish(results, WORK, make, lambda line: None)


@pytest.mark.parametrize("moment", [0, 25, 49])
def test_a_killed_writer_leaves_nothing_half_published(tmp_path, moment):
    process = multiprocessing.get_context("spawn").Process(
        target=_publish_and_die, args=(tmp_path, moment)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert read(folder(tmp_path, WORK)) is None
    assert not payload(tmp_path, WORK).exists()
    assert "did not come to an end" in failure.read(folder(tmp_path, WORK))
    publish(tmp_path, WORK, writer("whole"), print)
    assert payload(tmp_path, WORK).read_text() == "whole"
    assert failure.read(folder(tmp_path, WORK)) is None
    assert not list(folder(tmp_path, WORK).glob("*.tmp"))


def test_the_digest_of_a_tree_sees_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    one = tree_digest(tmp_path / "a")
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    two = tree_digest(tmp_path / "a")
    (tmp_path / "a" / "y").write_text("2")
    assert len({one, two, tree_digest(tmp_path / "a")}) == 3
