"""What gc may delete: nothing that anybody needs, and never by halves."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner
from shelves import CELL, CHAIN, DATA, SWEEP, TRAIN, age, forget, make, tree, weight, work

from widthlab import cli, study
from widthlab.plan import Plan
from widthlab.store import inventory
from widthlab.store.keeping import Needs, delete, surplus, total
from widthlab.store.lease import Lease
from widthlab.store.manifest import MANIFEST, read
from widthlab.store.publish import LEASE, finished, folder, payload, scratch
from widthlab.store.verifying import verify

NOBODY = Needs(frozenset(), frozenset())


@pytest.fixture
def results(tmp_path):
    """A chain of results, ten days old."""
    make(tmp_path / "results", *CHAIN, days=10)
    return tmp_path / "results"


def gone(found):
    """Return the addresses of the results that can be deleted."""
    return sorted(item.path.name for item in found.items if item.kind == "results")


def addresses(*works):
    return sorted(each.address for each in works)


# ── what stays ──────────────────────────────────────────────────────────────────────────────


def test_what_nobody_needs_can_go(results):
    found = surplus(results, NOBODY, 1)
    assert gone(found) == addresses(*CHAIN)
    assert found.size.bytes == weight(results)
    sizes = [item.size.bytes for item in found.items]
    assert sizes == sorted(sizes, reverse=True)


def test_looking_changes_nothing(results):
    (folder(results, DATA) / "data.safetensors.tmp").write_text("half")
    before = tree(results)
    assert surplus(results, NOBODY, 0).items
    assert tree(results) == before


def test_what_the_study_or_a_version_needs_stays_with_its_inputs(results):
    other = work("train", "mlp-w16", DATA)
    make(results, other, days=10)
    assert gone(surplus(results, Needs({SWEEP.address}, set()), 1)) == [other.address]
    assert gone(surplus(results, Needs(set(), {SWEEP.address}), 1)) == [other.address]
    assert gone(surplus(results, Needs({other.address}, set()), 1)) == addresses(TRAIN, CELL, SWEEP)


def test_the_inputs_of_planned_work_stay_before_it_is_made(results):
    shutil.rmtree(folder(results, CELL))
    needs = Needs({CELL.address}, set(), {CELL.address: [DATA.address, TRAIN.address]})
    assert gone(surplus(results, needs, 1)) == [SWEEP.address]


def test_what_is_young_stays_with_its_inputs(results):
    age(folder(results, CELL), 0.5)
    found = surplus(results, NOBODY, 1)
    assert gone(found) == [SWEEP.address]
    assert found.young == 3
    assert gone(surplus(results, NOBODY, 0.25)) == addresses(*CHAIN)
    assert gone(surplus(results, NOBODY, 0)) == addresses(*CHAIN)
    assert gone(surplus(results, NOBODY, 11)) == []


def test_a_time_in_the_future_is_young(results):
    age(results, -3)
    assert gone(surplus(results, NOBODY, 1)) == []
    assert gone(surplus(results, NOBODY, 0)) == addresses(*CHAIN)


HOLD = """
import sys, time
from pathlib import Path
from widthlab.store.lease import Lease
with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def job():
    """Start a process that holds a result's lease, as a job does."""
    jobs = []

    def start(home):
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", HOLD, str(home / LEASE)]
        jobs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert jobs[-1].stdout.readline() == "held\n"
        return jobs[-1]

    yield start
    for each in jobs:
        each.kill()
        each.wait()
        each.stdout.close()


def test_a_running_job_of_the_study_keeps_itself_and_its_inputs(results, job):
    forget(results, CELL)
    process = job(folder(results, CELL))
    needs = Needs(set(), set(), {CELL.address: [DATA.address, TRAIN.address]})
    found = surplus(results, needs, 0)
    assert [item.path.name for item in found.items] == [SWEEP.address]
    assert [entry.address for entry in found.running] == [CELL.address]
    process.kill()
    process.wait()
    left = surplus(results, NOBODY, 0)
    assert not left.running
    assert sorted(item.path.name for item in left.items) == addresses(*CHAIN)


