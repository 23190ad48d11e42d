"""CTranslate2, for CPUs and GPUs; its converter reads a Hugging Face folder.

https://opennmt.net/CTranslate2/guides/transformers.html; for Whisper also the additional files of
https://github.com/SYSTRAN/faster-whisper.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.data.tasks.images.pixels import PREPROCESSOR
from jaxformer.engines.base import LANGUAGE_MODELS, Engine, Format, LoadedModel, Prompt, check_kind
from jaxformer.engines.converter_input import refusals, save_for_converter
from jaxformer.engines.speech import check_names, named_token, writes_speech
from jaxformer.errors import ConfigError
from jaxformer.extras import optional_module
from jaxformer.generation.speech.features import log_mel_of
from jaxformer.generation.speech.tokens import SpeechTokens
from jaxformer.io.model_files import TOKENIZER
from jaxformer.io.notices import warn_once
from jaxformer.pretrained.export.serving_files import write_json
from jaxformer.pretrained.model import Pretrained

_PURPOSE = "--format ctranslate2"
_DECODERS = (
    "bloom", "falcon", "gemma", "gpt2", "gptj", "llama", "mistral", "opt", "qwen2", "qwen3"
)  # fmt: skip
_ENCODERS = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
_ENCODER_DECODERS = ("bart", "t5", "whisper")
_KINDS = (
    dict.fromkeys(_DECODERS, LANGUAGE_MODELS)
    | dict.fromkeys(_ENCODERS, ("Model",))
    | dict.fromkeys(_ENCODER_DECODERS, ("ForConditionalGeneration",))
)
_SECONDS, _POSITIONS = 30, 448
"""Whisper's window in seconds and its number of positions in faster-whisper."""
_OPTIONS = {"device": "cpu", "compute_type": "default", "inter_threads": 1}
_VOCABULARIES = ("vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json")


class CTranslate2Engine(Engine):
    """CTranslate2, which loads the output of its converter."""

    name = "ctranslate2"
    module = "ctranslate2"

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        library: Any = optional_module("ctranslate2", "the engine ctranslate2")
        kinds = {
            "decoder": _Decoder,
            "encoder": _Encoder,
            "encoder-decoder": _EncoderDecoder,
            "speech": _Whisper,
        }
        return kinds[description["kind"]](library, folder)


