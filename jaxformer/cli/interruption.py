"""Ctrl-C while a command is still importing, which takes seconds."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def quitting_on_interrupt() -> Iterator[None]:
    """Within it, Ctrl-C ends the process with a line instead of a traceback: nothing is lost yet.

    An exception would pass through the imports of others, some of which swallow it.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:  # ignored, or somebody else's
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
