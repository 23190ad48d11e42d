"""Trees of arrays in msgpack files, as Flax writes them: which arrays there are, and where.

The reader goes from header to header and builds no objects; it never reads an array's bytes, which
may then be mapped into memory one array at a time. msgpack's own reader would copy the whole file.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.weights.layouts import Shape
from jaxformer.hub.weights.tensors import DTYPES

ARRAY, SCALAR = 1, 3
"""Flax's extension types of arrays and of NumPy's scalars."""
CHUNKED = "__msgpack_chunked_array__"
"""The key that says that a dictionary is an array in pieces."""
_DEEPEST = 32
_MOST_ENTRIES = 10**6
_LONGEST_NAME = 2**12
_LARGEST_DIM = 2**40
_DTYPES = {dtype.name: dtype for dtype in DTYPES.values()}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARIES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_NUMBERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_TRUE = 0xC3


class Piece(NamedTuple):
    """Consecutive values of an array in the file."""

    start: int
    """The offset of the first byte."""
    count: int
    """The number of values."""


@dataclass(frozen=True)
class Leaf:
    """One array of a tree."""

    path: tuple[str, ...]
    """The keys that lead to it."""
    shape: Shape
    dtype: np.dtype
    pieces: tuple[Piece, ...]
    """Its values in C order; several pieces where it is larger than 1 GiB."""
    code: int = ARRAY
    """The extension type."""
    chunked: bool = False
    """Whether it is written as a dictionary of pieces."""


def leaves_of(path: Path) -> list[Leaf]:
    """Returns the arrays of a file, in its order."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            raise DataError(f"{path}: is empty: fetch it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Scanner(path, data).leaves()


