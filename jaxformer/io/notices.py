"""Warnings that are logged once."""

import functools
import logging

_log = logging.getLogger(__name__)


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning once per process."""
    _log.warning("%s", message)
