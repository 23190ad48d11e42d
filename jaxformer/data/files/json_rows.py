"""JSON rows: an object on each line, or a list of objects."""

import io
import json
from collections.abc import Iterator
from json.decoder import WHITESPACE
from pathlib import Path
from typing import Any, TextIO

from jaxformer.data.files.lines import Malformed, byte_lines, map_or_report, opened
from jaxformer.data.files.record import Record, table_line, table_row
from jaxformer.errors import DataError
from jaxformer.io.files import json_type, parse_json

_CHUNK = 1 << 16
_FORM = "a .json table is a list of objects, or has an object on each line"


def read_json_lines(path: Path, malformed: Malformed | None = None) -> Iterator[Record]:
    """Yields the objects of a file that has one on each line; blank lines are skipped."""

    def row(numbered: tuple[int, bytes]) -> Record:
        number, line = numbered
        return table_line(path, number, parse_json(line, f"{path}:{number}"))

    numbered = enumerate(map(bytes.strip, byte_lines(path)), start=1)
    yield from map_or_report(row, (pair for pair in numbered if pair[1]), malformed)


def read_json(path: Path, malformed: Malformed | None = None) -> Iterator[Record]:
    """Yields the objects of a list, or of a file that has one on each line."""
    with opened(path) as file:
        start = file.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"["):
        yield from map_or_report(_row, _read_list(path), malformed)
        return
    number = 0
    try:
        for record in read_json_lines(path, malformed):
            number = record.number
            yield record
    except DataError as error:
        raise error if number else DataError(f"{error}; {_FORM}") from error


def _row(record: Record) -> Record:
    """The item of a list, which must be an object."""
    if not isinstance(record.values, dict):
        found = json_type(type(record.values))
        raise DataError(f"{record.where}: expected a JSON object, found {found}")
    return record


def _read_list(path: Path) -> Iterator[Record]:
    """Yields the items of a list, with few of them in memory."""
    number = 0
    try:
        with opened(path) as file:
            text = _Text(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            text.take("[")
            while text.next() != "]":
                if number:
                    text.take(",")
                number += 1
                yield table_row(path, number, text.value())
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
    except ValueError as error:  # Python parses integers of at most 4,300 digits
        reason = "a number has too many digits"
        raise DataError(f"{path}, row {number}: not valid JSON: {reason}") from error


class _Text:
    """The text of a file, from which JSON values are read one after the other."""

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
        """Skips the next character that is not blank."""
        if self.next() != character:
            raise json.JSONDecodeError(f"Expecting {character!r}", self._text, self._place)
        self._place += 1

    def value(self) -> Any:
        """Reads the next value."""
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
        self._text = self._text[self._place :] + chunk
        self._place = 0
        return bool(chunk)
