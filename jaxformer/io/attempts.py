"""Requests to object stores, with retries if the connection is lost and readable errors."""

import errno
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from jaxformer.errors import ConfigError, StorageError, first_line

PATIENCE = "JAXFORMER_STORAGE_SECONDS"
"""Environment variable: how long to retry a lost connection, in seconds."""
LONGEST_PAUSE = 15.0
"""Maximum seconds between two attempts."""
_DEFAULT_PATIENCE = 60.0

# The store libraries share no base class for errors, so errors are recognized by class name.
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
    """Calls a function that accesses a store, and retries while the connection is lost.

    The pauses double from half a second up to 15 s, with jitter so that the processes of a job do
    not all retry at once.
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
            if spent + pause > seconds:  # takes longer if the store's library retries as well
                raise StorageError(
                    f"{path}: the connection to the store was lost and did not come back within "
                    f"{max(seconds, round(spent)):g} s ({first_line(error)}); rerun the same "
                    "command once it is reachable"
                ) from error
        time.sleep(pause * random.uniform(0.8, 1.2))
        pause = min(2 * pause, LONGEST_PAUSE)


def patience() -> float:
    """Returns how long to retry a lost connection, in seconds."""
    text = os.environ.get(PATIENCE, "")
    try:
        seconds = float(text) if text else _DEFAULT_PATIENCE
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{PATIENCE} = {text!r}: must be a number of seconds of at least 0")
    return seconds


def _is_lost(error: BaseException) -> bool:
    """Whether retrying the same request may succeed."""
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
    """Describes why a store refused a request and what to do."""
    cause = first_line(error)
    if _NO_CREDENTIALS & {kind.__name__ for kind in type(error).__mro__}:
        return f"there are no credentials ({cause}); set those of the store (docs/storage.md)"
    allowed = not isinstance(error, PermissionError)
    remedy = "" if allowed else "; use credentials that may read and write the bucket"
    return f"the store refuses ({cause}){remedy}"
