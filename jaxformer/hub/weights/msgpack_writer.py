"""Writes trees of arrays as Flax does, byte for byte, with one array at a time in memory."""

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxformer.hub.weights.arrays import check_finite, copy_into
from jaxformer.hub.weights.msgpack_tree import ARRAY, CHUNKED
from jaxformer.hub.weights.tensors import Tensor

CHUNK = 2**30
"""The bytes of the largest array that Flax writes in one piece."""
_FIXED_EXTENSIONS = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


class Array(NamedTuple):
    """An array of a tree."""

    path: tuple[str, ...]
    """The keys that lead to it."""
    tensor: Tensor
    """Its shape, and the dtype that it is cast to."""
    code: int = ARRAY
    """The extension type."""


def write_tree(
    path: Path, described: Sequence[Array], arrays: Iterable[np.ndarray], chunk: int = CHUNK
) -> None:
    """Writes a file.

    Args:
        path: The file.
        described: The arrays in their order; those below one key come one after the other.
        arrays: The arrays, in the same order.
        chunk: The bytes of the largest array that is written in one piece.

    Raises:
        DataError: A weight is not finite, or not in its new dtype.
        ValueError: An array has another shape.
    """
    tree: dict[str, Any] = {}
    for array in described:
        inner = tree
        for key in array.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[array.path[-1]] = array
    with path.open("wb") as file:
        _write(file, tree, iter(arrays), chunk)


def _write(file: BinaryIO, tree: dict[str, Any], arrays: Iterator[np.ndarray], chunk: int) -> None:
    file.write(_map(len(tree)))
    for key, value in tree.items():
        file.write(_text(key))
        if isinstance(value, dict):
            _write(file, value, arrays, chunk)
        else:
            _write_array(file, value, next(arrays), chunk)


def _write_array(file: BinaryIO, described: Array, array: np.ndarray, chunk: int) -> None:
    path, (shape, dtype), code = described
    if array.shape != shape:
        raise ValueError(f"{path} {array.shape} comes where {shape} is to be")
    copied = np.empty(shape, dtype)
    copy_into(copied, array)
    check_finite("/".join(path), copied, array)
    if copied.nbytes <= chunk:
        _write_piece(file, copied, code)
        return
    flat, step = copied.reshape(-1), max(1, chunk // dtype.itemsize)
    file.write(_map(3) + _text(CHUNKED) + b"\xc3" + _text("shape") + _map(len(shape)))
    for number, size in enumerate(shape):
        file.write(_text(str(number)) + _number(size))
    pieces = range(0, flat.size, step)
    file.write(_text("chunks") + _map(len(pieces)))
    for number, start in enumerate(pieces):
        file.write(_text(str(number)))
        _write_piece(file, flat[start : start + step], code)


def _write_piece(file: BinaryIO, array: np.ndarray, code: int) -> None:
    header = io.BytesIO()
    header.write(bytes([0x93, 0x90 | array.ndim]))
    header.write(b"".join(map(_number, array.shape)) + _text(array.dtype.name))
    count = math.prod(array.shape) * array.dtype.itemsize
    header.write(_headed(count, (0xC4, 0xC5, 0xC6)))
    length = len(header.getvalue()) + count
    fixed = _FIXED_EXTENSIONS.get(length)
    start = _headed(length, (0xC7, 0xC8, 0xC9)) if fixed is None else bytes([fixed])
    file.write(start + bytes([code]) + header.getvalue())
    file.write(array.reshape(-1).view(np.uint8).data)


def _map(size: int) -> bytes:
    return bytes([0x80 | size]) if size < 16 else _headed(size, (None, 0xDE, 0xDF))


def _text(text: str) -> bytes:
    data = text.encode()
    head = bytes([0xA0 | len(data)]) if len(data) < 32 else _headed(len(data), (0xD9, 0xDA, 0xDB))
    return head + data


def _number(value: int) -> bytes:
    return bytes([value]) if value < 128 else _headed(value, (0xCC, 0xCD, 0xCE, 0xCF))


def _headed(value: int, heads: Sequence[int | None]) -> bytes:
    """The shortest head for a number of 1, 2, 4 or 8 bytes, and the number."""
    for power, head in enumerate(heads):
        if head is not None and value < 256 ** (2**power):
            return bytes([head]) + value.to_bytes(2**power, "big")
    raise ValueError(f"{value:,} is too large for a msgpack file")
