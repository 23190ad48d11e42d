"""The arrays of a folder's Flax checkpoint, flax_model.msgpack, read one at a time."""

import os
from pathlib import Path

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.weights.arrays import aligned_empty
from jaxformer.hub.weights.msgpack_tree import Leaf, leaves_of
from jaxformer.hub.weights.tensors import Tensor, shards_of
from jaxformer.io.model_files import file_in

SINGLE = "flax_model.msgpack"
INDEX = "flax_model.msgpack.index.json"


def has_msgpack(folder: Path) -> bool:
    """Returns whether a folder has a Flax checkpoint, in one file or in several."""
    return any(file_in(folder, name) is not None for name in (SINGLE, INDEX))


class MsgpackFiles:
    """The arrays of a folder, each memory-mapped when it is read: `Tensors` by their paths.

    Paths are joined by "."; `files` are the names of the files -> the arrays in each, in order.
    """

    unused = computed = ()

    def __init__(self, folder: str | os.PathLike):
        """Finds all arrays, and reads none."""
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
        """Returns an array: a view of the file, or a copy if it is in several pieces."""
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
