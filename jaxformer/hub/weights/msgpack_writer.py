"""Writes trees of arrays as Flax does, with one array at a time in memory."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from flax.serialization import msgpack_serialize

from jaxformer.hub.weights.arrays import check_finite, copy_into
from jaxformer.hub.weights.msgpack_tree import CHUNKED, SCALAR, Leaf

CHUNK = 2**30
"""The bytes of the largest array that Flax writes in one piece."""


def write_tree(
    path: Path, described: Sequence[Leaf], arrays: Iterable[np.ndarray], chunk: int = CHUNK
) -> None:
    """Writes a file."""
    tree: dict[str, Any] = {}
    for array in described:
        inner = tree
        for key in array.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[array.path[-1]] = array
    with path.open("wb") as file:
        _write(file, tree, iter(arrays), chunk)


def _write(file: BinaryIO, tree: dict[str, Any], arrays: Iterator[np.ndarray], chunk: int) -> None:
    file.write(_map_header(len(tree)))
    for key, value in tree.items():
        file.write(msgpack_serialize(key))
        if isinstance(value, dict):
            _write(file, value, arrays, chunk)
        else:
            _write_array(file, value, next(arrays), chunk)


def _write_array(file: BinaryIO, described: Leaf, array: np.ndarray, chunk: int) -> None:
    path, (shape, dtype), code, _ = described
    if array.shape != shape:
        raise ValueError(f"{path}: got an array of shape {array.shape}, expected {shape}")
    copied = np.empty(shape, dtype)
    copy_into(copied, array)
    check_finite("/".join(path), copied, array)
    if copied.nbytes <= chunk:
        file.write(msgpack_serialize(copied[()] if code == SCALAR else copied))
        return
    # Piece by piece: `msgpack_serialize` would hold all of them at once.
    flat = copied.reshape(-1)
    step = max(1, chunk // dtype.itemsize)
    starts = range(0, flat.size, step)
    file.write(_map_header(3) + msgpack_serialize(CHUNKED) + msgpack_serialize(True))
    sizes = {str(number): size for number, size in enumerate(shape)}
    file.write(msgpack_serialize("shape") + msgpack_serialize(sizes, in_place=True))
    file.write(msgpack_serialize("chunks") + _map_header(len(starts)))
    for number, start in enumerate(starts):
        piece = msgpack_serialize(flat[start : start + step])
        file.write(msgpack_serialize(str(number)) + piece)


def _map_header(size: int) -> bytes:
    if size < 16:
        return bytes([0x80 | size])
    return b"\xde" + size.to_bytes(2, "big") if size < 2**16 else b"\xdf" + size.to_bytes(4, "big")
