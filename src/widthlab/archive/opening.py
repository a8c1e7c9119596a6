"""Opening an archive, making one, and the right to write it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import icechunk

from widthlab.archive.location import Location
from widthlab.errors import WidthlabError
from widthlab.store.lease import Lease

if TYPE_CHECKING:
    from icechunk import Repository


@contextmanager
def locked(location: Location) -> Iterator[None]:
    """Hold the right to write an archive; wait where another process has it."""
    with ExitStack() as stack:
        try:
            location.lock.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(Lease(location.lock))
        except OSError as error:
            raise WidthlabError(
                f"cannot write the archive {location.address}: {location.lock}: {error.strerror}"
            ) from None
        yield


@contextmanager
def explained(doing: str, location: Location) -> Iterator[None]:
    """Turn Icechunk's errors, several lines each, into one sentence."""
    try:
        yield
    except icechunk.IcechunkError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = [line.removeprefix("`->").strip() for line in lines if line.startswith("`->")]
        reason = causes[-1] if causes else lines[0].removeprefix("x ")
        raise WidthlabError(f"cannot {doing} the archive {location.address}: {reason}") from error


def existing(location: Location) -> Repository | None:
    """Open the repository at a location, if there is one."""
    # Icechunk warns that nothing guards a local file system; the lock does.
    icechunk.set_logs_filter("error")
    if location.folder is not None and not location.folder.is_dir():
        return None
    with explained("read", location):
        if not icechunk.Repository.exists(location.storage()):
            return None
        return icechunk.Repository.open(location.storage())


def made(location: Location) -> Repository:
    """Make a repository, whole or not at all."""
    icechunk.set_logs_filter("error")
    folder = location.folder
    with explained("write", location):
        if folder is None:
            return icechunk.Repository.create(location.storage())
        begun = folder.with_name(f"{folder.name}.begun")
        try:
            if begun.exists():
                shutil.rmtree(begun)
            icechunk.Repository.create(icechunk.local_filesystem_storage(str(begun)))
            # Takes the place of an empty folder, too.
            begun.rename(folder)
        except OSError as error:
            raise WidthlabError(
                f"cannot make the archive {folder}: {error.strerror}; give another folder as "
                "'archive' in the study"
            ) from None
        return icechunk.Repository.open(location.storage())
