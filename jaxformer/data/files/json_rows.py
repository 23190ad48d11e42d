"""JSON rows: an object on each line, or a list of objects."""

import io
import json
from collections.abc import Callable, Iterator
from json.decoder import WHITESPACE
from pathlib import Path
from typing import Any, TextIO

from jaxformer.data.files.lines import byte_lines, opened
from jaxformer.data.files.record import Record, table_line, table_row
from jaxformer.errors import DataError
from jaxformer.io.json_files import json_type, parse_json

_CHUNK = 1 << 16
_FORM = "a .json table is a list of objects, or has an object on each line"


def read_json_lines(path: Path, malformed: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Yields the objects of a file that has one on each line; blank lines are skipped.

    Args:
        path: The file.
        malformed: Receives a message for each line that is no object, which is left out; None:
            such a line is an error.

    Raises:
        DataError: The file cannot be read, or a line is no object; names the line.
    """
    for number, line in enumerate(byte_lines(path), start=1):
        if line := line.strip():
            try:
                values = parse_json(line, f"{path}:{number}")
            except DataError as error:
                if malformed is None:
                    raise
                malformed(str(error))
                continue
            yield table_line(path, number, values)


def read_json(path: Path) -> Iterator[Record]:
    """Yields the objects of a list, or of a file that has one on each line.

    Raises:
        DataError: The file cannot be read, or has another form; names the line or the row.
    """
    with opened(path) as file:
        start = file.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"["):
        yield from _read_list(path)
        return
    number = 0
    try:
        for record in read_json_lines(path):
            number = record.number
            yield record
    except DataError as error:
        raise error if number else DataError(f"{error}; {_FORM}") from error


def _read_list(path: Path) -> Iterator[Record]:
    """Yields the objects of a list, holding few of them in memory."""
    number = 0
    try:
        with opened(path) as file:
            text = _Text(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            text.take("[")
            while text.next() != "]":
                if number:
                    text.take(",")
                number += 1
                value = text.value()
                if not isinstance(value, dict):
                    found = json_type(type(value))
                    raise DataError(f"{path}, row {number}: expected a JSON object, found {found}")
                yield table_row(path, number, value)
            text.take("]")
            if more := text.next():
                raise DataError(f"{path}: not valid JSON: {more!r} after the end of the list")
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, after row {number}: not UTF-8 ({error.reason})") from error
    except RecursionError:
        raise DataError(f"{path}, row {number}: not valid JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, row {number}: not valid JSON: {error.msg}") from error
    except ValueError as error:  # Python reads integers of 4,300 digits at most
        reason = "a number has too many digits"
        raise DataError(f"{path}, row {number}: not valid JSON: {reason}") from error


class _Text:
    """The text of a file, from which JSON values are taken one after the other."""

    def __init__(self, file: TextIO):
        self._file, self._text, self._place = file, "", 0
        self._decoder = json.JSONDecoder()

    def next(self) -> str:
        """Returns the next character that is not blank; "" at the end."""
        while True:
            self._place = WHITESPACE.match(self._text, self._place).end()
            if self._place < len(self._text) or not self._more(_CHUNK):
                return self._text[self._place : self._place + 1]

    def take(self, character: str) -> None:
        """Steps over the next character that is not blank."""
        if self.next() != character:
            raise json.JSONDecodeError(f"Expecting {character!r}", self._text, self._place)
        self._place += 1

    def value(self) -> Any:
        """Takes the next value."""
        self.next()
        while True:
            try:
                value, self._place = self._decoder.raw_decode(self._text, self._place)
                return value
            except json.JSONDecodeError as error:
                # An open string is reported at its beginning.
                may_go_on = error.msg.startswith("Unterm") or len(self._text) - error.pos < 16
                if not may_go_on or not self._more(max(_CHUNK, len(self._text))):
                    raise

    def _more(self, size: int) -> bool:
        chunk = self._file.read(size)
        self._text, self._place = self._text[self._place :] + chunk, 0
        return bool(chunk)
