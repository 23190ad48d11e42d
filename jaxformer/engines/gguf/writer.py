"""Writes the tensors of a model to a GGUF file, and reads them back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.gguf import library
from jaxformer.engines.gguf.architectures import GGUFArchitecture, Values
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.pretrained.model import Pretrained

FILE = "model.gguf"
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
"""Dtype or quantisation -> the tensor type in GGUF."""
_SUFFIXES = (".weight", ".bias")
# llama.cpp adds these to activations in float32.
_EXACT = ("position_embd", "token_types", "attn_rel_b", "_norm", "rope_f")


def tensors(
    pretrained: Pretrained, architecture: GGUFArchitecture, values: Values
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the tensors of a model in float32, by their names in GGUF."""
    gguf = library()
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[architecture.arch], architecture.block_count(values)
    )
    for name, tensor in tensors_of(pretrained.parameters, pretrained.placements):
        tensor = np.asarray(tensor, np.float32)
        for source, array in architecture.tensors(name, tensor, values):
            target = names.get_name(source, _SUFFIXES)
            if target is None:
                raise ConfigError(f"--format gguf: {architecture.arch} has no tensor for {name}")
            yield target, array
    yield from architecture.extra_tensors(values)


def tensor_type(name: str, array: np.ndarray, kind: str) -> Any:
    """Returns the type of a stored tensor: `kind`, a key of `TYPES`, if rounding is allowed.

    Raises:
        ConfigError: The rows cannot be divided into blocks of this type.
    """
    gguf = library()
    types = gguf.GGMLQuantizationType
    if array.ndim < 2 or any(part in name for part in _EXACT):
        return types.F32
    found = types[TYPES[kind]]
    size, _ = gguf.GGML_QUANT_SIZES[found]
    if array.shape[-1] % size:
        raise ConfigError(
            f"--quantise {kind}: {name} has rows of {array.shape[-1]} values: must be a multiple "
            f"of {size}"
        )
    return found


def check_types(
    pretrained: Pretrained, architecture: GGUFArchitecture, values: Values, kind: str
) -> None:
    """Raises ConfigError if a tensor has no name in GGUF, or does not support the type."""
    for name, array in tensors(pretrained, architecture, values):
        tensor_type(name, array, kind)


def write_tensors(
    writer: Any, pretrained: Pretrained, architecture: GGUFArchitecture, values: Values, kind: str
) -> None:
    """Adds all tensors to gguf's writer."""
    gguf = library()
    for name, array in tensors(pretrained, architecture, values):
        stored = tensor_type(name, array, kind)
        data = gguf.quantize(np.ascontiguousarray(array), stored)
        writer.add_tensor(name, data, raw_dtype=stored)


def check_written(
    file: Path, pretrained: Pretrained, architecture: GGUFArchitecture, values: Values
) -> None:
    """Reads a file back; raises DataError if a tensor differs from the written one."""
    gguf = library()
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    for name, array in tensors(pretrained, architecture, values):
        stored = found.pop(name, None)
        if stored is None:
            raise DataError(f"{file}: the tensor {name} is missing: write the export again")
        right = gguf.dequantize(
            gguf.quantize(np.ascontiguousarray(array), stored.tensor_type), stored.tensor_type
        )
        back = gguf.dequantize(np.array(stored.data), stored.tensor_type)
        if not np.array_equal(back.reshape(array.shape), right.reshape(array.shape)):
            raise DataError(f"{file}: the tensor {name} is damaged: write the export again")
    if found:
        raise DataError(f"{file}: has unexpected tensors: {', '.join(found)}")
