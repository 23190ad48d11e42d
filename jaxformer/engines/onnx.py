"""ONNX: graphs for ONNX Runtime, exported by transformers from a Hugging Face folder.

https://huggingface.co/docs/transformers/exporters
"""

import contextlib
import inspect
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import Engine, Format, LoadedModel, Prompt
from jaxformer.engines.converter_input import refusals
from jaxformer.engines.speech import check_model
from jaxformer.engines.text_models import OUTPUTS, keeps_cache, source_inputs, text_inputs
from jaxformer.engines.transformers import load_torch
from jaxformer.errors import ConfigError
from jaxformer.extras import optional_module
from jaxformer.hub.families import family_of
from jaxformer.io.model_files import CONFIG, copy_side_files
from jaxformer.pretrained.export.formats import EXPORT_FORMATS
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import save

FILE = "model.onnx"
ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
WITH_PAST = "decoder_with_past_model.onnx"
"""The graphs of an encoder-decoder, as in Optimum: encoder, first decoder step, later steps."""
_PURPOSE = "--format onnx"
_OPTIONAL = ("position_ids", "token_type_ids")
"""Inputs of a graph, if the class in transformers reads them."""
_PAST = "past_key_values"
_CACHED = re.compile(r"(\w+)\.(?:(self|cross)_attention_cache\.)?layers\.(\d+)\.(key|value)s")
_SIDES = {None: "", "self": ".decoder", "cross": ".encoder"}
_RENAMED = {
    "encoder_outputs.last_hidden_state": "encoder_hidden_states",
    "attention_mask": "encoder_attention_mask",
    "decoder_input_ids": "input_ids",
}
"""Inputs of the decoder of an encoder-decoder."""


class ONNXRuntimeEngine(Engine):
    """ONNX Runtime, on a CPU."""

    name = "onnxruntime"
    module = "onnxruntime"

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        library: Any = optional_module("onnxruntime", "the engine onnxruntime")

        def opened(name: str) -> Any:
            return library.InferenceSession(folder / name, providers=["CPUExecutionProvider"])

        if (folder / ENCODER).exists():
            return _EncoderDecoder(*(opened(name) for name in (ENCODER, DECODER, WITH_PAST)))
        return _Model(opened(FILE))


class ONNXFormat(Format):
    """A graph for any number of rows and tokens, with a decoder's cache.

    An encoder-decoder has three graphs. Inputs and outputs are named as in Optimum:
    `past_key_values.0.key` becomes `present.0.key`, and in an encoder-decoder
    `past_key_values.0.decoder.key` becomes `present.0.decoder.key`.
    """

    name = "onnx"
    engines = (ONNXRuntimeEngine(),)

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        check_model(pretrained, f"--format {self.name}")
        EXPORT_FORMATS["hf"].check(
            pretrained.checkpoint, pretrained.parameters, pretrained.placements
        )

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the graphs, their weights, config.json and the tokenizer."""
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
            with refusals(f"{_PURPOSE}: transformers cannot export it"), _quiet():
                settings = library.OnnxConfig(dynamic=True)
                for name, (module, inputs) in _graphs(model, pretrained).items():
                    graph = library.OnnxExporter().export(module, inputs, config=settings)
                    _rename(graph.program, name)
                    library.OnnxExporter.save_program(graph.program, folder / name)
            copy_side_files(checkpoint, folder)
            (folder / CONFIG).write_bytes((checkpoint / CONFIG).read_bytes())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the exporter's output and logs about its own libraries."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _graphs(model: Any, pretrained: Pretrained) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Returns the module and the sample inputs of each graph, by file name."""
    config = pretrained.config
    if not (config.is_encoder_decoder and keeps_cache(config)):
        return {FILE: (model, _sample_inputs(model, pretrained))}
    torch: Any = optional_module("torch", _PURPOSE)
    library: Any = optional_module("transformers.modeling_outputs", _PURPOSE)
    names, mask = source_inputs(config), torch.ones(2, 3, dtype=torch.int64)
    # The exporter merges inputs that are the same tensor.
    source = {name: torch.ones_like(mask) for name in names}
    if "input_ids" not in names:
        shape = (2, config.encoder.num_mel_bins, config.encoder.num_frames)
        source = {name: torch.zeros(shape, dtype=model.dtype) for name in names}
    encoder = model.get_encoder()
    with torch.no_grad():
        states = library.BaseModelOutput(encoder(**source).last_hidden_state)
        given = {"attention_mask": mask} if "attention_mask" in names else {}
        given |= {"encoder_outputs": states, "use_cache": True}
        first = given | {"decoder_input_ids": torch.ones(2, 5, dtype=torch.int64)}
        later = given | {"decoder_input_ids": torch.ones(2, 4, dtype=torch.int64)}
        later[_PAST] = model(**first).past_key_values
    return {ENCODER: (encoder, source), DECODER: (model, first), WITH_PAST: (model, later)}


