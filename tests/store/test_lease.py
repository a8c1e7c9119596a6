"""The lease: one owner at a time, whoever dies, stops or sees a clock jump."""

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from widthlab.store import lease
from widthlab.store.lease import Lease, Lost, Owner, Taken, owner

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
QUICK = {"beat": 0.05, "patience": 0.6}

HOLD = """
import signal, sys
from pathlib import Path
from widthlab.store import lease

path, place, beat, patience = Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:5])
if place:
    lease._place = lambda: place

def stop(*_):
    raise SystemExit(7)

signal.signal(signal.SIGTERM, stop)
print("begun", flush=True)
with lease.Lease(path, beat=beat, patience=patience) as held:
    print("held", flush=True)
    for line in sys.stdin:
        try:
            held.check()
            print("ours", flush=True)
        except lease.Lost:
            print("lost", flush=True)
"""


class Process:
    """Another process, which says what it does line by line."""

    def __init__(self, script, *words, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def says(self):
        return self.process.stdout.readline().strip()

    def ask(self):
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.says()

    def send(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        return self.process.wait(30)


@pytest.fixture
def start():
    started = []

    def begin(*words, **environment):
        started.append(Process(*words, **environment))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.process.stdout.close()
        one.process.stdin.close()


@pytest.fixture
def hold(start, tmp_path):
    """Start a process that holds the lease, or waits for it."""

    def begin(place="", beat=0.05, patience=30.0, **environment):
        one = start(HOLD, tmp_path / ".lease", place, beat, patience, **environment)
        assert one.says() == "begun"
        return one

    return begin


@pytest.fixture
def path(tmp_path):
    return tmp_path / ".lease"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_lease_is_held_and_given_back(path):
    with Lease(path) as held:
        assert names(path.parent) == [".lease"]
        assert owner(path).pid == os.getpid()
        held.check()
        with pytest.raises(Taken, match=f"process {os.getpid()} on") as taken, Lease(
            path, wait=False
        ):
            pass
        assert taken.value.owner == owner(path)
        held.check()
    assert names(path.parent) == []
    assert owner(path) is None
    with pytest.raises(Lost):
        held.check()
    assert "lease" not in [thread.name for thread in threading.enumerate()]


def test_it_is_light_to_import():
    script = "import sys, widthlab.store.lease; print(*{'torch', 'numpy', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_waiter_enters_when_the_owner_leaves(path, hold):
    first, second = hold(), hold()
    assert first.says() == "held"
    assert first.end() == 0
    assert second.says() == "held"
    assert second.ask() == "ours"
    assert second.end() == 0
    assert names(path.parent) == []


CONTEND = """
import os, random, sys, time
from pathlib import Path
from widthlab.store.lease import Lease

folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
me = f"{os.getpid()}"
log = os.open(folder / "log", os.O_RDWR | os.O_APPEND)

def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False

def last():
    text = os.pread(log, 100, max(0, os.fstat(log).st_size - 100)).decode()
    return text.splitlines()[-1].split() if text else ["leave", "0"]

for _ in range(rounds):
    with Lease(folder / ".lease", beat=0.01, patience=60) as held:
        word, other = last()
        if word == "enter" and alive(other):
            os.write(log, f"two {me}\\n".encode())
        os.write(log, f"enter {me}\\n".encode())
        time.sleep(chance.choice([0, 0, 0.002]))
        held.check()
        if last() != ["enter", me]:
            os.write(log, f"two {me}\\n".encode())
        os.write(log, f"leave {me}\\n".encode())
"""


def test_many_contend_and_are_killed_and_never_two_are_inside(path, start):
    folder, chance = path.parent, random.Random(0)
    (folder / "log").touch()
    begun = 0

    def begin():
        nonlocal begun
        begun += 1
        return start(CONTEND, folder, 12, begun)

    crowd = [begin() for _ in range(8)]
    killed = set()
    for _ in range(40):
        time.sleep(chance.uniform(0, 0.12))
        victim = crowd.pop(chance.randrange(len(crowd)))
        victim.kill()
        killed.add(victim.process.pid)
        crowd.append(begin())
    assert [one.process.wait(60) for one in crowd] == [0] * len(crowd)
    events = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert "two" not in [word for word, _ in events]
    entered = Counter(pid for word, pid in events if word == "enter")
    left = Counter(pid for word, pid in events if word == "leave")
    died_inside = {int(pid) for pid in entered if entered[pid] > left[pid]}
    assert died_inside, "no process was killed inside; the test tests nothing"
    assert died_inside <= killed
    assert all(entered[str(one.process.pid)] == 12 for one in crowd)
    assert names(folder) == ["log"]


def test_a_dead_owner_on_this_host_is_known_at_once(path, hold):
    first = hold(patience=1000)
    assert first.says() == "held"
    assert owner(path).pid == first.process.pid
    first.send(signal.SIGKILL)
    os.waitid(os.P_PID, first.process.pid, os.WEXITED | os.WNOWAIT)
    assert owner(path) is None, "a process that is dead but not buried is dead"
    first.kill()
    assert owner(path) is None
    with Lease(path, wait=False, patience=1000) as held:
        held.check()
    assert names(path.parent) == []


def test_a_number_that_is_used_again_is_another_process(path):
    with Lease(path, beat=1000):
        found = json.loads(path.read_text())
        path.write_text(json.dumps(found | {"started": found["started"] - 1}))
        assert owner(path) is None
        for change in ({"host": "elsewhere"}, {"place": "another boot"}):
            path.write_text(json.dumps(found | {"started": 1} | change))
            assert owner(path) is not None


def test_a_dead_owner_elsewhere_is_found_by_its_silence(path, hold):
    first = hold(place="elsewhere")
    assert first.says() == "held"
    first.kill()
    assert owner(path).pid == first.process.pid
    with pytest.raises(Taken), Lease(path, wait=False):
        pass
    begun = time.monotonic()
    with Lease(path, **QUICK) as held:
        assert time.monotonic() - begun >= QUICK["patience"]
        held.check()
    assert names(path.parent) == []


def test_a_living_owner_elsewhere_is_waited_for(path, hold):
    first = hold(place="elsewhere")
    assert first.says() == "held"
    second = hold(patience=1.5)
    time.sleep(2)
    assert first.ask() == "ours"
    assert first.end() == 0
    assert second.says() == "held"
    assert second.end() == 0


@pytest.mark.parametrize("place", ["", "elsewhere"])
def test_an_owner_that_was_stopped_has_lost_and_disturbs_nobody(path, hold, place):
    first = hold(place)
    assert first.says() == "held"
    first.send(signal.SIGSTOP)
    with Lease(path, **QUICK) as held:
        mine = owner(path)
        first.send(signal.SIGCONT)
        assert first.ask() == "lost"
        time.sleep(0.2)
        held.check()
        assert first.end() == 0
        held.check()
        assert owner(path) == mine
    assert names(path.parent) == []


def test_a_waiter_that_was_stopped_does_not_take_its_own_sleep_for_silence(path, hold):
    first, second = hold(place="elsewhere"), hold(patience=1.0)
    assert first.says() == "held"
    for one in (second, first):
        one.send(signal.SIGSTOP)
    time.sleep(1.5)
    second.send(signal.SIGCONT)
    time.sleep(0.2)
    first.send(signal.SIGCONT)
    assert first.ask() == "ours"
    assert first.end() == 0
    assert second.says() == "held"


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed (Debian: faketime)")
@pytest.mark.parametrize("monotonic", ["fixed", "jumps too"])
def test_clocks_that_jump_change_nothing(path, tmp_path_factory, hold, monotonic):
    clock = tmp_path_factory.mktemp("clock") / "offset"
    clock.write_text("-400d")
    faked = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1" if monotonic == "fixed" else "0",
    }
    # A timed wait of a process whose monotonic clock jumps is off; only the waiter's may.
    first = hold(place="elsewhere", **(faked if monotonic == "fixed" else {}))
    assert first.says() == "held"
    second = hold(patience=2.0, **faked)
    for offset in ("+3d", "-20d", "+400d", "+0"):
        time.sleep(0.3)
        clock.write_text(offset)
        assert first.ask() == "ours"
    first.kill()
    assert second.says() == "held"
    assert second.ask() == "ours"


BREAK = """
import os, sys
from pathlib import Path
from widthlab.store.lease import Lease

print("begun", flush=True)
for line in sys.stdin:
    folder = Path(line.strip())
    with Lease(folder / ".lease", beat=0.002, patience=60) as held:
        try:
            os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            print("two", flush=True)
            continue
        held.check()
        (folder / "inside").unlink()
    print("done", flush=True)
"""


def test_breakers_that_race_enter_one_after_another(path, hold, start):
    first = hold(beat=1000)
    assert first.says() == "held"
    first.kill()
    dead = path.read_bytes()
    breakers = [start(BREAK) for _ in range(4)]
    assert {one.says() for one in breakers} == {"begun"}
    for number in range(80):
        folder = path.parent / f"round-{number}"
        folder.mkdir()
        (folder / ".lease").write_bytes(dead)
        for one in breakers:
            one.process.stdin.write(f"{folder}\n")
            one.process.stdin.flush()
        assert [one.says() for one in breakers] == ["done"] * len(breakers)
        assert names(folder) == []


def no_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_living_lease_that_was_caught_is_put_back(path, hold, monkeypatch):
    """Without flocks, another breaker can be quicker between a look and the rename."""
    dead = hold(beat=1000)
    assert dead.says() == "held"
    dead.kill()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    rename, quicker = Path.rename, []

    def slow(source, target):
        if not quicker:
            source.unlink()
            quicker.append(hold())
            assert quicker[0].says() == "held"
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", slow)
    with pytest.raises(Taken) as taken, Lease(path, wait=False):
        pass
    assert taken.value.owner.pid == quicker[0].process.pid
    assert names(path.parent) == [".lease"]
    assert quicker[0].ask() == "ours"


def test_an_owner_that_beats_in_the_moment_of_the_break_keeps_its_lease(path, hold, monkeypatch):
    first = hold(place="elsewhere", beat=1000)
    assert first.says() == "held"
    rename, asked = Path.rename, []

    def late(source, target):
        done = rename(source, target)
        if not asked:
            first.process.stdin.write("?\n")
            first.process.stdin.flush()
            before = target.read_bytes()
            while target.read_bytes() == before:
                time.sleep(0.01)
            asked.append(True)
        return done

    monkeypatch.setattr(Path, "rename", late)
    waiter = Lease(path, **QUICK)
    waiter._patience = 0.3
    monkeypatch.setattr(lease.time, "sleep", patient(lambda: bool(asked)))
    with pytest.raises(TimeoutError), waiter:
        pass
    assert first.says() == "ours"
    assert names(path.parent) == [".lease"]


def patient(until):
    """Return a sleep that ends the wait once something has happened."""
    sleep = time.sleep

    def wait(seconds):
        if until():
            raise TimeoutError
        sleep(seconds)

    return wait
