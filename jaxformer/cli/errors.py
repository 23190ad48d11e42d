"""Exit statuses of commands, and messages instead of tracebacks."""

import errno
import logging
import math
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable

import jax

from jaxformer.distributed.join import leave
from jaxformer.errors import ArgumentError, DataError, RunError, first_line, system_message
from jaxformer.extras import MissingExtra

_MIN_ADDRESS_SPACE = 4e9  # bytes; XLA's compiler aborts if it cannot allocate memory
_log = logging.getLogger(__name__)
# How libraries report failed creation of threads and mappings.
_LIMITED = re.compile("start new thread|unavailable|failed to map|bad_alloc", re.IGNORECASE)


def reporting_errors(action: Callable[[], int | None]) -> int:
    """Runs an action and reports user errors as one message.

    A process of a distributed job that fails exits here, so that the others do not wait for it:
    see `distributed.join.leave`.

    Returns:
        0 for success or the command's status, 2 for invalid arguments, configuration or data, 1 for
        a run that had to stop, 130 for Ctrl-C.

    Raises:
        Exception: Any other error, which is a bug.
    """
    # Orbax and gcsfs log warnings and tracebacks for errors that are reported here.
    for library in ("absl", "gcsfs"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _report_unraisable
    if (limit := _limit(_MIN_ADDRESS_SPACE)) is not None:
        _log.warning("The %s if the process ends without a message", limit)
    own = 0

    def noted() -> None:
        nonlocal own
        own = action() or 0

    try:
        status = _status(noted)
    except Exception as error:
        error.add_note(
            "This is a bug in jaxformer, unless it is caused by your code: please report it with "
            "the lines above."
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
    except BrokenPipeError:
        reader = "the output was closed by its reader (head, less), so the command stopped there"
        return _discard_output(_fail(reader, 1))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " Earlier files are kept: free some space and continue." if full else ""
        if (limit := _limit()) and _LIMITED.search(str(error)):
            advice = f" The {limit}."
        return _discard_output(_fail(f"{system_message(error)}.{advice}", 1))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except SystemExit:
        raise
    except BaseException as error:  # panics of Rust extensions are not Exceptions
        from jaxformer.training.failures import out_of_memory

        limit = _limit()
        if not (out_of_memory(error) or (limit and _LIMITED.search(str(error)))):
            raise
        advice = f"the {limit}" if limit else "use fewer or shorter rows at a time"
        return _fail(f"out of memory ({first_line(error)}): {advice}", 1)
    return 0


def _limit(below: float = math.inf) -> str | None:
    """Describes the limit on the address space of the process, if any."""
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    if size == resource.RLIM_INFINITY or size >= below:
        return None
    return (
        f"limit ulimit -v allows {size / 1e9:.1f} GB of address space, including threads: raise it"
    )


def _report_unraisable(found: "sys.UnraisableHookArgs") -> None:
    """Prints a traceback, except for late callbacks of TensorStore after a failed save."""
    if str(found.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(found)


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
