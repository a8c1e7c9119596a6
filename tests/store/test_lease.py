"""The lease: one owner at a time, whoever dies, stops or sees a clock jump."""

import codecs
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
from contextlib import contextmanager
from pathlib import Path

import pytest

from widthlab.store.lease import Lease, Lost, Owner, Taken, owner

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
QUICK = {"beat": 0.05, "patience": 0.6}

HOLD = """
import signal, sys
from pathlib import Path
from widthlab.store import lease
from widthlab.store import owner as owners

path, place, beat, patience = Path(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:5])
if place:
    owners._place = lambda: place

def stop(*_):
    raise SystemExit(7)

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, signal.default_int_handler)
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
        # What would wait for ever fails instead.
        self.guard = threading.Timer(90, self.process.kill)
        self.guard.daemon = True
        self.guard.start()

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
        one.guard.cancel()
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


def changes(path, before):
    """Return whether a file comes to say something else."""
    for _ in range(500):
        if path.read_bytes() != before:
            return True
        time.sleep(0.01)
    return False


def test_a_lease_is_held_and_given_back(path):
    with Lease(path) as held:
        assert names(path.parent) == [".lease"]
        assert owner(path).pid == os.getpid()
        held.check()
        with (
            pytest.raises(Taken, match=f"process {os.getpid()} on") as taken,
            Lease(path, wait=False),
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
    script = (
        "import sys, widthlab.store.lease; print(*{'torch', 'numpy', 'pydantic'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
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
        time.sleep(chance.choice([0, 0.002, 0.03]))
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
        return start(CONTEND, folder, 8, begun)

    crowd = [begin() for _ in range(8)]
    killed = set()
    while len(killed) < 30:
        time.sleep(chance.uniform(0, 0.1))
        victim = chance.choice(crowd)
        if chance.random() < 0.5:
            last = (folder / "log").read_text().splitlines()[-1:]
            inside = [one for one in crowd if last == [f"enter {one.process.pid}"]]
            victim = (inside or [victim])[0]
        if victim.process.poll() is None:
            killed.add(victim.process.pid)
        victim.kill()
        crowd.remove(victim)
        crowd.append(begin())
    assert [one.process.wait(60) for one in crowd] == [0] * len(crowd)
    events = [line.split() for line in (folder / "log").read_text().splitlines()]
    assert "two" not in [word for word, _ in events]
    entered = Counter(pid for word, pid in events if word == "enter")
    left = Counter(pid for word, pid in events if word == "leave")
    died_inside = {int(pid) for pid in entered if entered[pid] > left[pid]}
    assert died_inside, "no process was killed inside; the test tests nothing"
    assert died_inside <= killed
    assert all(entered[str(one.process.pid)] == 8 for one in crowd)
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
def test_clocks_that_jump_change_nothing(path, tmp_path_factory, hold):
    clock = tmp_path_factory.mktemp("clock") / "offset"
    clock.write_text("-400d")
    faked = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
    }
    # libfaketime breaks a thread's timed wait with a faked monotonic clock, so only the waiter,
    # which has no thread, has one.
    first = hold(place="elsewhere", **faked, FAKETIME_DONT_FAKE_MONOTONIC="1")
    assert first.says() == "held"
    second = hold(patience=1.0, **faked)
    for offset in ("+3d", "-20d", "+400d", "+0"):
        time.sleep(0.25)
        clock.write_text(offset)
        assert first.ask() == "ours"
    first.kill()
    assert second.says() == "held"


def test_the_time_of_day_is_never_asked(path, hold, monkeypatch):
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, lambda: pytest.fail("the time of day was asked"))
    first = hold(place="elsewhere")
    assert first.says() == "held"
    threading.Timer(0.2, first.end).start()
    with Lease(path, beat=0.05) as held:
        time.sleep(0.1)
        held.check()


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
    for number in range(40):
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


def test_a_breaker_that_comes_second_does_not_touch_the_new_lease(path, hold, monkeypatch):
    dead = hold(beat=1000)
    assert dead.says() == "held"
    dead.kill()
    flock, quicker = fcntl.flock, []

    def slow(*words):
        if not quicker:
            path.unlink()
            quicker.append(hold())
            assert quicker[0].says() == "held"
        return flock(*words)

    monkeypatch.setattr(fcntl, "flock", slow)
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("a living lease was renamed"))
    with pytest.raises(Taken) as taken, Lease(path, wait=False):
        pass
    assert taken.value.owner.pid == quicker[0].process.pid
    monkeypatch.undo()
    assert quicker[0].ask() == "ours"


def test_an_owner_that_beats_in_the_moment_of_the_break_keeps_its_lease(path, hold, monkeypatch):
    first = hold(place="elsewhere", beat=1000)
    assert first.says() == "held"
    rename, renamed = Path.rename, []

    def slow(source, target):
        done = rename(source, target)
        renamed.append(target)
        if len(renamed) == 1:
            before = target.read_bytes()
            first.process.stdin.write("?\n")
            first.process.stdin.flush()
            assert changes(target, before)
        return done

    monkeypatch.setattr(Path, "rename", slow)
    with Lease(path, **QUICK) as held:
        assert len(renamed) == 2, "the first break caught a living lease"
        assert first.says() == "ours"
        assert first.ask() == "lost"
        held.check()


def test_a_breaker_that_hangs_is_not_waited_for_for_ever(path, hold):
    first = hold(beat=1000)
    assert first.says() == "held"
    first.kill()
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with Lease(path, **QUICK) as held:
            held.check()
    assert names(path.parent) == []


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 4000, b'{"pid": 1}', b"0" * 10000]
)
def test_a_damaged_lease_is_dead_after_a_while(path, text):
    path.write_bytes(text)
    assert owner(path) == Owner()
    with pytest.raises(Taken, match="process unknown on unknown") as taken, Lease(path, wait=False):
        pass
    assert taken.value.owner == Owner()
    assert path.read_bytes() == text
    with Lease(path, beat=0.05, patience=0.3) as held:
        held.check()
    assert names(path.parent) == []


@pytest.mark.parametrize("change", [{"pid": 0}, {"pid": -1}, {"pid": 2**40}, {"started": "x"}])
def test_an_impossible_owner_is_a_damaged_one(path, change):
    path.write_text(json.dumps(vars(Owner.here()) | change))
    assert owner(path) == Owner()


def no_links(*_):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_without_links_there_is_still_one_owner(path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    inside, entered = [], []

    def enter():
        for _ in range(5):
            with Lease(path, beat=0.01) as held:
                inside.append(1)
                entered.append(len(inside))
                time.sleep(0.002)
                held.check()
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert entered == [1] * 30
    assert names(path.parent) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("inside", [False, True])
def test_an_interrupted_process_leaves_nothing_behind(path, hold, number, inside):
    if inside:
        one = hold()
        assert one.says() == "held"
    else:
        path.write_bytes(b"damaged")
        one = hold()
        time.sleep(0.1)
    one.send(number)
    assert one.process.wait(30) == (7 if number == signal.SIGTERM else -signal.SIGINT)
    assert names(path.parent) == ([] if inside else [".lease"])


@pytest.mark.parametrize(
    ("module", "name"), [(os, "link"), (os, "fsync"), (threading.Thread, "start")]
)
def test_an_interrupt_while_taking_leaves_nothing_behind(path, monkeypatch, module, name):
    real = getattr(module, name)

    def interrupted(*words):
        real(*words)
        monkeypatch.setattr(module, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt), Lease(path):
        pass
    assert names(path.parent) == []
    assert "lease" not in [thread.name for thread in threading.enumerate()]


def test_what_killed_processes_left_is_swept_away(path):
    litter = path.with_name(".lease.0123.new")
    litter.write_text("{}")
    other = path.with_name(".lease-notes")
    other.write_text("kept")
    with Lease(path):
        assert names(path.parent) == [".lease", ".lease-notes"]


def test_a_lease_whose_file_was_removed_is_lost_and_does_not_come_back(path):
    with Lease(path, **QUICK) as held:
        path.unlink()
        time.sleep(0.2)
        with pytest.raises(Lost):
            held.check()
        assert names(path.parent) == []


FORK = """
import os, sys, time
from pathlib import Path
from widthlab.store.lease import Lease