def test_a_running_job_that_nobody_knows_keeps_all_that_it_may_read(results, job):
    job(results / "cells" / "variance-w8-ba9876543210")
    found = surplus(results, NOBODY, 0)
    assert gone(found) == addresses(CELL, SWEEP)
    assert sorted(entry.address for entry in found.guarded) == addresses(DATA, TRAIN)


def test_while_a_job_that_nobody_knows_runs_receipts_and_training_states_stay(results, job):
    """Other jobs of its run wait for the receipts, or wait in a queue to go on with training."""
    waiting = scratch(results, work("train", "mlp-w64"))
    receipt = results / "receipts" / "train" / "batch-1"
    for path in (waiting / "state.safetensors", receipt):
        path.parent.mkdir(parents=True)
        path.write_text("state")
    process = job(results / "cells" / "variance-w8-ba9876543210")
    kinds = {"receipts", "training states"}
    assert not kinds & {item.kind for item in surplus(results, NOBODY, 0).items}
    process.kill()
    process.wait()
    assert kinds <= {item.kind for item in surplus(results, NOBODY, 0).items}


def test_a_forgotten_lease_of_another_machine_does_not_run(results):
    with Lease(folder(results, CELL) / LEASE):
        text = (folder(results, CELL) / LEASE).read_text()
    (folder(results, CELL) / LEASE).write_text(text.replace(os.uname().nodename, "elsewhere"))
    assert surplus(results, NOBODY, 1).running
    age(folder(results, CELL) / LEASE, 2)
    assert not surplus(results, NOBODY, 1).running


def test_training_states_go_once_nobody_will_go_on_from_them(results):
    unfinished, unknown = work("train", "mlp-w32"), work("train", "mlp-w64")
    for each in (TRAIN, unfinished, unknown):
        scratch(results, each).mkdir(parents=True)
        (scratch(results, each) / "state.safetensors").write_text("state")
        age(scratch(results, each), 2)
    needs = Needs({SWEEP.address, unfinished.address}, set())
    found = surplus(results, needs, 1)
    assert {item.path for item in found.items} == {
        scratch(results, TRAIN),
        scratch(results, unknown),
    }
    assert {item.kind for item in found.items} == {"training states"}


def test_a_training_that_runs_keeps_its_state(results, job):
    scratch(results, TRAIN).mkdir(parents=True)
    job(folder(results, TRAIN))
    assert scratch(results, TRAIN) not in [i.path for i in surplus(results, NOBODY, 0).items]


def test_rubbish_goes_from_what_stays(results):
    home = folder(results, TRAIN)
    (home / "snapshots.damaged-1").mkdir()
    (home / "snapshots.damaged-1" / "part-0").write_text("damaged")
    (home / f"{MANIFEST}.damaged-1").write_text("damaged")
    (home / "snapshots.tmp").write_text("half")
    (results / "receipts" / "train").mkdir(parents=True)
    (results / "receipts" / "train" / "batch-1").write_text("done")
    (results / "receipts" / "train" / "batch-2").write_text("done")
    (results / "downloads").mkdir()
    (results / "downloads" / "cifar.tar.gz").write_text("big")
    before = verify(results).intact
    needs = Needs({SWEEP.address}, set(), receipts={"batch-2"})
    found = surplus(results, needs, 0)
    assert sorted((item.kind, item.path.name) for item in found.items) == [
        ("damaged copies", f"{MANIFEST}.damaged-1"),
        ("damaged copies", "snapshots.damaged-1"),
        ("leftovers", "snapshots.tmp"),
        ("receipts", "batch-1"),
    ]
    assert not delete(found.items).skipped
    assert verify(results).intact == before
    assert not surplus(results, needs, 0).items
    assert (results / "downloads" / "cifar.tar.gz").exists()


