"""ONNX: a graph that ONNX Runtime runs, made by transformers from the Hugging Face folder.

https://huggingface.co/docs/transformers/exporters
"""

import contextlib
import inspect
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import Engine, Format, LoadedModel, Prompt
from jaxformer.engines.text_models import OUTPUTS, check_text_model, keeps_cache, text_inputs
from jaxformer.engines.transformers import load_torch
from jaxformer.errors import ConfigError, first_line
from jaxformer.extras import optional_module
from jaxformer.hub.families import family_of
from jaxformer.io.model_files import CONFIG, copy_side_files
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import save

FILE = "model.onnx"
_PURPOSE = "--format onnx"
_OPTIONAL = ("position_ids", "token_type_ids")
"""Inputs of a graph if the class of transformers reads them."""
_PAST = "past_key_values"
_CACHED = re.compile(r"(\w+)\.layers\.(\d+)\.(key|value)s")


class ONNXRuntimeEngine(Engine):
    """ONNX Runtime, on a CPU."""

    name = "onnxruntime"
    module = "onnxruntime"

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        """Opens the graph."""
        library: Any = optional_module("onnxruntime", "the engine onnxruntime")
        return _Model(library.InferenceSession(folder / FILE, providers=["CPUExecutionProvider"]))


class ONNXFormat(Format):
    """A graph for any number of rows and tokens, with the cache of a decoder.

    Inputs and outputs are named as in Optimum: `past_key_values.0.key` becomes `present.0.key`.
    """

    name = "onnx"
    engines = (ONNXRuntimeEngine(),)

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        """Raises a ConfigError unless the model reads texts, and has logits or hidden states."""
        check_text_model(pretrained, f"--format {self.name}")

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes model.onnx, its weights, config.json and the tokenizer."""
        if dtype == "bfloat16":
            raise ConfigError(
                "--dtype bfloat16: must be float32 or float16 with --format onnx, since ONNX "
                "Runtime has no kernels for bfloat16 on CPUs"
            )
        for module in ("onnx", "onnxscript", "torch"):
            optional_module(module, _PURPOSE)
        library: Any = optional_module("transformers.exporters.exporter_onnx", _PURPOSE)
        with tempfile.TemporaryDirectory() as scratch:
            save(pretrained, checkpoint := Path(scratch, "hf"), dtype=dtype)
            model = load_torch(checkpoint, dtype or "float32")
            try:
                with _quiet():
                    inputs = _sample_inputs(model, pretrained)
                    settings = library.OnnxConfig(dynamic=True)
                    graph = library.OnnxExporter().export(model, inputs, config=settings).program
            except Exception as error:  # third-party code may raise anything
                raise ConfigError(
                    f"--format onnx: transformers cannot export it: {first_line(error)}"
                ) from error
            _rename(graph)
            library.OnnxExporter.save_program(graph, folder / FILE)
            copy_side_files(checkpoint, folder)
            (folder / CONFIG).write_bytes((checkpoint / CONFIG).read_bytes())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what the exporter prints and logs about its own libraries."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _sample_inputs(model: Any, pretrained: Pretrained) -> dict[str, Any]:
    """Inputs from which the graph is traced: two rows of three tokens, after four in a cache.

    Lengths that may differ differ here: the exporter takes equal ones for the same.
    """
    torch: Any = optional_module("torch", _PURPOSE)
    library: Any = optional_module("transformers", _PURPOSE)
    names = [*text_inputs(pretrained.config), *_OPTIONAL]
    read = inspect.signature(model.forward).parameters
    known = {*family_of(pretrained.config).names_of_inputs(pretrained.config)}
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    inputs = {name: ids for name in names if name in read and name in known}
    inputs["attention_mask"] = torch.ones_like(ids)
    if "token_type_ids" in inputs:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = torch.ones(2, 5, dtype=torch.int64)
    if not keeps_cache(pretrained.config):
        inputs.pop("position_ids", None)
        return inputs | ({"use_cache": False} if pretrained.config.is_encoder_decoder else {})
    # A cache made without the config keeps all tokens; the mask still applies the windows.
    with torch.no_grad():
        before = torch.ones(2, 4, dtype=torch.int64)
        cache = model(before, past_key_values=library.DynamicCache()).past_key_values
    if "position_ids" in inputs:
        inputs["position_ids"] = torch.tensor([[4, 5, 6]] * 2)
    mask = torch.ones(2, 7, dtype=torch.int64)
    return inputs | {"attention_mask": mask, _PAST: cache, "use_cache": True}


def _rename(graph: Any) -> None:
    """Names the cache as Optimum does, where transformers says `cache.layers.0.keys`."""
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        if cached := _CACHED.fullmatch(value.name):
            side, layer, kind = cached.groups()
            value.name = f"{_PAST if side == _PAST else 'present'}.{layer}.{kind}"


class _Model(LoadedModel):
    def __init__(self, session: Any):
        self._session = session
        self._inputs = {each.name: each for each in session.get_inputs()}
        self._outputs = [each.name for each in session.get_outputs()]

    def outputs(self, prompt: Prompt) -> np.ndarray:
        return self._run(prompt.tokens, prompt.decoder_tokens)[0]

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        if prompt.decoder_tokens:
            return self._answer(prompt, count)
        logits, cache = self._run(prompt.tokens)
        found = [int(logits[-1].argmax())]
        while len(found) < count:
            logits, cache = self._run(found[-1:], past=cache)
            found.append(int(logits[-1].argmax()))
        return found

    def _answer(self, prompt: Prompt, count: int) -> list[int]:
        """The answer of an encoder-decoder, whose graph has no cache."""
        found = list(prompt.decoder_tokens)
        for _ in range(count):
            logits, _ = self._run(prompt.tokens, found)
            found.append(int(logits[-1].argmax()))
        return found[len(prompt.decoder_tokens) :]

    def _run(self, tokens: Any, decoder_tokens: Any = (), past: Any = None) -> Any:
        """Returns the outputs `[T, ...]` of a row of tokens, and the cache after them."""
        row = np.array([tokens], np.int64)
        names = [name for name in self._inputs if name.startswith(_PAST)]
        if past is None:
            past = {name: self._empty(self._inputs[name]) for name in names}
        start = past[names[0]].shape[2] if names else 0
        arrays = {
            "input_ids": row,
            "attention_mask": np.ones((1, start + row.shape[1]), np.int64),
            "position_ids": np.arange(start, start + row.shape[1])[None],
            "token_type_ids": np.zeros_like(row),
            "decoder_input_ids": np.array([decoder_tokens], np.int64),
            **past,
        }
        feeds = {name: array for name, array in arrays.items() if name in self._inputs}
        found = dict(zip(self._outputs, self._session.run(None, feeds), strict=True))
        cache = {name: found[name.replace(_PAST, "present")] for name in names}
        return found[next(name for name in OUTPUTS if name in found)][0], cache

    def _empty(self, value: Any) -> np.ndarray:
        """A cache of no tokens, for one row: `[1, K, 0, H]`."""
        dtype = np.float16 if "float16" in value.type else np.float32
        _, heads, _, width = value.shape
        return np.zeros((1, int(heads), 0, int(width)), dtype)