def _sample_inputs(model: Any, pretrained: Pretrained) -> dict[str, Any]:
    """Returns sample inputs for tracing: two rows of three tokens, after four in a cache.

    Independent lengths are different, since the exporter would equate equal ones.
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
    # A cache without the config keeps all tokens; the mask still applies the windows.
    with torch.no_grad():
        before = torch.ones(2, 4, dtype=torch.int64)
        cache = model(before, past_key_values=library.DynamicCache()).past_key_values
    if "position_ids" in inputs:
        inputs["position_ids"] = torch.tensor([[4, 5, 6]] * 2)
    mask = torch.ones(2, 7, dtype=torch.int64)
    return inputs | {"attention_mask": mask, _PAST: cache, "use_cache": True}


def _rename(model: Any, file: str) -> None:
    """Renames inputs and outputs as in Optimum, instead of transformers' `cache.layers.0.keys`.

    Leaves out outputs of an encoder-decoder's decoder that equal its inputs.
    """
    graph = model.graph
    for value in (*graph.inputs, *graph.outputs):
        if cached := _CACHED.fullmatch(value.name):
            kept, side, layer, kind = cached.groups()
            value.name = f"{_PAST if kept == _PAST else 'present'}.{layer}{_SIDES[side]}.{kind}"
    if file not in (DECODER, WITH_PAST):
        return
    for value in list(graph.outputs):
        same = file == WITH_PAST and ".encoder." in value.name
        if same or value.name == "encoder_last_hidden_state":
            graph.outputs.remove(value)
            graph.remove(value.producer(), safe=True)
    for value in list(graph.inputs):
        value.name = _RENAMED.get(value.name, value.name)
        if value.name == "encoder_hidden_states" and not value.uses():
            graph.inputs.remove(value)


class _Model(LoadedModel):
    def __init__(self, session: Any):
        self._session = session
        self._inputs = {each.name: each for each in session.get_inputs()}
        self._outputs = [each.name for each in session.get_outputs()]

    def outputs(self, prompt: Prompt) -> np.ndarray:
        return self._run(prompt.tokens, prompt.decoder_tokens)[0]

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        logits, cache = self._run(prompt.tokens)
        found = [int(logits[-1].argmax())]
        while len(found) < count:
            logits, cache = self._run(found[-1:], past=cache)
            found.append(int(logits[-1].argmax()))
        return found

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
        """Returns an empty cache for one row: `[1, K, 0, H]`."""
        dtype = np.float16 if "float16" in value.type else np.float32
        _, heads, _, width = value.shape
        return np.zeros((1, int(heads), 0, int(width)), dtype)


class _EncoderDecoder(LoadedModel):
    """An encoder-decoder in three graphs, which encodes its source once."""

    def __init__(self, encoder: Any, first: Any, later: Any):
        self._encoder, self._first, self._later = encoder, first, later

    def outputs(self, prompt: Prompt) -> np.ndarray:
        logits, _ = self._answered(self._encoded(prompt), prompt.decoder_tokens)
        return logits[prompt.num_given - 1 :]

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        state, tokens, found = self._encoded(prompt), list(prompt.decoder_tokens), []
        for _ in range(count):
            logits, state = self._answered(state, tokens)
            scores = logits[-1].copy()
            scores[np.array(prompt.suppressed, np.int64)] = -np.inf
            tokens = [int(scores.argmax())]
            found += tokens
        return found

    def _encoded(self, prompt: Prompt) -> dict[str, np.ndarray]:
        """Returns the inputs of the decoder that come from the encoder."""
        if prompt.features is None:
            row = np.array([prompt.tokens], np.int64)
            source = {"input_ids": row, "attention_mask": np.ones_like(row)}
            given = {"encoder_attention_mask": source["attention_mask"]}
        else:
            (features,) = self._encoder.get_inputs()
            dtype = np.float16 if "float16" in features.type else np.float32
            source, given = {features.name: prompt.features[None].astype(dtype)}, {}
        (states,) = self._encoder.run(["last_hidden_state"], source)
        return given | {"encoder_hidden_states": states}

    def _answered(
        self, state: dict[str, np.ndarray], tokens: Sequence[int]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the logits `[T, V]` for tokens, and the inputs for later ones."""
        session = self._later if any(name.startswith(_PAST) for name in state) else self._first
        arrays = state | {"input_ids": np.array([tokens], np.int64)}
        feeds = {each.name: arrays[each.name] for each in session.get_inputs()}
        names = [each.name for each in session.get_outputs()]
        found = dict(zip(names, session.run(None, feeds), strict=True))
        logits = found.pop("logits")[0]
        return logits, state | {
            name.replace("present", _PAST): array for name, array in found.items()
        }
