"""Publishing: whole or not at all, one writer, never twice, nothing lost."""

import errno
import json
import multiprocessing
import os
import signal
import time

import pytest

from widthlab.costs import Cost
from widthlab.errors import WidthlabError
from widthlab.plan import Work
from widthlab.store import failure
from widthlab.store.manifest import MANIFEST, TWIN, load, read, tree_digest
from widthlab.store.publish import Outcome, folder, payload, publish, scratch

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
    assert first == second == load(folder(tmp_path, WORK))
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


def test_a_deleted_manifest_is_written_again_without_computing(tmp_path):
    before = publish(tmp_path, WORK, writer("one"), print)
    (folder(tmp_path, WORK) / MANIFEST).unlink()
    calls, lines = [], []
    after = publish(tmp_path, WORK, writer("two", calls), lines.append)
    assert after == before
    assert not calls
    assert "written again" in lines[0]


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


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": 1}'])
def test_a_damaged_manifest_is_none(tmp_path, text):
    publish(tmp_path, WORK, writer("one"), print)
    home = folder(tmp_path, WORK)
    (home / MANIFEST).write_text(text)
    assert read(home) is None
    assert load(home).address == WORK.address
    (home / TWIN).write_text(text)
    with pytest.raises(WidthlabError, match="no finished result"):
        load(home)
    publish(tmp_path, WORK, writer("two"), print)
    assert payload(tmp_path, WORK).read_text() == "two"
    assert json.loads((home / MANIFEST).read_text())["address"] == WORK.address


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
    manifest = load(folder(tmp_path, WORK))
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
    publish(tmp_path, WORK, writer("whole"), print)
    assert payload(tmp_path, WORK).read_text() == "whole"


def test_the_digest_of_a_tree_sees_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    one = tree_digest(tmp_path / "a")
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    two = tree_digest(tmp_path / "a")
    (tmp_path / "a" / "y").write_text("2")
    assert len({one, two, tree_digest(tmp_path / "a")}) == 3
