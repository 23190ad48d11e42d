"""The errors a user can cause, and the one form of their messages.

A message about a value reads ``name = value: must be ...``, with a ``; did you mean 'x'?`` where a
spelling is close.
"""

import difflib
from collections.abc import Iterable
from pathlib import PurePath


class ArgumentError(ValueError):
    """An argument of a function has a value that cannot work."""


class ConfigError(ArgumentError):
    """A field of a configuration has a value that cannot work; raised before any compilation."""


class DataError(ValueError):
    """A file, line or corpus cannot be used; names the file, the line and what would be right."""


class RunError(RuntimeError):
    """A run had to stop, or its checkpoints cannot be used; says what is kept and what to do."""


class StorageError(RunError):
    """A disk or an object store cannot be read, or refuses; says what of it, and what to do.

    It says nothing of contents: what cannot be read is not taken for damaged.
    """


def closest(given: object, allowed: Iterable[str], count: int = 1) -> list[str]:
    """Returns at most `count` of the allowed spellings, closest first and regardless of case."""
    spelled = {item.lower(): item for item in allowed}
    lowered = given.lower() if isinstance(given, str) else ""
    return [spelled[item] for item in difflib.get_close_matches(lowered, spelled, count, 0.5)]


def did_you_mean(given: object, allowed: Iterable[str], count: int = 1) -> str:
    """Returns "; did you mean 'rope'?", or "" where no allowed spelling is close."""
    names = " or ".join(map(repr, closest(given, allowed, count)))
    return f"; did you mean {names}?" if names else ""


def system_message(error: OSError) -> str:
    """Returns what the system refused: "runs/a/config.json: Permission denied"."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; a long one without its middle."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # TensorStore names every layer before the cause, and after it the whole request.
    line, _, _ = line.partition(" [tensorstore_spec=")
    return line if len(line) <= 400 else f"{line[:180]} ... {line[-200:]}"


def shortened(value: object) -> str:
    """Returns a value as Python writes it, cut where it would fill the screen."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"
    if getattr(value, "ndim", 0):
        return f"an array of {value.dtype} {tuple(value.shape)}"
    text = repr(str(value) if isinstance(value, PurePath) else value)
    return text if len(text) <= 200 else f"{text[:200]}... ({type(value).__name__})"
