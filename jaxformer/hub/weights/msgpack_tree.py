"""Locates the arrays of a tree in a msgpack file written by Flax.

The reader scans headers without building objects or reading the arrays' bytes, so arrays can be
memory-mapped one at a time. The reader of msgpack would copy the whole file.
"""

import math
import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.weights.layouts import Shape
from jaxformer.hub.weights.tensors import DTYPES, Tensor

ARRAY, SCALAR = 1, 3
"""Flax's extension types for arrays and NumPy scalars."""
CHUNKED = "__msgpack_chunked_array__"
"""The key that marks a dictionary as an array in several pieces."""
_DEEPEST = 32
_MOST_ENTRIES = 10**6
_LONGEST_NAME = 2**12
_LARGEST_DIM = 2**40
NAMED_DTYPES = {dtype.name: dtype for dtype in DTYPES.values()}
"""The dtypes of arrays by their names in files."""
_MAP = "a dictionary"
_LIST = "a list"
_TEXT = "a text"
_BYTES = "bytes"
_OBJECT = "an object"
_SIZE = "a size"
_NUMBER = "a number"
_TRUE = "true"
# First byte of a value -> its kind, and the number of bytes of its size, or the size itself:
# https://github.com/msgpack/msgpack/blob/master/spec.md
_RANGES = {
    range(0x80): (_SIZE, 0x7F),
    range(0x80, 0x90): (_MAP, 0x0F),
    range(0x90, 0xA0): (_LIST, 0x0F),
    range(0xA0, 0xC0): (_TEXT, 0x1F),
    range(0xCA, 0xCC): (_NUMBER, 0),
    range(0xD0, 0xD4): (_NUMBER, 0),
    range(0xE0, 0x100): (_NUMBER, 0),
    range(0xC0, 0xC1): ("nothing (nil)", 0),
    range(0xC2, 0xC3): ("false", 0),
    range(0xC3, 0xC4): (_TRUE, 0),
}
_SHORT = {head: (kind, head & mask) for heads, (kind, mask) in _RANGES.items() for head in heads}
_SHORT |= {0xD4 + power: (_OBJECT, 2**power) for power in range(5)}
_LONG = {
    0xC4: (_BYTES, 1), 0xC5: (_BYTES, 2), 0xC6: (_BYTES, 4),
    0xC7: (_OBJECT, 1), 0xC8: (_OBJECT, 2), 0xC9: (_OBJECT, 4),
    0xCC: (_SIZE, 1), 0xCD: (_SIZE, 2), 0xCE: (_SIZE, 4), 0xCF: (_SIZE, 8),
    0xD9: (_TEXT, 1), 0xDA: (_TEXT, 2), 0xDB: (_TEXT, 4),
    0xDC: (_LIST, 2), 0xDD: (_LIST, 4), 0xDE: (_MAP, 2), 0xDF: (_MAP, 4),
}  # fmt: skip


class Piece(NamedTuple):
    """Consecutive values of an array in the file."""

    start: int
    """The offset of the first byte."""
    count: int
    """The number of values."""


class Leaf(NamedTuple):
    """An array of a tree."""

    path: tuple[str, ...]
    """The path of keys in the tree."""
    tensor: Tensor
    """The shape, and the dtype in the file."""
    code: int = ARRAY
    """The extension type."""
    pieces: tuple[Piece, ...] = ()
    """The values in a file, in C order; in several pieces if larger than 1 GiB."""


