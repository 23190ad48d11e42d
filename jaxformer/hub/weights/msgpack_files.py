"""The arrays of Flax checkpoints, flax_model.msgpack, read and written one at a time."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict

from jaxformer.errors import DataError
from jaxformer.hub.weights.arrays import aligned_empty, check_finite, copy_into
from jaxformer.hub.weights.msgpack_tree import CHUNKED, SCALAR, Leaf, leaves_of
from jaxformer.hub.weights.tensors import Tensor, shards_of
from jaxformer.io.model_files import file_in

SINGLE = "flax_model.msgpack"
INDEX = "flax_model.msgpack.index.json"
CHUNK = 2**30
"""The size in bytes of the largest array that Flax writes in one piece."""


def has_msgpack(folder: Path) -> bool:
    """Returns whether a folder contains a Flax checkpoint, in one or several files."""
    return any(file_in(folder, name) is not None for name in (SINGLE, INDEX))


class MsgpackFiles:
    """The `Tensors` of a folder by path, each memory-mapped when it is read.

    Paths are joined by "."; `files` maps file names to their arrays, in order.
    """

    unused = computed = ()

    def __init__(self, folder: str | os.PathLike):
        """Locates all arrays without reading them."""
        self.folder = Path(folder)
        self.files: dict[str, list[Leaf]] = {}
        self.tensors: dict[str, Tensor] = {}
        self._locations: dict[str, tuple[Path, Leaf]] = {}
        for path, named in shards_of(self.folder, SINGLE, INDEX).items():
            self.files[path.name] = leaves_of(path)
            for leaf in self.files[path.name]:
                name = ".".join(leaf.path)
                if name in self._locations:
                    other = self._locations[name][0].name
                    raise DataError(f"{path}: {'/'.join(leaf.path)} is in {other} as well")
                self._locations[name] = path, leaf
                self.tensors[name] = leaf.tensor
            for name in named:
                if self._locations.get(name.replace("/", "."), (None,))[0] != path:
                    raise DataError(
                        f"{self.folder / INDEX} says that {name} is in {path.name}, where it is not"
                    )

    def read(self, name: str) -> np.ndarray:
        """Returns an array, as a view of the file or a copy if it is in several pieces."""
        path, leaf = self._locations[name]
        shape, dtype = leaf.tensor
        parts = [
            np.memmap(path, dtype, "r", piece.start, (piece.count,))
            for piece in leaf.pieces
            if piece.count
        ]
        if len(parts) == 1:
            return np.asarray(parts[0]).reshape(shape)
        joined = aligned_empty(shape, dtype)
        if parts:
            np.concatenate(parts, out=joined.reshape(-1))
        return joined


def write_tree(
    path: Path, described: Sequence[Leaf], arrays: Iterable[np.ndarray], chunk: int = CHUNK
) -> None:
    """Writes a file of arrays in the order of `described`, one at a time."""
    tree = unflatten_dict({leaf.path: leaf for leaf in described})
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
    # Piece by piece, since `msgpack_serialize` would keep all of them in memory.
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
