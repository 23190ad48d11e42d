"""The layout of a Flax checkpoint's files, for byte-identical exports."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from jaxformer.hub.weights.file_layout import Layout
from jaxformer.hub.weights.flax_names import View, views_of
from jaxformer.hub.weights.msgpack_files import INDEX, MsgpackFiles, write_tree
from jaxformer.hub.weights.msgpack_tree import NAMED_DTYPES, Leaf
from jaxformer.hub.weights.tensors import Tensor
from jaxformer.io.model_files import file_in


@dataclass(frozen=True)
class FlaxLayout(Layout):
    """The arrays of each file in order, and the index."""

    files: Mapping[str, list[list]]
    """File name -> path joined by ".", shape, dtype and extension type of each array."""
    index: str | None = None
    """The text of the index, if there are several files."""

    kind = "flax"
    contents = "the arrays of msgpack files"

    @classmethod
    def of_files(cls, files: MsgpackFiles) -> "FlaxLayout":
        """Returns the layout of a folder's msgpack files."""
        index = file_in(files.folder, INDEX)
        return cls(
            {
                name: [
                    [".".join(path), tensor.shape, tensor.dtype.name, code]
                    for path, tensor, code, _ in leaves
                ]
                for name, leaves in files.files.items()
            },
            None if index is None else index.read_text(encoding="utf-8"),
        )

    @cached_property
    def views(self) -> dict[str, View]:
        """Name of a PyTorch tensor -> its view of an array."""
        arrays = [array for file in self.files.values() for array in file]
        return {
            tensor: view
            for name, shape, *_ in arrays
            for tensor, view in views_of(name, tuple(shape)).items()
        }

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Name of a PyTorch tensor -> shape and dtype."""
        arrays = {
            name: Tensor(tuple(shape), NAMED_DTYPES[dtype])
            for file in self.files.values()
            for name, shape, dtype, _ in file
        }
        return {name: view.described(arrays[view.source]) for name, view in self.views.items()}

    @property
    def largest(self) -> int:
        """The number of bytes of the arrays in the largest file."""
        return max(
            sum(math.prod(shape) * NAMED_DTYPES[dtype].itemsize for _, shape, dtype, _ in file)
            for file in self.files.values()
        )

    def write_tensors(self, folder: Path, read: Callable[[str], np.ndarray]) -> None:
        """Writes files in this layout; `read` returns a PyTorch tensor by name."""
        names: dict[str, list[str]] = {}
        for tensor, view in self.views.items():
            names.setdefault(view.source, []).append(tensor)

        def array(name: str) -> np.ndarray:
            parts = [self.views[tensor].write(read(tensor)) for tensor in names[name]]
            return np.stack(parts) if self.views[names[name][0]].row else parts[0]

        for file, kept in self.files.items():
            write_tree(
                folder / file,
                [
                    Leaf(tuple(name.split(".")), Tensor(tuple(shape), NAMED_DTYPES[dtype]), code)
                    for name, shape, dtype, code in kept
                ],
                (array(name) for name, *_ in kept),
            )
        if self.index is not None:
            (folder / INDEX).write_text(self.index, encoding="utf-8")
