"""Reading JSON files: a value of the expected type, or an error that names the file."""

import json
import os
from typing import Any

from jaxformer.errors import DataError
from jaxformer.io.files import read_bytes

_NAMES = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


_POINTER = b"version https://git-lfs."


def check_no_pointer(start: bytes, where: str) -> None:
    """Refuses a git-lfs pointer file."""
    if start.startswith(_POINTER):
        raise DataError(
            f"{where}: this is a git-lfs pointer, not the file: run `git lfs pull` in the "
            "repository's folder, or fetch the file itself"
        )


def read_json(path: str | os.PathLike, kind: type = dict) -> Any:
    """Returns the value in a JSON file."""
    data = read_bytes(path)
    check_no_pointer(data, str(path))
    return parse_json(data, str(path), kind)


def parse_json(text: str | bytes, where: str, kind: type = dict) -> Any:
    """Parses JSON text and checks the type of its value."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode().removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        line = f" of line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(
            f"{where}: not valid JSON: {error.msg} at column {error.colno}{line}"
        ) from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start].split(b"\n")
        line = f"line {len(before)}" if len(before) > 1 else "the line"
        raise DataError(f"{where}: not UTF-8 at byte {len(before[-1])} of {line}") from error
    except RecursionError:
        raise DataError(f"{where}: not valid JSON: nested too deeply") from None
    except ValueError as error:  # Python parses integers of at most 4,300 digits
        raise DataError(f"{where}: not valid JSON: a number has too many digits") from error
    if not isinstance(value, kind):
        raise DataError(f"{where}: expected {json_type(kind)}, found {json_type(type(value))}")
    return value


def json_type(kind: type) -> str:
    """Returns the JSON name of a Python type: "a list"."""
    return _NAMES.get(kind, "a number")
