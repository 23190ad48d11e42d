"""The tensors of a folder of safetensors files, read one at a time and written in shards."""

import copy
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
import safetensors

from jaxformer.errors import DataError
from jaxformer.hub.weights.arrays import check_finite, copy_into
from jaxformer.hub.weights.found import INDEX, SINGLE, unreadable_weights_in
from jaxformer.hub.weights.layouts import Shape
from jaxformer.io.files import check_no_pointer
from jaxformer.io.model_files import file_in, read_object
from jaxformer.io.notices import warn_once

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
}
"""Name of a dtype in safetensors files -> the dtype."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_TENSORS = 2**16
"""More than in any published model, even with one tensor per expert."""
_MAX_HEADER_BYTES = 2**26
# Suffixes of tensors in MXFP4.
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_POSITIVE, *(-x for x in _POSITIVE)], np.float32)
_BLOCKS, _SCALES = "_blocks", "_scales"
_EXPONENT_BIAS = 127


class Tensor(NamedTuple):
    """The shape and dtype of a tensor."""

    shape: Shape
    dtype: np.dtype


class Tensors(Protocol):
    """The tensors of a folder, by default with PyTorch's names and layouts.

    Attributes:
        folder: The folder.
        tensors: Name -> shape and dtype.
        unused: Names and patterns of optional tensors.
        computed: Names of tensors that are computed because the files lack them.
    """

    folder: Path
    tensors: Mapping[str, Tensor]
    unused: Sequence[str]
    computed: Collection[str]

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, as a view of the file if possible."""


def warn_about_unused_biases(files: Tensors, biases: Sequence[str]) -> None:
    """Warns about biases that the class in transformers has but does not use."""
    if biases:
        warn_once(
            f"{files.folder}: not used, because another bias of the same module counts in "
            f"transformers: {', '.join(biases)}"
        )


def same(files: Tensors, first: str, second: str) -> bool:
    """Returns whether two tensors have the same values."""
    return np.array_equal(files.read(first), files.read(second))


class _Location(NamedTuple):
    """The file of a tensor and its offset in bytes."""

    path: Path
    start: int


