"""Stages killed at random moments: nothing looks finished that is not, and nothing is lost."""

import random
import shutil
import signal
import time

import pytest
from small import killing, seconds

from widthlab.interruption import RETRY
from widthlab.store.publish import folder

KILLS = 25
IN_BATCHES = 15
STOPS = 10


def strike(small, what, span, rng):
    """Start a command and kill it at a random moment; return whether it still ran, and a span.

    The span, over which moments are drawn, is corrected where the command was through too early.
    """
    running = small.start(what)
    time.sleep(rng.uniform(0, span))
    hit = running.kill()
    return hit, span if hit else 0.8 * span


@pytest.mark.parametrize("stage", ["data", "train", "extract", "sweep"])
def test_killed_at_random_moments(undisturbed, small, stage):
    work = small.only(stage)
    home = folder(small.results, work)
    shutil.rmtree(home)
    span = seconds(small.start(work))
    shutil.rmtree(home)
    rng, kills, made = random.Random(stage), 0, 0
    while kills < KILLS:
        hit, span = strike(small, work, span, rng)
        kills += hit
        found = small.digests()
        assert found.items() <= undisturbed.digests().items()
        if work.address in found:
            made += 1
            assert made < 4 * KILLS, "it is too quick to be killed"
            shutil.rmtree(home)
    done = small.run(work)
    assert done.code == 0, done.terminal
    assert small.digests() == undisturbed.digests()
    assert small.leftovers() == []


@pytest.mark.parametrize("stage", ["train", "extract"])
def test_a_killed_batch_loses_the_piece_at_hand_only(undisturbed, small, stage):
    batch = small.batch(stage)
    small.remove(stage)
    span = seconds(small.start(batch))
    small.remove(stage)
    rng, kills, partly = random.Random(stage), 0, 0
    words = {"train": "finished after 300 steps", "extract": ": measured"}[stage]
    while kills < IN_BATCHES:
        before = small.finished(stage)
        hit, span = strike(small, batch, span, rng)
        kills += hit
        after = small.finished(stage)
        assert small.digests().items() <= undisturbed.digests().items()
        assert before <= after
        # Those that were finished are not made again: a line for each piece made, and one for the
        # piece that was at hand.
        log = small.log(batch).read_text() if small.log(batch).exists() else ""
        assert log.count(words) in (len(after - before), len(after - before) + 1)
        partly += 0 < len(after) < len(batch.works)
        if len(after) == len(batch.works):
            small.remove(stage)
    assert partly > 0
    assert small.run(batch).code == 0
    assert small.digests() == undisturbed.digests()
    assert small.leftovers() == []


@pytest.mark.parametrize("stage", ["train", "extract", "sweep"])
def test_asked_to_stop_at_random_moments(undisturbed, small, stage):
    work = small.only(stage)
    home = folder(small.results, work)
    shutil.rmtree(home)
    span = seconds(small.start(work))
    shutil.rmtree(home)
    rng, stops, made = random.Random(stage), 0, 0
    while stops < STOPS:
        running = small.start(work)
        time.sleep(rng.uniform(0, span))
        done = running.stop()
        # Before the stage has begun and after its end there is nothing to save.
        assert done.code in (0, RETRY, -signal.SIGTERM), done.terminal
        assert done.terminal == ""
        stops += done.code == RETRY
        span = 0.8 * span if done.code == 0 else span
        assert small.digests().items() <= undisturbed.digests().items()
        if small.is_finished(work):
            made += 1
            assert made < 4 * STOPS, "it is too quick to be stopped"
            shutil.rmtree(home)
    assert small.run(work).code == 0
    assert small.digests() == undisturbed.digests()
    assert small.leftovers() == []


def test_a_cell_that_always_kills_its_process_goes_last(undisturbed, small):
    batch = small.batch("extract")
    small.remove("extract")
    _, *others = (work.address for work in batch.works)
    assert small.run(batch, fault=killing).code == -signal.SIGKILL
    assert small.finished("extract") == set()
    for _ in range(2):
        assert small.run(batch, fault=killing).code == -signal.SIGKILL
        assert small.finished("extract") == set(others)
    assert small.log(batch).read_text().count("is already there") == len(others)
    assert small.run(batch).code == 0
    assert small.digests() == undisturbed.digests()
    assert small.leftovers() == []
