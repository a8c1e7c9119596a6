"""Being asked to stop: the one signal that all stages understand."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

RETRY = 75
"""Exit code of a stage that was asked to stop and can be run again (EX_TEMPFAIL)."""
ADVICE = "interrupted; repeat the command to go on"


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """A stage was asked to stop (SIGTERM), saved its state, and can be run again."""


@contextmanager
def interruptible(log: Callable[[str], None]) -> Iterator[None]:
    """End the process with RETRY on SIGTERM or Ctrl-C while inside; only the main thread listens.

    It ends at once, as when killed, which publishing is made for. An exception instead could be
    raised below a library that swallows it, and the work would go on with something missing.
    Training listens for itself, since it has a state to save.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        # The signal may have come in the midst of writing to the log.
        with suppress(Exception):
            log(ADVICE)
        os._exit(RETRY)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