def leaves_of(path: Path) -> list[Leaf]:
    """Returns the arrays of a file in order."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            raise DataError(f"{path}: is empty: fetch it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Scanner(path, data).leaves()


class _Scanner:
    """Scans a file from header to header."""

    def __init__(self, path: Path, data: mmap.mmap):
        self._path, self._data = path, data
        self._at = self._entries = 0
        self._end = len(data)
        self._keys: tuple[str, ...] = ()
        self._leaves: list[Leaf] = []

    def leaves(self) -> list[Leaf]:
        self._map((), *self._header())
        if self._at != len(self._data):
            raise self._problem(f"{len(self._data) - self._at:,} bytes follow the tree of arrays")
        return self._leaves

    def _map(self, path: tuple[str, ...], kind: str, size: int) -> None:
        """Reads a dictionary of arrays and dictionaries after its header."""
        self._keys = path
        if len(path) > _DEEPEST:
            raise self._problem(f"dictionaries are nested more than {_DEEPEST} deep")
        self._check_map(kind, size)
        seen: set[str] = set()
        for number in range(size):
            key = self._key(seen)
            if number == 0 and key == CHUNKED:
                self._leaves.append(self._chunked(path))
                return
            self._keys = inner = (*path, key)
            header = self._header()
            if header[0] == _MAP:
                self._map(inner, *header)
            else:
                shape, dtype, piece, code = self._array(*header)
                self._leaves.append(Leaf(inner, Tensor(shape, dtype), code, (piece,)))

    def _check_map(self, kind: str, size: int) -> None:
        if kind != _MAP:
            raise self._problem(
                f"has {_describe_kind(kind)} where there must be a dictionary of arrays"
            )
        self._entries += size
        if self._entries > _MOST_ENTRIES:
            raise self._problem(f"there are more than {_MOST_ENTRIES:,} keys")

    def _key(self, seen: set[str]) -> str:
        kind, size = self._header()
        if kind != _TEXT:
            raise self._problem(f"a key is {_describe_kind(kind)}, not a text")
        key = self._text(size)
        if not key or set(key) & set("./\0"):
            raise self._problem(f"the key {key!r} is not the name of a part of a model")
        if key in seen:
            raise self._problem(f"the key {key!r} occurs twice")
        seen.add(key)
        return key

    def _text(self, size: int) -> str:
        if size > _LONGEST_NAME:
            raise self._problem(f"a name has {size:,} bytes")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self._problem("a name is not UTF-8") from error

    def _array(self, kind: str, size: int) -> tuple[Shape, np.dtype, Piece, int]:
        """Reads an array in one piece: `[shape, dtype, bytes]` in an extension type."""
        if kind != _OBJECT:
            raise self._problem(f"holds {_describe_kind(kind)}, not an array of numbers")
        code = self._take(1)[0]
        if code not in (ARRAY, SCALAR):
            raise self._problem(f"holds an object of the unknown type {code}, not an array")
        outer, self._end = self._end, self._at + size
        if self._end > outer:
            raise self._problem(f"says that it has {size:,} bytes, but the file ends earlier")
        if (found := self._header()) != (_LIST, 3):
            what = "an array's shape, dtype and values"
            raise self._problem(f"has {_describe_kind(found[0])} where there must be {what}")
        shape = tuple(self._size() for _ in range(self._needed(_LIST, "for its shape")))
        dtype = self._dtype()
        kind, size = self._header()
        expected = math.prod(shape) * dtype.itemsize
        if kind != _BYTES or size != expected or max(shape, default=0) > _LARGEST_DIM:
            have = f"{size:,} bytes" if kind == _BYTES else _describe_kind(kind)
            raise self._problem(
                f"is {dtype.name} {list(shape)}, {expected:,} bytes, but has {have}"
            )
        if self._at + size != self._end:
            raise self._problem("has a size that differs from that of its values")
        piece = Piece(self._at, math.prod(shape))
        self._at, self._end = self._end, outer
        return shape, dtype, piece, code

    def _dtype(self) -> np.dtype:
        kind, size = self._header()
        name = self._text(size) if kind == _TEXT else None
        if name not in NAMED_DTYPES:
            raise self._problem(
                f"has the dtype {name!r}: only one of {', '.join(NAMED_DTYPES)} can be read"
            )
        return NAMED_DTYPES[name]

    def _chunked(self, path: tuple[str, ...]) -> Leaf:
        """Reads the rest of an array in several pieces."""
        self._needed(_TRUE, f"where there must be {CHUNKED}: true")
        shape: Shape = ()
        found = []
        for _ in range(2):
            key = self._key(set())
            kind, count = self._header()
            self._check_map(kind, count)
            for number in range(count):
                if self._key(set()) != str(number):
                    raise self._problem(f"{key}: its pieces are not numbered from 0")
                if key == "shape":
                    shape = (*shape, self._size())
                else:
                    found.append(self._array(*self._header()))
        dtypes = {dtype for _, dtype, _, _ in found}
        pieces = tuple(piece for _, _, piece, _ in found)
        total = sum(piece.count for piece in pieces)
        if len(dtypes) != 1 or math.prod(shape) != total:
            raise self._problem(
                f"is an array of shape {list(shape)} whose pieces have {total:,} values"
            )
        return Leaf(path, Tensor(shape, dtypes.pop()), pieces=pieces)

    def _size(self) -> int:
        return self._needed(_SIZE, "for a size")

    def _needed(self, wanted: str, where: str) -> int:
        """Reads a header of the required kind, and returns its size."""
        kind, size = self._header()
        if kind != wanted:
            raise self._problem(f"has {_describe_kind(kind)} {where}")
        return size

    def _header(self) -> tuple[str, int]:
        """Reads the next header: the kind of the value, and its size."""
        head = self._take(1)[0]
        if head in _LONG:
            kind, width = _LONG[head]
            return kind, int.from_bytes(self._take(width), "big")
        return _SHORT.get(head, ("nothing known", 0))

    def _take(self, count: int) -> bytes:
        if self._at + count > self._end:
            raise self._problem("ends in the middle")
        self._at += count
        return self._data[self._at - count : self._at]

    def _problem(self, text: str) -> DataError:
        where = f"{self._path}: {'/'.join(self._keys)}".rstrip(": ")
        return DataError(f"{where}: {text}: not a complete file of Flax parameters; fetch it again")


def _describe_kind(kind: str) -> str:
    return _NUMBER if kind == _SIZE else kind
