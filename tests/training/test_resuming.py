"""A run that is killed, interrupted or damaged ends with the very same bits."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import runs

from widthlab import training
from widthlab.checkpoints.scratch import CURRENT, PREVIOUS
from widthlab.errors import WidthlabError
from widthlab.training import Interrupted

OPTIMISERS = [
    {"optimiser": "sgd", "momentum": 0.9, "learning_rate": 0.01},
    {"optimiser": "adam", "learning_rate": 0.01},
]


@pytest.fixture
def reference(tmp_path):
    """Digests of an uninterrupted run with momentum, and its specification."""
    spec = runs.checkpoint(**OPTIMISERS[0])
    assert runs.run(spec, tmp_path / "reference").status == "finished"
    return spec, runs.digests(tmp_path / "reference")


def _in_process(processes, function, *args):
    """Call a function in a process of its own and return the exit code."""
    child = processes.Process(target=function, args=args)
    child.start()
    child.join(60)
    return child.exitcode


def _killed(processes, spec, folder, step, pause):
    """Train in a process that is killed `pause` seconds after it has taken `step` steps."""
    counter = processes.Value("i", 0)
    child = processes.Process(target=runs.run_counting, args=(spec, folder, counter))
    child.start()
    while counter.value < step and child.exitcode is None:
        time.sleep(0.0005)
    time.sleep(pause)
    child.kill()
    child.join(60)
    return child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["sgd", "adam"])
def test_killed_at_random_moments(processes, tmp_path, optimiser):
    spec = runs.checkpoint(steps=150, save_every=7, snapshots=12, **optimiser)
    assert runs.run(spec, tmp_path / "reference").status == "finished"
    rng = np.random.default_rng(0)
    kills = 0
    for step in (2, *np.sort(rng.integers(10, 130, size=4))):
        kills += _killed(processes, spec, tmp_path / "killed", step, rng.uniform(0, 0.01))
        # An unpublished result is removed before the next attempt; only scratch is kept.
        shutil.rmtree(tmp_path / "killed" / "out", ignore_errors=True)
    assert kills >= 2
    lines = []
    runs.run(spec, tmp_path / "killed", lines.append)
    assert "resuming after step" in lines[1]
    assert runs.digests(tmp_path / "killed") == runs.digests(tmp_path / "reference")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 3, 8, 9, 10, 16, 17])
def test_killed_between_any_two_files(processes, reference, tmp_path, number, after):
    spec, expected = reference
    target = runs.run_with_death_at_rename
    code = _in_process(processes, target, spec, tmp_path / "run", number, after)
    assert code == -signal.SIGKILL
    (tmp_path / "run" / "scratch" / f"{CURRENT}.part").write_bytes(b"half a fi")
    runs.run(spec, tmp_path / "run")
    assert runs.digests(tmp_path / "run") == expected


class StopHereError(Exception):
    pass


def _stop_at(spec, folder, step):
    """Train up to a save at `step` and stop, as if killed right after it."""

    save = training.save_state

    def saving(place, identity, state, *rest):
        save(place, identity, state, *rest)
        if state.step == step:
            raise StopHereError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "save_state", saving)
        with pytest.raises(StopHereError):
            runs.run(spec, folder)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [_truncate, _flip, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize(
    ("files", "resumed"), [((CURRENT,), 20), ((CURRENT, PREVIOUS), None), ((PREVIOUS,), 25)]
)
def test_damaged_states_are_moved_aside(reference, tmp_path, damage, files, resumed):
    spec, expected = reference
    _stop_at(spec, tmp_path / "run", 25)
    scratch = tmp_path / "run" / "scratch"
    for name in files:
        damage(scratch / name)
    lines = []
    runs.run(spec, tmp_path / "run", lines.append)
    text = "\n".join(lines)
    assert runs.digests(tmp_path / "run") == expected
    assert (f"resuming after step {resumed} of 40" in text) == (resumed is not None)
    if CURRENT in files:
        assert "is damaged and was moved" in text
        assert (scratch / f"{CURRENT}.damaged").exists()


@pytest.mark.parametrize("damage", [_truncate, lambda path: path.unlink()])
def test_damaged_snapshots_are_made_again(reference, tmp_path, damage):
    spec, expected = reference
    _stop_at(spec, tmp_path / "run", 25)
    damage(tmp_path / "run" / "scratch" / "step-0000001.safetensors")
    lines = []
    runs.run(spec, tmp_path / "run", lines.append)
    assert "step-0000001.safetensors is missing or damaged" in "\n".join(lines)
    assert runs.digests(tmp_path / "run") == expected


def test_the_state_of_another_run_is_not_used(tmp_path):
    other = runs.checkpoint(seed=1, **OPTIMISERS[0])
    _stop_at(runs.checkpoint(**OPTIMISERS[0]), tmp_path / "run", 25)
    lines = []
    runs.run(other, tmp_path / "run", lines.append)
    runs.run(other, tmp_path / "reference")
    assert "belongs to another run" in "\n".join(lines)
    assert runs.digests(tmp_path / "run") == runs.digests(tmp_path / "reference")


def test_a_finished_run_is_only_copied_again(reference, tmp_path):
    spec, expected = reference
    shutil.rmtree(tmp_path / "reference" / "out")
    lines = []
    summary = runs.run(spec, tmp_path / "reference", lines.append)
    assert "resuming after step 40 of 40" in "\n".join(lines)
    assert summary.snapshots[-1] == 40
    assert runs.digests(tmp_path / "reference") == expected


def test_saving_by_time_changes_nothing(reference, tmp_path, monkeypatch):
    spec, expected = reference
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    runs.run(spec, tmp_path / "run")
    assert runs.digests(tmp_path / "run") == expected


def test_sigterm_saves_and_the_next_run_goes_on(reference, tmp_path):
    spec, expected = reference
    seen = []

    def log(line):
        if line.startswith("step 13/"):
            os.kill(os.getpid(), signal.SIGTERM)
        seen.append(line)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "LOG_SECONDS", 0.0)
        with pytest.raises(Interrupted, match="after step 13"):
            runs.run(spec, tmp_path / "run", log)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "run" / "out").exists()
    lines = []
    runs.run(spec, tmp_path / "run", lines.append)
    assert "resuming after step 13 of 40" in "\n".join(lines)
    assert runs.digests(tmp_path / "run") == expected


def test_sigterm_after_the_last_step_is_heard_outside(reference, tmp_path):
    spec, expected = reference

    def log(line):
        if line.startswith("finished after"):
            os.kill(os.getpid(), signal.SIGTERM)

    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        runs.run(spec, tmp_path / "run", log)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert runs.digests(tmp_path / "run") == expected


def test_training_outside_the_main_thread_leaves_signals_alone(reference, tmp_path):
    spec, expected = reference
    worker = threading.Thread(target=runs.run, args=(spec, tmp_path / "run"))
    worker.start()
    worker.join()
    assert runs.digests(tmp_path / "run") == expected


def test_a_snapshot_that_another_writer_changed_is_not_published(reference, tmp_path):
    spec, expected = reference
    folder = tmp_path / "run"

    def log(line):
        if line.startswith("finished after"):
            _flip(training.snapshot_path(folder / "scratch", 0))

    with pytest.raises(WidthlabError, match="repeat the command"):
        runs.run(spec, folder, log)
    shutil.rmtree(folder / "out")
    runs.run(spec, folder)
    assert runs.digests(folder) == expected
