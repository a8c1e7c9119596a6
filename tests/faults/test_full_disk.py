"""A disk that is full or read-only: a sentence, nothing half-published, and later the same end."""

import shutil

import pytest
import yaml
from small import STUDY, Small

from widthlab.store.publish import PAYLOADS, folder

PAGES = (0, 1, 2, 3, 5, 8, 13, 21)
"""How much a disk is let take before it is full, in pages of 4 kB."""
STAGES = tuple(PAYLOADS)


@pytest.fixture
def on_disk(undisturbed, disk, tmp_path):
    """The small study with all results on a small disk, and the rest elsewhere."""
    disk.grow("8m")
    shutil.copytree(undisturbed.results, disk.folder / "results")
    return Small(undisturbed.processes, tmp_path / "home", disk.folder / "results")


def sentence(done, disk):
    """Return the one line that a command that cannot write says."""
    assert done.code == 1
    (line,) = done.terminal.splitlines()
    assert line.startswith(f"Error: cannot write {disk.folder}/")
    return line


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_a_sentence_and_room_is_all_it_takes(undisturbed, on_disk, disk, stage):
    work = on_disk.only(stage)
    shutil.rmtree(folder(on_disk.results, work))
    others = on_disk.digests()
    failures = 0
    for pages in PAGES:
        disk.fill(left=4096 * pages)
        done = on_disk.run(work)
        if done.code == 0:
            break
        failures += 1
        assert "No space left on device" in sentence(done, disk)
        assert on_disk.digests() == others
        disk.clear()
    assert failures >= 3
    disk.clear()
    disk.fill()
    disk.grow("16m")
    assert on_disk.run(work).code == 0
    assert on_disk.digests() == undisturbed.digests()
    assert on_disk.leftovers() == []


@pytest.mark.parametrize("stage", ["train", "extract"])
def test_a_batch_stops_where_the_disk_is_full(undisturbed, on_disk, disk, stage):
    before = shutil.disk_usage(disk.folder).free
    on_disk.remove(stage)
    room = shutil.disk_usage(disk.folder).free - before
    disk.fill(left=room * 3 // 4)
    assert "No space left on device" in sentence(on_disk.run(on_disk.batch(stage)), disk)
    made = on_disk.finished(stage)
    assert 0 < len(made) < len(on_disk.stage(stage))
    assert on_disk.digests().items() <= undisturbed.digests().items()
    disk.grow("16m")
    assert on_disk.run(on_disk.batch(stage)).code == 0
    assert on_disk.digests() == undisturbed.digests()
    assert on_disk.leftovers() == []


def test_a_log_that_cannot_be_written_is_on_the_terminal(undisturbed, small, disk):
    work = small.only("extract")
    for log in (disk.folder / "full.log", disk.folder / "read-only.log"):
        shutil.rmtree(folder(small.results, work))
        if log.stem == "full":
            disk.fill()
        else:
            disk.read_only()
        done = small.run(work, log=log)
        assert done.code == 0, done.terminal
        first, *others = done.terminal.splitlines()
        assert first.startswith(f"Warning: cannot write the log {log}: ")
        assert first.partition(f"{log}: ")[2].startswith(
            "No space left on device" if log.stem == "full" else "Read-only file system"
        )
        assert others[-1] == f"{work.address}: measured"
    assert small.digests() == undisturbed.digests()


@pytest.mark.parametrize("stage", STAGES)
def test_a_read_only_folder_is_a_sentence(undisturbed, on_disk, disk, stage):
    work = on_disk.only(stage)
    home = folder(on_disk.results, work)
    shutil.rmtree(home)
    disk.read_only()
    assert "Read-only file system" in sentence(on_disk.run(work), disk)
    assert not home.exists()
    disk.read_only(False)
    assert on_disk.run(work).code == 0
    assert on_disk.digests() == undisturbed.digests()


def test_a_finished_study_is_read_from_a_read_only_folder(undisturbed, on_disk, disk):
    disk.read_only()
    for work in on_disk.plan.all_work():
        assert on_disk.run(work).code == 0
        assert on_disk.log(work).read_text().endswith(f"{work.address} is already there\n")
    given = STUDY.model_dump(mode="json", exclude_none=True) | {"results": str(on_disk.results)}
    (on_disk.home / "config.yaml").write_text(yaml.safe_dump(given))
    assert on_disk.command("ls", "--missing").terminal == ""
    done = on_disk.command("report")
    assert (done.code, done.terminal) == (0, "reports/small/index.html\n")
    assert on_disk.command("claims", "--json").code == 0
