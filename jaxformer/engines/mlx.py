"""MLX-LM, for Apple silicon: reads a Hugging Face folder; its converter quantises weights.

https://github.com/ml-explore/mlx-lm
"""

import contextlib
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import LANGUAGE_MODELS, Engine, Format, LoadedModel, Prompt, check_kind
from jaxformer.engines.converter_input import refusals, save_for_converter
from jaxformer.errors import ConfigError
from jaxformer.extras import optional_module
from jaxformer.io.model_files import CONFIG, read_object
from jaxformer.pretrained.model import Pretrained

_BITS = {"int8": 8, "int4": 4}
_GROUP = 64
"""Number of inputs that share a scale; MLX-LM does not quantise other kernels."""
_DECODERS = (
    "cohere", "cohere2", "ernie4_5", "gemma", "gemma3_text", "glm", "glm4", "gptj", "granite",
    "llama", "mistral", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm",
)  # fmt: skip


class MLXEngine(Engine):
    """MLX-LM on an Apple GPU or a CPU."""

    name = "mlx"
    module = "mlx_lm"

    def check(self, folder: Path) -> None:
        values = read_object(folder, CONFIG) or {}
        names = [str(name) for name in values.get("architectures") or ()]
        kind = values.get("model_type")
        if kind not in _DECODERS or not any(name.endswith(LANGUAGE_MODELS) for name in names):
            raise ConfigError(
                f"--engines mlx: must be left out for {folder}: MLX-LM does not run "
                f"{', '.join(names) or kind} as jaxformer does"
            )

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        return _Decoder(folder)


class MLXFormat(Format):
    """A folder written by MLX-LM's converter."""

    name = "mlx"
    engines = (MLXEngine(),)
    quantisations = tuple(_BITS)

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        check_kind(pretrained, self.name, dict.fromkeys(_DECODERS, LANGUAGE_MODELS))
        for placement in pretrained.placements if quantise else ():
            if len(placement.shape) == 2 and placement.shape[1] % _GROUP:
                raise ConfigError(
                    f"--quantise {quantise}: {placement.tensor} has {placement.shape[1]} inputs: "
                    f"must be a multiple of {_GROUP}"
                )

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the weights, config.json and the tokenizer."""
        library: Any = optional_module("mlx_lm", "--format mlx")
        bits: dict[str, Any] = {}
        if quantise is not None:
            bits = {"quantize": True, "q_bits": _BITS[quantise], "q_group_size": _GROUP}
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint, converted = Path(scratch, "hf"), Path(scratch, "mlx")
            save_for_converter(pretrained, checkpoint, dtype)
            with (
                refusals("--format mlx: its converter refused"),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                library.convert(str(checkpoint), str(converted), **bits)
            for file in converted.iterdir():
                file.rename(folder / file.name)


class _Decoder(LoadedModel):
    def __init__(self, folder: Path):
        self._mx: Any = optional_module("mlx.core", "the engine mlx")
        library: Any = optional_module("mlx_lm", "the engine mlx")
        self._model, self._tokenizer = library.load(str(folder))

    def outputs(self, prompt: Prompt) -> np.ndarray:
        logits = self._model(self._mx.array([prompt.tokens]))
        return np.array(logits.astype(self._mx.float32))[0]

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        generation: Any = optional_module("mlx_lm.generate", "the engine mlx")
        steps = generation.generate_step(
            self._mx.array(prompt.tokens), self._model, max_tokens=count
        )
        return [int(token) for token, _ in steps]

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