class TensorFiles:
    """The `Tensors` of a folder, each memory-mapped when it is read.

    `formats` are the values of "format" in the metadata of the files: "pt", "flax", ...
    """

    unused = computed = ()

    def __init__(self, folder: str | os.PathLike, single: str = SINGLE, index: str | None = INDEX):
        """Opens the file `single`, or the files in `index` unless it is None."""
        self.folder = Path(folder)
        self._locations: dict[str, _Location] = {}
        self.tensors: dict[str, Tensor] = {}
        self.formats: set[str] = set()
        for path, tensors in shards_of(self.folder, single, index).items():
            self._open(path)
            if len(self.tensors) > _MAX_TENSORS:
                raise DataError(_too_many_message(path, len(self.tensors), "its files have"))
            for name in tensors:
                if name not in self._locations or self._locations[name].path != path:
                    raise DataError(
                        f"{self.folder / str(index)} says that {name} is in {path.name}, where it "
                        "is not"
                    )

    def renamed(self, names: Mapping[str, str]) -> "TensorFiles":
        """Returns the same tensors under other names: new name -> name in the file."""
        other = copy.copy(self)
        other.tensors = {new: self.tensors[old] for new, old in names.items()}
        other._locations = {new: self._locations[old] for new, old in names.items()}
        return other

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as a view of the file; its pages are freed with the view."""
        (shape, dtype), (path, start) = self.tensors[name], self._locations[name]
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(path, dtype, "r", start, shape))

    def _open(self, path: Path) -> None:
        _check_header(path)
        try:
            # Checks that the file is complete: names, shapes, dtypes and offsets are consistent.
            with safetensors.safe_open(path, "np"):
                pass
            text = header_bytes(path)
            header = json.loads(text, object_pairs_hook=_unique_keys)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise DataError(
                f"{path}: not a complete safetensors file ({str(error)[:300]}): fetch it again"
            ) from error
        self.formats.add(str(header.pop("__metadata__", {}).get("format")))
        for name, entry in header.items():
            if entry["dtype"] not in DTYPES:
                raise DataError(
                    f"{path}: {name} has the dtype {entry['dtype']}, of a quantised model: "
                    f"must be one of {', '.join(DTYPES)}; fetch the model in bfloat16"
                )
            if name in self._locations:
                raise DataError(f"{path}: {name} is in {self._locations[name].path.name} as well")
            start = 8 + len(text) + entry["data_offsets"][0]
            self._locations[name] = _Location(path, start)
            self.tensors[name] = Tensor(tuple(entry["shape"]), DTYPES[entry["dtype"]])


class Mxfp4Tensors:
    """The `Tensors` of a folder, with MXFP4 weights converted to bfloat16, which is exact.
    `NAME_blocks` uint8 `[E, F, D / 32, 16]` and `NAME_scales` uint8 `[E, F, D / 32]` are `NAME`
    `[E, D, F]`: the lower four bits of a byte come first, and a scale is an exponent of two.

    References:
        Open Compute Project, Microscaling Formats (MX) 1.0, sections 5.1 and 5.2.
    """

    def __init__(self, files: Tensors):
        """Finds the MXFP4 tensors in `files`."""
        self._files = files
        self.folder, self.unused, self.computed = files.folder, files.unused, files.computed
        self.tensors = dict(files.tensors)
        self._packed = set()
        for blocks in [name for name in files.tensors if name.endswith(_BLOCKS)]:
            name = blocks.removesuffix(_BLOCKS)
            shape, dtype = self.tensors.pop(blocks)
            scales = self.tensors.pop(name + _SCALES, None)
            fits = len(shape) == 4 and dtype == np.uint8
            if not fits or scales != Tensor(shape[:-1], dtype):
                raise DataError(
                    f"{self.folder}: {blocks} {shape} {dtype} must be uint8 [E, F, G, 16] with "
                    f"{name}{_SCALES} uint8 [E, F, G]; fetch the model again"
                )
            experts, outputs, *packed = shape
            inputs = 2 * math.prod(packed)
            self.tensors[name] = Tensor((experts, inputs, outputs), np.dtype(jnp.bfloat16))
            self._packed.add(name)

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor: a new array for MXFP4, otherwise a view of the file if possible."""
        if name not in self._packed:
            return self._files.read(name)
        blocks, scales = (self._files.read(name + end) for end in (_BLOCKS, _SCALES))
        experts, inputs, outputs = self.tensors[name].shape
        found = np.empty((experts, inputs, outputs), jnp.bfloat16)
        # One expert at a time: float32 for all experts would take twice the memory.
        for expert, (own, exponents) in enumerate(zip(blocks, scales, strict=True)):
            pairs = np.stack([_VALUES[own & 15], _VALUES[own >> 4]], axis=-1)
            groups = pairs.reshape(*exponents.shape, -1)
            scaled = np.ldexp(groups, exponents[..., None].astype(np.int32) - _EXPONENT_BIAS)
            found[expert] = scaled.reshape(outputs, inputs).T
        return found


def write_tensors(
    folder: str | os.PathLike,
    described: Mapping[str, Tensor],
    tensors: Iterable[tuple[str, np.ndarray]],
    max_bytes: int,
) -> int:
    """Writes tensors to one file, or to several files with an index if they are too large."""
    sizes = {name: num_bytes(tensor) for name, tensor in described.items()}
    coming = iter(tensors)
    for path, names in shards_for(Path(folder), sizes, max_bytes).items():
        _write_file(path, {name: described[name] for name in names}, coming)
    return sum(sizes.values())


def shards_for(
    folder: Path, sizes: Mapping[str, int], max_bytes: int, single: str = SINGLE, index: str = INDEX
) -> dict[Path, list[str]]:
    """Distributes tensors over files, and writes the index if there are several files.

    `sizes` are the sizes of the tensors in bytes, in order. Only a file with a single tensor may be
    larger than `max_bytes`.
    """
    shards: list[list[str]] = [[]]
    shard_bytes = 0
    for name, size in sizes.items():
        if shards[-1] and shard_bytes + size > max_bytes:
            shards.append([])
            shard_bytes = 0
        shards[-1].append(name)
        shard_bytes += size
    if len(shards) == 1:
        return {folder / single: shards[0]}
    stem, ending = single.split(".")
    files = {
        f"{stem}-{number:05d}-of-{len(shards):05d}.{ending}": names
        for number, names in enumerate(shards, 1)
    }
    places = {name: file for file, names in files.items() for name in names}
    values = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
    text = json.dumps(values, indent=2, sort_keys=True)
    (folder / index).write_text(text + "\n", encoding="utf-8")
    return {folder / file: names for file, names in files.items()}


