"""Being asked to stop: the one signal that all stages understand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """A stage was asked to stop (SIGTERM), saved its state, and can be run again."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted on SIGTERM while inside; only the main thread can listen for signals.

    Training listens for itself, since it has a state to save.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted("interrupted; repeat the command to go on")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
