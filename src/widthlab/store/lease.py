"""The right to write one result: a lease with a heartbeat, for folders that machines share.

The lease is a small file that its owner makes under a unique name, links to the lease's name
(which only one can do, on NFS too) and rewrites in place, with a growing number, through the
open file. A lease that was taken away is a file without a name, so a late beat revives nothing.

A waiter reads the file again and again. It takes the owner for dead where the process is known
to be gone (same host, boot and pid namespace), else where the number stood still while the
waiter itself was looking, `patience` seconds long. Clocks are never compared: not those of two
machines, and a machine that slept counts no time at all.

Assumed of a network file system: `link` and `rename` are atomic, and `open` asks the server (the
default of NFS; with the mount option `nocto`, patience must exceed `acregmax`). Breakers of one
lease exclude each other by a short flock where there are flocks. Without them, or with an owner
that comes to life in the moment of the break, two may write at worst. That is a waste and no
harm: what they write has unique names until it is published, and `check` comes before that. The
state from which training goes on is shared, and its snapshots are verified before they are used.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import eq
from pathlib import Path
from types import TracebackType

from widthlab.store.owner import Owner

__all__ = ["BEAT", "PATIENCE", "Lease", "Lost", "Owner", "Taken", "owner"]

BEAT = 5.0
"""Seconds between two beats of an owner."""
PATIENCE = 60.0
"""Seconds without a beat after which an owner counts as dead."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Taken(Exception):  # noqa: N818 - an answer, not an error
    """Somebody else's lease is alive, as far as can be told at once."""

    def __init__(self, path: Path, owner: Owner) -> None:
        super().__init__(f"{path} is held by {owner}")
        self.owner = owner


class Lost(Exception):  # noqa: N818 - an answer, not an error
    """The lease is no longer ours: it was taken for dead, or its file was removed."""


class Lease:
    """The right to write one result, for the length of a `with` block.

    Entering waits while somebody else's lease is alive; with `wait=False` it raises Taken. Where
    the folder is missing or cannot be written to, it raises OSError.
    """

    def __init__(
        self, path: Path, *, wait: bool = True, beat: float = BEAT, patience: float = PATIENCE
    ) -> None:
        self.path = path
        self._wait, self._beat, self._patience = wait, beat, patience
        self._pause = min(beat / 2, 0.25)
        self._owner, self._file = Owner(), -1

    def __enter__(self) -> Lease:
        self._owner = Owner.here()
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="lease", daemon=True)
        try:
            self._acquire()
            self._sweep()
            self._thread.start()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    def check(self) -> None:
        """Raise Lost unless the lease is ours, and beat, so that it stays so for a while."""
        for _ in range(5):
            if os.getpid() == self._owner.pid:
                with suppress(OSError):
                    self._write()
            found = _look(self.path)
            if found is not None:
                break
            # A breaker that sees a last beat puts the lease back in a moment.
            time.sleep(self._pause)
        if found is None or not self._ours(found):
            raise Lost(f"{self.path} is no longer held by this process")

    def _acquire(self) -> None:
        seen, quiet, last = None, 0.0, 0.0
        while True:
            found = _look(self.path)
            now = time.monotonic()
            # Time in which this process did not run says nothing about the owner.
            step = min(max(now - last, 0.0), 2 * self._pause)
            quiet = quiet + step if found == seen else 0.0
            seen, last = found, now
            if found is None:
                if self._take():
                    return
            elif quiet >= self._patience or Owner.parse(found).is_known_dead():
                if self._withdraw(partial(eq, found)):
                    continue
            elif not self._wait:
                raise Taken(self.path, Owner.parse(found))
            time.sleep(self._pause)

    def _take(self) -> bool:
        """Try to give the lease's name to a file of ours."""
        unique = self._beside("new")
        try:
            self._file = _create(unique)
            self._write()
            try:
                os.link(unique, self.path)
            except (FileExistsError, FileNotFoundError):
                pass  # taken, or swept away by a new owner; or NFS repeated a link that succeeded
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._take_without_link()
        finally:
            unique.unlink(missing_ok=True)
        found = _look(self.path)
        if found is not None and self._ours(found):
            return True
        self._close()
        return False

    def _take_without_link(self) -> None:
        """Make the lease under its name at once; it is empty for a moment."""
        with suppress(FileExistsError):
            file = _create(self.path)
            os.close(self._file)
            self._file = file
            try:
                self._write()
            except BaseException:
                self.path.unlink()
                raise

    def _write(self) -> None:
        text = self._owner.text(next(self._numbers))
        if os.pwrite(self._file, text, 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        os.fsync(self._file)

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._beat):
            # A full disk or a server that is away must not end the work: `check` tells.
            with suppress(OSError):
                found = _look(self.path)
                if found is not None and not self._ours(found):
                    return
                self._write()

    def _ours(self, found: bytes) -> bool:
        return self._file != -1 and self._owner.token.encode() in found

    def _withdraw(self, fits: Callable[[bytes], bool]) -> bool:
        """Remove the lease at the path if it is the one that fits; say whether it was."""
        try:
            file = _open(self.path)
        except FileNotFoundError:
            return False
        try:
            self._exclude_others(file)
            found = _look(self.path)
            if found is None or not fits(found):
                return False
            aside = self._beside("old")
            with suppress(FileNotFoundError):
                self.path.rename(aside)
            caught = _look(aside)
            if caught is not None and not fits(caught):
                with suppress(OSError):  # somebody took the name meanwhile, or there are no links
                    os.link(aside, self.path)
            aside.unlink(missing_ok=True)
            return caught is not None and fits(caught)
        finally:
            os.close(file)

    def _exclude_others(self, file: int) -> None:
        """Lock a lease's file against others that withdraw it, until it is closed."""
        for _ in range(int(self._patience / self._pause) + 1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(self._pause)
            except OSError:
                return  # no locks here
            else:
                return

    def _sweep(self) -> None:
        """Remove what killed processes left beside the lease."""
        with suppress(OSError), os.scandir(self.path.parent) as entries:
            mine = os.fstat(self._file).st_ino
            for entry in entries:
                if entry.name.startswith(f"{self.path.name}.") and entry.inode() != mine:
                    Path(entry).unlink(missing_ok=True)

    def _release(self) -> None:
        self._stop.set()
        try:
            if self._thread.is_alive():
                self._thread.join()
        finally:
            # A fork's copy has no lease to give back.
            if self._file != -1 and os.getpid() == self._owner.pid:
                with suppress(OSError):
                    self._withdraw(self._ours)
        self._close()

    def _close(self) -> None:
        if self._file != -1:
            os.close(self._file)
            self._file = -1

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{self._owner.token}.{ending}")


def owner(path: Path) -> Owner | None:
    """Return the owner of a lease that is not known to be dead, or None.

    Only a process of this host and boot can be known to be dead without waiting. The owner of a
    file that cannot be read is blank.
    """
    try:
        found = _look(path)
    except OSError:
        return Owner()
    holder = None if found is None else Owner.parse(found)
    return None if holder is None or holder.is_known_dead() else holder


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _open(path: Path) -> int:
    """Open a file to lock it, for which NFS asks for the right to write."""
    try:
        return os.open(path, os.O_RDWR)
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def _look(path: Path) -> bytes | None:
    """Return what a lease says now; opened anew, so that NFS asks the server."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(4096)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        raise
