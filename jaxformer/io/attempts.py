"""Requests to object stores: again where the connection was lost, one sentence where they end."""

import errno
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from jaxformer.errors import ConfigError, StorageError, first_line

PATIENCE = "JAXFORMER_STORAGE_SECONDS"
"""The environment variable with the seconds for which a lost connection is tried again."""
LONGEST_PAUSE = 15.0
"""Seconds at most between two attempts."""
_DEFAULT_PATIENCE = 60.0

# The libraries of the stores have no base class in common, so their errors are known by name.
_LOST = frozenset({
    "HTTPClientError", "ConnectionError", "ClientConnectionError", "ClientPayloadError",
    "ResponseParserError", "IncompleteRead", "ServerDisconnectedError", "TransportError",
})  # fmt: skip
_LOST_NUMBERS = (errno.EBUSY, errno.EREMOTEIO, errno.EIO, errno.ETIMEDOUT, errno.EAGAIN)
_NO_CREDENTIALS = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError",
    "ProfileNotFound",
})  # fmt: skip
_Result = TypeVar("_Result")


def attempt(path: object, action: Callable[[], _Result], seconds: float | None = None) -> _Result:
    """Calls what asks a store, again and again while the connection is lost.

    The pauses double from half a second up to 15 s, and vary so that the processes of a job do not
    all come back at once.
    """
    seconds = patience() if seconds is None else seconds
    begun, pause = time.monotonic(), 0.5
    while True:
        try:
            return action()
        except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
            raise
        except Exception as error:
            if not _is_lost(error):
                raise StorageError(f"{path}: {_refusal(error)}") from error
            spent = time.monotonic() - begun
            if spent + pause > seconds:  # more, where the library of a store tries again by itself
                raise StorageError(
                    f"{path}: the connection to the store was lost and did not come back within "
                    f"{max(seconds, round(spent)):g} s ({first_line(error)}); the same command "
                    "goes on once it is back"
                ) from error
        time.sleep(pause * random.uniform(0.8, 1.2))
        pause = min(2 * pause, LONGEST_PAUSE)


def patience() -> float:
    """Returns for how many seconds a lost connection is tried again."""
    text = os.environ.get(PATIENCE, "")
    try:
        seconds = float(text) if text else _DEFAULT_PATIENCE
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{PATIENCE} = {text!r}: must be a number of seconds of at least 0")
    return seconds


def _is_lost(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, PermissionError):
        return False
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if getattr(error, "errno", None) in _LOST_NUMBERS:
        return True
    status = getattr(error, "code", None)  # gcsfs.retry.HttpError
    if isinstance(status, int) and (status >= 500 or status in (408, 429)):
        return True
    return bool(_LOST & {kind.__name__ for kind in type(error).__mro__})


def _refusal(error: BaseException) -> str:
    """What a store refuses, and what to do."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _NO_CREDENTIALS:
        return (
            f"there are no credentials ({first_line(error)}); set those of the store "
            "(docs/storage.md)"
        )
    if isinstance(error, PermissionError):
        return (
            f"the store refuses ({first_line(error)}); use credentials that may read and write "
            "the bucket"
        )
    return f"the store refuses ({first_line(error)})"