class CTranslate2Format(Format):
    """The output of CTranslate2's converter for transformers."""

    name = "ctranslate2"
    engines = (CTranslate2Engine(),)
    quantisations = ("int8", "int16")

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        check_kind(pretrained, self.name, _KINDS)
        if writes_speech(pretrained):
            _check_whisper(pretrained)

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes model.bin, config.json, the vocabulary and the files of faster-whisper."""
        optional_module("ctranslate2", _PURPOSE)
        optional_module("torch", _PURPOSE)
        converters: Any = optional_module("ctranslate2.converters", _PURPOSE)
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = Path(scratch, "hf")
            save_for_converter(pretrained, checkpoint, dtype)
            with refusals(f"{_PURPOSE}: its converter refused"):
                converter = converters.TransformersConverter(str(checkpoint))
                converter.convert(str(folder), quantization=quantise or dtype, force=True)
        if writes_speech(pretrained):
            _warn_of_faster_whisper(pretrained)
            pretrained.tokenizer.save(str(folder / TOKENIZER))
            write_json(folder / PREPROCESSOR, log_mel_of(pretrained).preprocessor())


def _check_whisper(pretrained: Pretrained) -> None:
    """Raises ConfigError for a Whisper that CTranslate2 would compute differently."""
    for part in pretrained.config.parts.values():
        if part.feed_forward.activation != "gelu":
            raise ConfigError(
                f"{_PURPOSE}: activation_function = {part.feed_forward.activation!r}: must be "
                "'gelu', the only activation of Whisper there"
            )
    check_names(pretrained, _PURPOSE)


def _warn_of_faster_whisper(pretrained: Pretrained) -> None:
    """Warns about features that CTranslate2 supports and faster-whisper does not."""
    found, positions = [], pretrained.config.decoder_position.max_length
    if (seconds := log_mel_of(pretrained).seconds) != _SECONDS:
        found.append(f"windows of {seconds:g} seconds, where it reads {_SECONDS}")
    if SpeechTokens.of(pretrained).languages and named_token(pretrained, "") is None:
        found.append("several languages but no empty token, so that it is treated as English-only")
    if positions < _POSITIONS:
        found.append(f"{positions} positions, so that it needs max_new_tokens")
    if found:
        warn_once(f"faster-whisper does not read all of this model: it has {'; '.join(found)}")


class _Model(LoadedModel):
    """A model with its vocabulary, since CTranslate2 takes token strings instead of ids."""

    kind: str
    """The class in CTranslate2."""

    def __init__(self, library: Any, folder: Path):
        self._model = getattr(library, self.kind)(str(folder), **_OPTIONS)
        names = [folder / name for name in _VOCABULARIES]
        file = next(name for name in names if name.exists())
        self._words = json.loads(file.read_text(encoding="utf-8"))

    def _named(self, tokens: tuple[int, ...]) -> list[str]:
        return [self._words[token] for token in tokens]


class _Decoder(_Model):
    kind = "Generator"

    def outputs(self, prompt: Prompt) -> np.ndarray:
        return _numpy(self._model.forward_batch([list(prompt.tokens)], return_log_probs=False))[0]

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        (found,) = self._model.generate_batch(
            [self._named(prompt.tokens)],
            max_length=count,
            beam_size=1,
            sampling_topk=1,
            end_token=[],
            include_prompt_in_result=False,
        )
        return found.sequences_ids[0]


class _Encoder(_Model):
    kind = "Encoder"

    def outputs(self, prompt: Prompt) -> np.ndarray:
        return _numpy(self._model.forward_batch([list(prompt.tokens)]).last_hidden_state)[0]


class _EncoderDecoder(_Model):
    kind = "Translator"

    def outputs(self, prompt: Prompt) -> np.ndarray:
        found = self._translated(prompt, len(prompt.decoder_tokens), return_logits_vocab=True)
        return np.concatenate([_numpy(row).reshape(1, -1) for row in found.logits[0]])

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        ids = {word: number for number, word in enumerate(self._words)}
        return [ids[word] for word in self._translated(prompt, count).hypotheses[0]]

    def _translated(self, prompt: Prompt, count: int, **options: Any) -> Any:
        (found,) = self._model.translate_batch(
            [self._named(prompt.tokens)],
            max_decoding_length=count,
            beam_size=1,
            end_token=[],
            **options,
        )
        return found


class _Whisper(LoadedModel):
    def __init__(self, library: Any, folder: Path):
        self._library = library
        self._model = library.models.Whisper(str(folder), **_OPTIONS)

    def outputs(self, prompt: Prompt) -> np.ndarray:
        # Tokens after the given ones are a prefix of the output, with logits.
        count = len(prompt.decoder_tokens) - prompt.num_given + 1
        rows = self._written(prompt, count).logits[0]
        return np.stack([_numpy(row) for row in rows])

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        return self._written(prompt, count, prompt.suppressed).sequences_ids[0]

    def _written(self, prompt: Prompt, count: int, suppressed: Sequence[int] = ()) -> Any:
        # It generates at most max_length / 2 tokens, and max_length with the given ones but the
        # last.
        (found,) = self._model.generate(
            self._library.StorageView.from_array(prompt.features[None]),
            [list(prompt.decoder_tokens)],
            beam_size=1,
            max_length=max(2 * count, count + prompt.num_given - 1),
            suppress_blank=False,
            suppress_tokens=list(suppressed),
            return_logits_vocab=True,
        )
        return found


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(array, dtype=np.float32)
