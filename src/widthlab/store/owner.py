"""Who holds a lease: a process that others can tell from every other one, and from a dead one."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process that holds a lease; all blank where the lease's file is damaged."""

    host: str = "unknown"
    place: str = ""
    """Boot and pid namespace: where a process's number means something."""
    pid: int = 0
    started: int = 0
    """Start of the process in clock ticks since boot, since numbers are used again."""
    token: str = ""
    """Random, one for each time that a lease is asked for."""

    def __str__(self) -> str:
        return f"process {self.pid or 'unknown'} on {self.host}"

    @classmethod
    def here(cls) -> Owner:
        """Return this process as an owner, with a new token."""
        pid = os.getpid()
        host = os.uname().nodename
        return cls(host, _place(), pid, _started(pid) or 0, secrets.token_hex(16))

    @classmethod
    def parse(cls, text: bytes) -> Owner:
        """Return the owner that a lease's file names, a blank one if it is damaged."""
        try:
            found = json.loads(text)
            known = cls(*(found[name] for name in asdict(cls())))
        except (ValueError, TypeError, KeyError, RecursionError):
            return cls()
        kinds = [type(value) for value in asdict(known).values()]
        return known if kinds == [str, str, int, int, str] and 0 < known.pid < 2**31 else cls()

    def text(self, beat: int) -> bytes:
        """Return what the lease's file says at a beat; every time of the same length."""
        return json.dumps(asdict(self) | {"beat": f"{beat:012}"}).encode()

    def is_known_dead(self) -> bool:
        """Return whether the process has ended; never true of another host, boot or namespace."""
        if not self.place or (self.host, self.place) != (os.uname().nodename, _place()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # another user's, whose start may be hidden
        return _started(self.pid) not in (None, self.started)


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks; 0 if it is dead but not buried, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    words = stat.rpartition(")")[2].split()
    return 0 if words[0] in "ZX" else int(words[19])
