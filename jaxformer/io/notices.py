"""Warnings that are said once."""

import functools
import logging

_log = logging.getLogger(__name__)


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning once in a process, which may open a checkpoint at several places."""
    _log.warning("%s", message)