class _Scanner:
    """Goes through a file, from one header to the next."""

    def __init__(self, path: Path, data: mmap.mmap):
        self._path, self._data = path, data
        self._at = self._entries = 0
        self._end = len(data)
        self._keys: tuple[str, ...] = ()
        self._leaves: list[Leaf] = []

    def leaves(self) -> list[Leaf]:
        self._map(())
        if self._at != len(self._data):
            raise self._problem(f"{len(self._data) - self._at:,} bytes follow the tree of arrays")
        return self._leaves

    def _map(self, path: tuple[str, ...]) -> None:
        """Reads a dictionary of arrays and dictionaries."""
        self._keys = path
        if len(path) > _DEEPEST:
            raise self._problem(f"dictionaries are nested more than {_DEEPEST} deep")
        seen: set[str] = set()
        for number in range(self._map_size()):
            key = self._key(seen)
            if number == 0 and key == CHUNKED:
                self._leaves.append(self._chunked(path))
                return
            self._keys = inner = (*path, key)
            head = self._peek()
            if 0x80 <= head <= 0x8F or head in _MAPS:
                self._map(inner)
            else:
                shape, dtype, piece, code = self._array()
                self._leaves.append(Leaf(inner, shape, dtype, (piece,), code))

    def _map_size(self) -> int:
        head = self._byte()
        size = head & 0x0F if 0x80 <= head <= 0x8F else self._sized(head, _MAPS)
        if size is None:
            raise self._problem(f"{_kind(head)} lies where a dictionary of arrays must be")
        self._entries += size
        if self._entries > _MOST_ENTRIES:
            raise self._problem(f"there are more than {_MOST_ENTRIES:,} keys")
        return size

    def _key(self, seen: set[str]) -> str:
        head = self._byte()
        size = head & 0x1F if 0xA0 <= head <= 0xBF else self._sized(head, _TEXTS)
        if size is None:
            raise self._problem(f"a key is {_kind(head)}, not a text")
        key = self._text(size)
        if not key or set(key) & set("./\0"):
            raise self._problem(f"the key {key!r} is not the name of a part of a model")
        if key in seen:
            raise self._problem(f"the key {key!r} is there twice")
        seen.add(key)
        return key

    def _text(self, size: int) -> str:
        if size > _LONGEST_NAME:
            raise self._problem(f"a name has {size:,} bytes")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self._problem("a name is not UTF-8") from error

    def _array(self) -> tuple[Shape, np.dtype, Piece, int]:
        """Reads an array in one piece: `[shape, dtype, bytes]` in an extension type."""
        head = self._byte()
        size = _FIXED_EXTENSIONS.get(head) or self._sized(head, _EXTENSIONS)
        if size is None:
            raise self._problem(f"holds {_kind(head)}, not an array of numbers")
        code = self._byte()
        if code not in (ARRAY, SCALAR):
            raise self._problem(f"holds an object of the unknown type {code}, not an array")
        outer, self._end = self._end, self._at + size
        if self._end > outer:
            raise self._problem(f"says that it has {size:,} bytes, and the file ends before")
        self._expect(0x93, "an array's shape, dtype and values")
        head = self._byte()
        if not 0x90 <= head <= 0x9F:
            raise self._problem(f"has {_kind(head)} for its shape")
        shape = tuple(self._number() for _ in range(head & 0x0F))
        dtype = self._dtype()
        head = self._byte()
        size = self._sized(head, _BINARIES)
        expected = math.prod(shape) * dtype.itemsize
        if size is None or size != expected or max(shape, default=0) > _LARGEST_DIM:
            have = _kind(head) if size is None else f"{size:,} bytes"
            raise self._problem(
                f"is {dtype.name} {list(shape)}, {expected:,} bytes, but has {have}"
            )
        if self._at + size != self._end:
            raise self._problem("says another size than that of its values")
        piece = Piece(self._at, math.prod(shape))
        self._at, self._end = self._end, outer
        return shape, dtype, piece, code

    def _dtype(self) -> np.dtype:
        head = self._byte()
        size = head & 0x1F if 0xA0 <= head <= 0xBF else self._sized(head, _TEXTS)
        name = None if size is None else self._text(size)
        if name not in _DTYPES:
            raise self._problem(
                f"has the dtype {name!r}: only one of {', '.join(_DTYPES)} can be read"
            )
        return _DTYPES[name]

    def _chunked(self, path: tuple[str, ...]) -> Leaf:
        """Reads the rest of a dictionary of pieces."""
        self._expect(_TRUE, f"{CHUNKED}: true")
        shape: Shape = ()
        found: dict[str, tuple] = {}
        for _ in range(2):
            key = self._key(set())
            count = self._map_size()
            for number in range(count):
                if self._key(set()) != str(number):
                    raise self._problem(f"{key}: its pieces are not numbered from 0")
                if key == "shape":
                    shape = (*shape, self._number())
                else:
                    found[str(number)] = self._array()
        dtypes = {dtype for _, dtype, _, _ in found.values()}
        pieces = tuple(piece for _, _, piece, _ in found.values())
        total = sum(piece.count for piece in pieces)
        if len(dtypes) != 1 or math.prod(shape) != total:
            raise self._problem(f"is an array of shape {list(shape)} whose pieces have {total:,}")
        return Leaf(path, shape, dtypes.pop(), pieces, chunked=True)

    def _number(self) -> int:
        head = self._byte()
        if head <= 0x7F:
            return head
        size = self._sized(head, _NUMBERS)
        if size is None:
            raise self._problem(f"has {_kind(head)} for a size")
        return size

    def _expect(self, head: int, what: str) -> None:
        if (found := self._byte()) != head:
            raise self._problem(f"has {_kind(found)} where there must be {what}")

    def _sized(self, head: int, widths: Mapping[int, int]) -> int | None:
        """The number after a head of one of these kinds; None: it is of another kind."""
        width = widths.get(head)
        return None if width is None else int.from_bytes(self._take(width), "big")

    def _peek(self) -> int:
        head = self._byte()
        self._at -= 1
        return head

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        if self._at + count > self._end:
            raise self._problem("ends in the middle")
        self._at += count
        return self._data[self._at - count : self._at]

    def _problem(self, text: str) -> DataError:
        where = f"{self._path}: {'/'.join(self._keys)}".rstrip(": ")
        return DataError(f"{where}: {text}: not a whole file of Flax parameters; fetch it again")


def _kind(head: int) -> str:
    """What a value is that begins with this byte, in words."""
    kinds = {
        0xC0: "nothing (nil)",
        0xC2: "false",
        _TRUE: "true",
        0xCA: "a number",
        0xCB: "a number",
    }
    if head in kinds:
        return kinds[head]
    if head <= 0x7F or head >= 0xE0 or 0xCC <= head <= 0xD3:
        return "a number"
    if 0xA0 <= head <= 0xBF or head in _TEXTS:
        return "a text"
    if 0x90 <= head <= 0x9F or head in (0xDC, 0xDD):
        return "a list"
    if 0x80 <= head <= 0x8F or head in _MAPS:
        return "a dictionary"
    if head in _BINARIES:
        return "bytes"
    return "an object" if head in _EXTENSIONS or head in _FIXED_EXTENSIONS else "nothing known"
