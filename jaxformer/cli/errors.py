"""How a command ends: its exit status, and one message instead of a traceback."""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable

import jax

from jaxformer.distributed.join import leave
from jaxformer.errors import ArgumentError, DataError, RunError, first_line, system_message
from jaxformer.extras import MissingExtra


def reporting_errors(action: Callable[[], int | None]) -> int:
    """Runs an action and reports the errors that a user can cause in one message.

    A process of a distributed job that fails exits here, so that the others do not wait for it:
    see `distributed.join.leave`.

    Args:
        action: The command; returns an exit status of its own, or None for success.

    Returns:
        0 for success or the command's own status, 2 for an argument, configuration or data that
        cannot work, 1 for a run that had to stop, 130 for Ctrl-C.

    Raises:
        Exception: Any other error, which is a bug.
    """
    # Orbax and gcsfs log warnings and tracebacks for errors that are reported here.
    for library in ("absl", "gcsfs"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    own = 0

    def noted() -> None:
        nonlocal own
        own = action() or 0

    try:
        status = _status(noted)
    except Exception as error:
        error.add_note(
            "This is a bug in jaxformer, unless it comes from a file of yours: please report it "
            "with the lines above."
        )
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exception(error)
        status = 1
    return leave(status or own, failed=status != 0)


def _status(action: Callable[[], object]) -> int:
    """Runs an action; prints the message of an error, and returns the exit status."""
    try:
        action()
        sys.stdout.flush()
    except (ArgumentError, DataError, MissingExtra) as error:
        return _fail(error, 2)
    except RunError as error:
        return _fail(error, 1)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        return _discard_output(1)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " What was saved before is kept: free some space and continue." if full else ""
        return _discard_output(_fail(f"{system_message(error)}.{advice}", 1))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (MemoryError, RuntimeError, ValueError) as error:
        from jaxformer.training.failures import out_of_memory

        if not out_of_memory(error):
            raise
        return _fail(f"out of memory ({first_line(error)}): use fewer or shorter rows at a time", 1)
    return 0


def _discard_output(status: int) -> int:
    """Drops buffered output that can no longer be written; returns the status."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _fail(message: object, status: int) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)
    return status