def test_a_failed_attempt_of_the_study_is_remembered(results):
    home = results / "cells" / "drift-w16-ba9876543210"
    home.mkdir()
    (home / "failure.json").write_text("{}")
    assert not surplus(results, Needs({SWEEP.address, home.name}, set()), 0).items
    (item,) = surplus(results, Needs({SWEEP.address}, set()), 0).items
    assert (item.kind, item.path) == ("unfinished results", home)


# ── deleting ────────────────────────────────────────────────────────────────────────────────


def test_what_is_deleted_is_what_was_announced(results):
    found = surplus(results, Needs({TRAIN.address}, set()), 1)
    before, announced = weight(results), found.size
    done = delete(found.items)
    assert not done.skipped
    assert total(done.deleted) == announced
    assert weight(results) == before - announced.bytes
    assert sorted(path.name for path in results.glob("*/*")) == addresses(DATA, TRAIN)
    assert not surplus(results, Needs({TRAIN.address}, set()), 0).items


def test_what_a_job_takes_in_hand_after_the_listing_stays(results, job):
    found = surplus(results, NOBODY, 1)
    job(folder(results, TRAIN))
    done = delete(found.items)
    ((item, reason),) = done.skipped
    assert item.path == folder(results, TRAIN)
    assert "has it in hand" in reason
    assert finished(results, TRAIN)


def test_what_is_made_anew_after_the_listing_stays(results):
    found = surplus(results, NOBODY, 1)
    shutil.rmtree(folder(results, TRAIN))
    make(results, TRAIN)
    done = delete(found.items)
    ((item, reason),) = done.skipped
    assert item.path == folder(results, TRAIN)
    assert "changed" in reason
    assert finished(results, TRAIN)


def test_what_somebody_else_deletes_meanwhile_is_no_error_for_the_rest(results):
    found = surplus(results, NOBODY, 1)
    shutil.rmtree(folder(results, TRAIN))
    done = delete(found.items)
    assert [item.path for item, _ in done.skipped] == [folder(results, TRAIN)]
    assert len(done.deleted) == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from widthlab.store.keeping import Needs, delete, surplus

def case(results, moment):
    count = 0
    def watch(event, arguments):
        nonlocal count
        if event in ("os.remove", "os.rename", "os.rmdir"):
            count += 1
            if count > moment:
                os.kill(os.getpid(), signal.SIGKILL)
    items = surplus(results, Needs(set(), set()), 0).items
    sys.addaudithook(watch)
    delete(items)

for moment, results in enumerate(sys.argv[1:]):
    child = os.fork()
    if child == 0:
        case(Path(results), moment)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_kill_at_any_moment_leaves_nothing_that_looks_finished_and_is_not(tmp_path):
    first = tmp_path / "0"
    make(first, DATA, TRAIN, days=10)
    cases = [first, *(shutil.copytree(first, tmp_path / str(number)) for number in range(1, 24))]
    words = [sys.executable, "-c", KILLED, *map(str, cases)]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    codes = [int(line) for line in output.split()]
    assert codes[:8] == [-signal.SIGKILL] * 8
    assert codes[-1] == 0  # all moments were tried
    for results in cases:
        assert only_manifests_are_missing(results)
        assert not delete(surplus(results, NOBODY, 0).items).skipped
        assert weight(results) == 0
    for results in cases[:12:3]:
        make(results, DATA, TRAIN)
        assert verify(results).intact == 2


