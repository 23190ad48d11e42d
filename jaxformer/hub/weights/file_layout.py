"""The layout of a checkpoint's safetensors files, for byte-identical exports."""

import abc
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.found import INDEX, weight_names_in
from jaxformer.hub.weights.names import KnownNames, current_name
from jaxformer.hub.weights.tensors import (
    DTYPES,
    Tensor,
    TensorFiles,
    header_bytes,
    shards_of,
    write_with_header,
)
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.io.files import read_json
from jaxformer.io.model_files import file_in

_LARGEST_ARANGE = 2**20


class Layout(abc.ABC):
    """The layout of a checkpoint's files; its fields can be stored as JSON.

    Attributes:
        kind: The `format` of `save` that writes such files.
        tensors: The shape and dtype of each weight tensor, by its name in PyTorch's file.
        largest: The number of bytes of the tensors in the largest file.
    """

    kind: str
    contents: str
    """The contents of the JSON file, for messages."""
    tensors: Mapping[str, Tensor]
    largest: int

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads the layout from a file written by `write`."""
        try:
            return cls(**read_json(file))
        except TypeError as error:
            raise DataError(f"{file}: must have {cls.contents}") from error

    def write(self, file: Path) -> None:
        """Writes the layout to a JSON file."""
        file.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @property
    def usual_dtype(self) -> np.dtype:
        """The dtype of most values."""
        counts: dict[np.dtype, int] = {}
        for tensor in self.tensors.values():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
        return max(counts, key=counts.__getitem__)

    def sources(
        self, model_format: ModelFormat, placements: list[Placement]
    ) -> dict[str, Placement] | None:
        """Returns the placement in a model of each tensor of the files.

        `placements` are the tensors of the model's files. Returns None if the tensors differ.
        """
        known = KnownNames(self.tensors, model_format)
        found: dict[str, Placement] = {}
        for placement in placements:
            name = known.find(placement.tensor)
            if name is None or self.tensors[name].shape != placement.shape:
                return None
            found[name] = placement
        for copy in model_format.copies:
            for source in map(known.find, model_format.originals(copy)):
                if (name := known.find(copy)) is not None and source in found:
                    found.setdefault(name, found[source])
        # Files may repeat a constant table in each layer (ESM).
        for name, tensor in self.tensors.items():
            source = found.get(known.current[current_name(name, model_format)])
            if source is not None and not source.places and tensor.shape == source.shape:
                found.setdefault(name, source)
        return found if found.keys() == self.tensors.keys() else None

    @abc.abstractmethod
    def write_tensors(self, folder: Path, read: Callable[[str], np.ndarray]) -> None:
        """Writes files in this layout; `read` returns a tensor by its name in PyTorch's file."""


@dataclass(frozen=True)
class FileLayout(Layout):
    """The headers of safetensors files, and their index."""

    headers: Mapping[str, str]
    """The name of a file -> its header, byte for byte."""
    index: str | None = None
    """The text of the index, if there are several files."""
    counted: Sequence[str] = ()
    """Tensors that are not read: 0, 1, 2, ... along the last axis, such as BERT's position_ids."""

    kind = "hf"
    contents = "the headers of safetensors files"

    @classmethod
    def of_folder(cls, folder: Path) -> "FileLayout":
        """Returns the layout of the files in a folder, or raises DataError if there are none."""
        names = weight_names_in(folder)
        index = file_in(folder, names.index)
        files = TensorFiles(folder, names.single, names.index)
        paths = shards_of(folder, names.single, names.index)
        return cls(
            # An export has no variant, so its file names have none.
            {names.plain(path.name): header_bytes(path).decode() for path in paths},
            None if index is None else names.plain(index.read_text(encoding="utf-8")),
            [name for name in files.tensors if _is_arange(files, name)],
        )

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The shape and dtype of each tensor with weights, by its name in the files."""
        return {
            name: _described(entry)
            for header in self.headers.values()
            for name, entry in _entries(header).items()
            if name not in self.counted
        }

    @property
    def largest(self) -> int:
        """The number of bytes of the tensors in the largest file."""
        ends = [
            max((entry["data_offsets"][1] for entry in _entries(header).values()), default=0)
            for header in self.headers.values()
        ]
        return max(ends)

    def write_tensors(self, folder: Path, read: Callable[[str], np.ndarray]) -> None:
        """Writes files with these headers; `read` returns a tensor by its name in the files."""
        for file, header in self.headers.items():
            entries = _entries(header)
            names = sorted(entries, key=lambda name: entries[name]["data_offsets"])
            kinds = {name: _described(entries[name]) for name in names}
            tensors = (
                (name, _arange(kinds[name]) if name in self.counted else read(name))
                for name in names
            )
            write_with_header(folder / file, header.encode(), kinds, tensors)
        if self.index is not None:
            (folder / INDEX).write_text(self.index, encoding="utf-8")


def _is_arange(files: TensorFiles, name: str) -> bool:
    """Whether the values of a tensor are 0, 1, 2, ... along its last axis."""
    tensor = files.tensors[name]
    if not (np.issubdtype(tensor.dtype, np.integer) and 0 < len(tensor.shape) <= 2):
        return False
    return math.prod(tensor.shape) <= _LARGEST_ARANGE and np.array_equal(
        files.read(name), _arange(tensor)
    )


def _arange(tensor: Tensor) -> np.ndarray:
    return np.broadcast_to(np.arange(tensor.shape[-1]).astype(tensor.dtype), tensor.shape)


def _described(entry: Mapping[str, Any]) -> Tensor:
    return Tensor(tuple(entry["shape"]), DTYPES[entry["dtype"]])


def _entries(header: str) -> dict[str, dict[str, Any]]:
    found = json.loads(header)
    found.pop("__metadata__", None)
    return found
