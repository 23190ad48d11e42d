"""Errors that a user can cause, and the format of their messages.

A message about a value reads ``name = value: must be ...``, with a ``; did you mean 'x'?`` where a
spelling is close.
"""

import difflib
from collections.abc import Iterable
from pathlib import PurePath


class ArgumentError(ValueError):
    """An argument of a function has an invalid value."""


class ConfigError(ArgumentError):
    """A field of a configuration has an invalid value; raised before any compilation."""


class DataError(ValueError):
    """A file, line or corpus cannot be used; the message names the file, the line and a remedy."""


class RunError(RuntimeError):
    """A run had to stop, or its checkpoints cannot be used; the message says what to do."""


class StorageError(RunError):
    """A disk or an object store cannot be accessed; the message says why and what to do.

    It is unrelated to file contents: an unreadable file is not considered damaged.
    """


def closest(given: object, allowed: Iterable[str], count: int = 1) -> list[str]:
    """Returns at most `count` similar allowed names, most similar first, ignoring case."""
    spelled = {item.lower(): item for item in allowed}
    lowered = given.lower() if isinstance(given, str) else ""
    return [spelled[item] for item in difflib.get_close_matches(lowered, spelled, count, 0.5)]


def did_you_mean(given: object, allowed: Iterable[str], count: int = 1) -> str:
    """Returns "; did you mean 'rope'?", or "" if no allowed name is similar."""
    names = " or ".join(map(repr, closest(given, allowed, count)))
    return f"; did you mean {names}?" if names else ""


def system_message(error: OSError) -> str:
    """Returns the message of an OSError with its file: "runs/a/config.json: Permission denied"."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, shortened in the middle if it is long."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # TensorStore lists every layer before the cause, and the whole request after it.
    line, _, _ = line.partition(" [tensorstore_spec=")
    return line if len(line) <= 400 else f"{line[:180]} ... {line[-200:]}"


def shortened(value: object) -> str:
    """Returns the repr of a value, shortened if it is long."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"
    if getattr(value, "ndim", 0):
        return f"an array of {value.dtype} {tuple(value.shape)}"
    text = repr(str(value) if isinstance(value, PurePath) else value)
    return text if len(text) <= 200 else f"{text[:200]}... ({type(value).__name__})"
