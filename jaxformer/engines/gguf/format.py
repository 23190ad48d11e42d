"""The export format GGUF, and the engine llama.cpp."""

import ctypes
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import LANGUAGE_MODELS, Engine, Format, LoadedModel, Prompt, check_kind
from jaxformer.engines.gguf import library
from jaxformer.engines.gguf.architectures import ARCHITECTURES, Values
from jaxformer.engines.gguf.vocabulary import write_vocabulary
from jaxformer.engines.gguf.writer import FILE, check_types, check_written, write_tensors
from jaxformer.errors import ConfigError
from jaxformer.extras import optional_module
from jaxformer.hub.describe import config_values
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import completed
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import save

_KINDS = dict.fromkeys(ARCHITECTURES, LANGUAGE_MODELS) | {
    "bert": ("Model",),
    "t5": ("ForConditionalGeneration",),
}
_OF_LLAMA_CPP = re.compile(r"(q\d_k(_[sml])?|iq\d_\w+)", re.IGNORECASE)
"""The quantisations of llama.cpp's `llama-quantize`."""
CONTEXT = 512
"""The maximum number of tokens of a receipt's prompt with its continuation."""
_FILE_TYPES = {
    "float32": "ALL_F32",
    "float16": "MOSTLY_F16",
    "bfloat16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
}


class LlamaCppEngine(Engine):
    """llama.cpp, through llama-cpp-python."""

    name = "llama.cpp"
    module = "llama_cpp"
    tolerance = 1e-3

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        kinds = {"decoder": _Decoder, "encoder": _Encoder, "encoder-decoder": _EncoderDecoder}
        return kinds[description["kind"]](folder / FILE)


class GGUFFormat(Format):
    """A single file with weights, hyperparameters and tokenizer."""

    name = "gguf"
    engines = (LlamaCppEngine(),)
    quantisations = ("q8_0",)

    def check_quantisation(self, quantise: str | None) -> None:
        if quantise is not None and _OF_LLAMA_CPP.fullmatch(quantise):
            raise ConfigError(
                f"--quantise {quantise}: must be q8_0, since the package gguf reads {quantise} but "
                "cannot write it: export with --dtype float16, and run llama.cpp's "
                f"llama-quantize on {FILE}"
            )
        super().check_quantisation(quantise)

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        check_kind(pretrained, self.name, _KINDS)
        values = _values(pretrained)
        architecture = ARCHITECTURES[values["model_type"]]
        architecture.check(values)
        check_types(pretrained, architecture, values, quantise or "float32")

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes model.gguf, and verifies it by reading."""
        gguf, values = library(), _values(pretrained)
        architecture = ARCHITECTURES[values["model_type"]]
        kind = quantise or dtype or "float32"
        name = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[architecture.arch]]
        writer = gguf.GGUFWriter(folder / FILE, name, use_temp_file=True)
        writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[kind]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        architecture.write_fields(writer, values)
        with tempfile.TemporaryDirectory() as scratch:
            save(pretrained, checkpoint := Path(scratch, "hf"))
            write_vocabulary(writer, checkpoint, values["vocab_size"])
        write_tensors(writer, pretrained, architecture, values, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        check_written(folder / FILE, pretrained, architecture, values)


def _values(pretrained: Pretrained) -> Values:
    """Returns the fields of config.json, with the system's defaults."""
    checkpoint = pretrained.checkpoint
    return completed(HFConfig(config_values(checkpoint)), checkpoint.model_format).values


class _Model(LoadedModel):
    """A model in llama.cpp, with a context for receipts."""

    def __init__(self, file: Path, **options: Any):
        self._library: Any = optional_module("llama_cpp", "the engine llama.cpp")
        cache = {"type_k": 0, "type_v": 0}  # float32 instead of float16
        sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), CONTEXT)
        self._model = self._library.Llama(str(file), verbose=False, **sizes, **cache, **options)

    def tokenize(self, text: str) -> list[int] | None:
        return self._model.tokenize(text.encode(), add_bos=False, special=False)


class _Decoder(_Model):
    def __init__(self, file: Path):
        super().__init__(file, logits_all=True)

    def outputs(self, prompt: Prompt) -> np.ndarray:
        self._model.reset()
        self._model.eval(list(prompt.tokens))
        return np.array(self._model.scores[: len(prompt.tokens)])

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        scores, found = self.outputs(prompt), []
        for _ in range(count):
            found.append(int(np.argmax(scores[-1])))
            self._model.eval(found[-1:])
            scores = self._model.scores[: self._model.n_tokens]
        return found


class _Encoder(_Model):
    def __init__(self, file: Path):
        super().__init__(file, embedding=True, pooling_type=0)

    def outputs(self, prompt: Prompt) -> np.ndarray:
        self._model.reset()
        self._model._batch.set_batch(list(prompt.tokens), n_past=0, logits_all=True)
        self._model._ctx.decode(self._model._batch)
        context, width = self._model._ctx.ctx, self._model.n_embd()
        rows = [
            self._library.llama_get_embeddings_ith(context, number)
            for number in range(len(prompt.tokens))
        ]
        return np.stack([np.ctypeslib.as_array(row, shape=(width,)).copy() for row in rows])


class _EncoderDecoder(_Model):
    def outputs(self, prompt: Prompt) -> np.ndarray:
        self._encode(prompt)
        rows = [self._decode([token], n) for n, token in enumerate(prompt.decoder_tokens)]
        return np.stack(rows)

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        self._encode(prompt)
        found = list(prompt.decoder_tokens)
        for number in range(count):
            found.append(int(np.argmax(self._decode(found[-1:], number))))
        return found[1:]

    def _encode(self, prompt: Prompt) -> None:
        self._model.reset()
        self._library.llama_memory_clear(
            self._library.llama_get_memory(self._model._ctx.ctx), ctypes.c_bool(True)
        )
        self._model._batch.set_batch(list(prompt.tokens), n_past=0, logits_all=True)
        self._library.llama_encode(self._model._ctx.ctx, self._model._batch.batch)

    def _decode(self, tokens: list[int], past: int) -> np.ndarray:
        self._model._batch.set_batch(tokens, n_past=past, logits_all=True)
        self._model._ctx.decode(self._model._batch)
        logits = self._library.llama_get_logits_ith(self._model._ctx.ctx, -1)
        return np.ctypeslib.as_array(logits, shape=(self._model.n_vocab(),)).copy()
