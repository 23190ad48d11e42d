"""Handles Ctrl-C while a command is still importing, which takes seconds."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Context manager in which Ctrl-C ends the process with one line instead of a traceback.

    An exception would propagate through imports of other libraries, some of which swallow it.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:  # ignored, or handled by someone else
        yield
        return
    signal.signal(signal.SIGINT, _quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _quit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(128 + number)
