"""compressed-tensors: quantised kernels in a Hugging Face folder, for vLLM and SGLang.

Kernels are rounded to 2^bits - 1 symmetric levels, scaled for each output (int8) or each group of
32 inputs (int4), and packed into int32. https://github.com/vllm-project/compressed-tensors
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.engines.base import Format, check_kind
from jaxformer.engines.transformers import TransformersEngine
from jaxformer.errors import ConfigError
from jaxformer.extras import optional_module
from jaxformer.hub.hf_config import write_hf_config
from jaxformer.io.model_files import CONFIG, read_object
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import save

_DECODERS = (
    "gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3",
    "smollm3",
)  # fmt: skip
_WEIGHTS = "model.safetensors"


class _Scheme(NamedTuple):
    bits: int
    group: int | None
    """The number of inputs that share a scale; None for all."""


_SCHEMES = {"int8": _Scheme(8, None), "int4": _Scheme(4, 32)}


class CompressedEngine(TransformersEngine):
    """transformers with the package compressed-tensors, which unpacks the kernels."""

    def require(self) -> None:
        super().require()
        optional_module("compressed_tensors", "quantised kernels in transformers")


class CompressedTensorsFormat(Format):
    """A Hugging Face folder whose kernels are packed integers."""

    name = "compressed-tensors"
    engines = (CompressedEngine(),)
    quantisations = tuple(_SCHEMES)
    is_quantised = True

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        check_kind(pretrained, self.name, dict.fromkeys(_DECODERS, ("CausalLM",)))
        group = _SCHEMES[quantise].group or 4
        for placement in pretrained.placements:
            if is_kernel(placement.tensor, placement.shape) and placement.shape[1] % group:
                raise ConfigError(
                    f"--quantise {quantise}: {placement.tensor} has {placement.shape[1]} inputs: "
                    f"must be a multiple of {group}"
                )

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the folder, with the scheme in config.json."""
        numpy_files: Any = optional_module("safetensors.numpy", f"--format {self.name}")
        scheme = _SCHEMES[quantise]
        save(pretrained, folder, dtype=dtype, max_shard_bytes=1 << 62)
        written = {}
        for name, array in numpy_files.load_file(folder / _WEIGHTS).items():
            if is_kernel(name, array.shape):
                stem = name.removesuffix(".weight")
                parts = packed(array, scheme.bits, scheme.group)
                written |= {f"{stem}.{part}": x for part, x in parts.items()}
            else:
                written[name] = array
        numpy_files.save_file(written, folder / _WEIGHTS, metadata={"format": "pt"})
        values = read_object(folder, CONFIG) or {}
        write_hf_config(folder, values | {"quantization_config": _settings(scheme)})


def is_kernel(name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether a tensor is a kernel of a layer."""
    return ".layers." in name and name.endswith(".weight") and len(shape) == 2


def packed(kernel: np.ndarray, bits: int, group: int | None) -> Mapping[str, np.ndarray]:
    r"""Rounds a kernel to integers and packs them.

    .. math:: q = \mathrm{round}(W / s), \quad s = \max_g |W| / (2^{bits - 1} - 0.5)

    Args:
        kernel: `[outputs, inputs]`; scales have its dtype.
        bits: 4 or 8.
        group: The number of inputs g that share a scale; None for all.

    Returns:
        "weight_packed" int32 `[outputs, inputs bits / 32]`, "weight_scale" `[outputs, groups]`,
        "weight_shape" int64 `[2]`.
    """
    outputs, inputs = kernel.shape
    groups = kernel.astype(np.float32).reshape(outputs, -1, group or inputs)
    half = 1 << (bits - 1)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    scale = (largest / (half - 0.5)).astype(kernel.dtype)
    scale[scale == 0] = 1.0
    steps = np.rint(groups / scale.astype(np.float32))
    rounded = np.clip(steps, -half, half - 1).astype(np.int64) + half
    per_word = 32 // bits
    words = rounded.reshape(outputs, inputs // per_word, per_word)
    shifted = words << (bits * np.arange(per_word))
    return {
        "weight_packed": shifted.sum(axis=-1).astype(np.uint32).view(np.int32),
        "weight_scale": scale[..., 0],
        "weight_shape": np.array(kernel.shape, np.int64),
    }


def _settings(scheme: _Scheme) -> dict[str, Any]:
    """Returns the field of config.json that describes how kernels are stored."""
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": True,
        "dynamic": False,
        "strategy": "channel" if scheme.group is None else "group",
        "group_size": scheme.group,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