def test_random_kills_while_results_are_deleted(tmp_path):
    rng = random.Random(0)
    make(tmp_path / "one", TRAIN, files=200)
    for number in range(5):
        results = tmp_path / str(number)
        for copy in range(10):
            home = results / "checkpoints" / f"mlp-w{copy}-0123456789ab"
            shutil.copytree(folder(tmp_path / "one", TRAIN), home)
            replace(read(home), address=home.name).write(home)
        script = "from sys import argv; from pathlib import Path; from widthlab.store.keeping "
        script += "import *; s = surplus(Path(argv[1]), Needs([], []), 0).items; "
        script += "print(flush=True); delete(s)"
        words = [sys.executable, "-c", script, str(results)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            process.kill()
        assert only_manifests_are_missing(results)


def only_manifests_are_missing(results):
    return all("has no manifest" in damage.problem for damage in verify(results).damaged)


# ── at the shell ────────────────────────────────────────────────────────────────────────────


STUDY = {
    "name": "small",
    "experiments": {
        "variance": {
            "models": {"relu": {"name": "mlp"}},
            "width": [4, 8],
            "depth": 1,
            "draws": 8,
            "inputs": 2,
            "data": {"name": "gaussian", "dimension": 4, "train_samples": 16, "test_samples": 8},
        }
    },
}


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A folder with a study, its results, and older ones that nobody needs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(STUDY))
    results = tmp_path / "results"
    make(results, *Plan.of(study.parse(STUDY)).all_work(), days=10)
    make(results, *CHAIN, days=5)
    return results


def run(*arguments):
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def number(text, before):
    """Return the number of bytes that an output names."""
    (line,) = [line for line in text.splitlines() if line.startswith(before)]
    return int(line.removeprefix(before).split()[0].replace(",", ""))


def test_gc_says_what_it_would_free_and_frees_it(house):
    before = tree(house)
    code, said = run("gc")
    assert code == 0, said
    assert tree(house) == before
    assert "widthlab gc --older-than 1 --delete" in said
    assert "others that ran here lately" in said
    code, done = run("gc", "--older-than", "1", "--delete")
    assert code == 0, done
    freed = number(done, "freed:")
    assert freed == number(said, "can be freed:") > 0
    assert weight(house) == sum(map(len, before.values())) - freed
    left = {path.name for path in house.glob("*/*")}
    assert left == {each.address for each in Plan.of(study.parse(STUDY)).all_work()}
    assert "can be freed: 0 bytes" in run("gc", "--older-than", "0")[1]


def test_gc_keeps_the_young_unless_it_is_told_not_to(house):
    age(house, 0.5)
    assert "can be freed: 0 bytes" in run("gc")[1]
    assert number(run("gc", "--older-than", "0")[1], "can be freed:") > 0


def test_gc_deletes_nothing_without_a_study(house):
    before = tree(house)
    code, said = run("gc", "--older-than", "0", "--delete", "--study", "other.yaml")
    assert code == 1
    assert "cannot read the study other.yaml" in said
    assert "Nothing was deleted" in said
    (house.parent / "config.yaml").write_text("name: small\nexperiments: {variance: {width: 3}}")
    code, said = run("gc", "--older-than", "0", "--delete")
    assert code == 1
    assert "Nothing was deleted" in said
    assert tree(house) == before


def test_gc_deletes_nothing_where_the_archive_that_the_study_names_is_away(house):
    before = tree(house)
    config = {**STUDY, "archive": str(house.parent / "unmounted")}
    (house.parent / "config.yaml").write_text(yaml.safe_dump(config))
    code, said = run("gc", "--older-than", "0", "--delete")
    assert code == 1
    assert "there is no archive at" in said
    assert tree(house) == before


def test_verify_names_damage_and_moves_it_aside_when_told(house):
    assert run("verify")[0] == 0
    (payload(house, TRAIN) / "part-0").write_text("other")
    code, said = run("verify")
    assert code == 1
    assert f"checkpoints/{TRAIN.address}: snapshots differs" in said
    assert "widthlab verify --set-aside" in said
    code, said = run("verify", "--set-aside")
    assert code == 1
    assert "snapshots.damaged-1" in said
    assert run("verify")[0] == 0


def test_an_unknown_version_is_refused_before_anything_is_read(house):
    code, said = run("verify", "v1")
    assert code == 1
    assert "there is no archive" in said


def test_sizes_are_those_of_files(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "y").write_bytes(b"123")
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    assert inventory.size(tmp_path / "a").files == 3
    assert inventory.size(tmp_path / "a").bytes == 8 + len(str(tmp_path))
    assert inventory.size(tmp_path / "gone") == inventory.Size()