def _write_file(
    path: Path, described: Mapping[str, Tensor], tensors: Iterator[tuple[str, np.ndarray]]
) -> None:
    """Writes a safetensors file, with a new header."""
    # Transformers requires this field.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in described.items():
        start, end = end, end + num_bytes(tensor)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (start, end),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    write_with_header(path, text, described, tensors)


def write_with_header(
    path: Path,
    header: bytes,
    described: Mapping[str, Tensor],
    tensors: Iterator[tuple[str, np.ndarray]],
) -> None:
    """Writes a safetensors file with a given header and tensors in the order of `described`."""
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        # One buffer for all tensors: allocating memory takes as long as copying.
        buffer = np.empty(max(map(num_bytes, described.values()), default=0), np.uint8)
        for name, tensor in described.items():
            coming, array = next(tensors)
            if (coming, array.shape) != (name, tensor.shape):
                raise ValueError(f"got {coming} {array.shape}, expected {name} {tensor}")
            part = buffer[: num_bytes(tensor)]
            copied = part.view(tensor.dtype).reshape(tensor.shape)
            copy_into(copied, array)
            check_finite(name, copied, array)
            file.write(part.data)


def header_bytes(path: Path) -> bytes:
    """Returns the header of a safetensors file, including its trailing spaces."""
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little"))


def _check_header(path: Path) -> None:
    """Refuses a header whose parsing would take too much time or memory."""
    with path.open("rb") as file:
        start = file.read(128)
        check_no_pointer(start, str(path))
        size = int.from_bytes(start[:8], "little")
        if size > path.stat().st_size:
            return  # the library reports it
        if size > _MAX_HEADER_BYTES:
            raise DataError(
                f"{path}: its header has {size / 2**20:,.0f} MiB: must have "
                f"{_MAX_HEADER_BYTES // 2**20} at most; fetch it again"
            )
        file.seek(8)
        # Each tensor is a JSON object. Names may contain escapes, but braces are never escaped.
        count = file.read(size).count(b"{") - 2
    if count > _MAX_TENSORS:
        raise DataError(_too_many_message(path, count, "its header has"))


def _too_many_message(path: Path, count: int, has: str) -> str:
    return f"{path}: {has} {count:,} tensors: a model must have at most {_MAX_TENSORS:,}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = Counter(name for name, _ in pairs)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"the header has {twice[0]!r} twice")
    return dict(pairs)


def num_bytes(tensor: Tensor) -> int:
    """Returns the size of a tensor in bytes."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def shards_of(
    folder: Path, single: str = SINGLE, index: str | None = INDEX
) -> dict[Path, list[str]]:
    """Returns the weight files of a folder with their tensors according to the index."""
    if path := file_in(folder, single):
        return {path: []}
    if index is None:
        raise DataError(f"{folder} has no {single}: convert a pickle with save_pretrained")
    shards: dict[str, list[str]] = {}
    for tensor, file in _weight_map(folder, index).items():
        shards.setdefault(file, []).append(tensor)
    return {_shard(folder, file, index): tensors for file, tensors in sorted(shards.items())}


def _shard(folder: Path, file: str, index: str) -> Path:
    if Path(file).name != file or file in ("", ".."):
        raise DataError(f"{folder / index} names {file!r}, which is outside of {folder}")
    if path := file_in(folder, file):
        return path
    raise DataError(f"{folder / file} does not exist, though {index} names it")


def _weight_map(folder: Path, name: str) -> dict[str, str]:
    """Reads the index: tensor -> file."""
    index = read_object(folder, name)
    if index is None:
        raise DataError(_no_weights_message(folder))
    places = index.get("weight_map")
    if not isinstance(places, dict):
        raise DataError(f"{folder / name}: weight_map must be an object: tensor -> file")
    for tensor, file in places.items():
        if not isinstance(file, str):
            raise DataError(
                f"{folder / name}: weight_map has {file!r} for {tensor}: must be the name of a file"
            )
    return places


def _no_weights_message(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder (looked from {Path.cwd()})"
    if other := unreadable_weights_in(folder):
        return f"{folder} holds {other}"
    return f"{folder} holds neither {SINGLE} nor {INDEX}, nor flax_model.msgpack"