with Lease(Path(sys.argv[1]), beat=0.05) as held:
    child = os.fork()
    if child == 0:
        held.__exit__(None, None, None)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    time.sleep(0.2)
    held.check()
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    held.check()
    print("ours", flush=True)
"""


def test_a_fork_gives_nothing_back(path):
    command = [sys.executable, "-W", "ignore", "-c", FORK, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "ours\n", done.stderr
    assert names(path.parent) == []


def test_a_missing_folder_is_an_oserror(path):
    with pytest.raises(FileNotFoundError), Lease(path.parent / "missing" / ".lease"):
        pass
    assert owner(path.parent / "missing" / ".lease") is None


@contextmanager
def another_user(folder):
    """Work in a folder as a user without root's rights (as oneself where one is not root)."""
    before, root = Path.cwd(), os.geteuid() == 0
    codecs.lookup("ascii")  # Python itself may lie where only root reads
    os.chdir(folder)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        os.chdir(before)


def test_a_read_only_folder_is_an_oserror(path):
    path.parent.chmod(0o555)
    with another_user(path.parent), pytest.raises(PermissionError), Lease(Path(".lease")):
        pass
    path.parent.chmod(0o755)
    assert names(path.parent) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_colleague_breaks_the_lease_of_the_dead(path, hold):
    path.parent.chmod(0o777)
    first = hold()
    assert first.says() == "held"
    with another_user(path.parent):
        assert owner(Path(".lease")).pid == first.process.pid
    first.kill()
    with another_user(path.parent), Lease(Path(".lease"), wait=False) as held:
        held.check()
    assert names(path.parent) == []


def test_a_full_disk_is_an_oserror_and_ends_no_lease(disk):
    path = disk.folder / ".lease"
    with Lease(path, beat=0.02) as held:
        disk.fill()
        before = path.read_bytes()
        assert changes(path, before)
        held.check()
    disk.fill()
    with pytest.raises(OSError, match="No space left"), Lease(path):
        pass
    assert names(disk.folder) == ["filling"]
