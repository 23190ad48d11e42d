"""CTranslate2: servers on CPUs and GPUs; its own converter reads the Hugging Face folder.

https://opennmt.net/CTranslate2/guides/transformers.html
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import Engine, Format, LoadedModel, Prompt, check_kind
from jaxformer.engines.converter_input import save_for_converter
from jaxformer.errors import ConfigError, first_line
from jaxformer.extras import optional_module
from jaxformer.pretrained.model import Pretrained

_PURPOSE = "--format ctranslate2"
_DECODERS = (
    "bloom", "falcon", "gemma", "gpt2", "gptj", "llama", "mistral", "opt", "qwen2", "qwen3"
)  # fmt: skip
_ENCODERS = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
_ENCODER_DECODERS = ("bart", "t5")
_KINDS = (
    dict.fromkeys(_DECODERS, ("CausalLM", "LMHeadModel"))
    | dict.fromkeys(_ENCODERS, ("Model",))
    | dict.fromkeys(_ENCODER_DECODERS, ("ForConditionalGeneration",))
)
_VOCABULARIES = ("vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json")


class CTranslate2Engine(Engine):
    """CTranslate2, which reads what its converter wrote."""

    name = "ctranslate2"
    module = "ctranslate2"

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        """Loads the decoder, encoder or encoder-decoder."""
        library: Any = optional_module("ctranslate2", "the engine ctranslate2")
        kinds = {"decoder": _Decoder, "encoder": _Encoder, "encoder-decoder": _EncoderDecoder}
        return kinds[description["kind"]](library, folder)


class CTranslate2Format(Format):
    """The files of CTranslate2's converter for transformers."""

    name = "ctranslate2"
    engines = (CTranslate2Engine(),)
    quantisations = ("int8", "int16")

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        """Raises a ConfigError unless CTranslate2 has the class of the model."""
        check_kind(pretrained, self.name, _KINDS)

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes model.bin, config.json and the vocabulary."""
        optional_module("ctranslate2", _PURPOSE)
        optional_module("torch", _PURPOSE)
        converters: Any = optional_module("ctranslate2.converters", _PURPOSE)
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = Path(scratch, "hf")
            save_for_converter(pretrained, checkpoint, dtype)
            try:
                converter = converters.TransformersConverter(str(checkpoint))
                converter.convert(str(folder), quantization=quantise or dtype, force=True)
            except Exception as error:  # third-party code may raise anything
                reason = first_line(error)
                raise ConfigError(
                    f"--format ctranslate2: its converter refused: {reason}"
                ) from error


class _Model(LoadedModel):
    """A model with its vocabulary: CTranslate2 takes the prompt of a decoder as words."""

    def __init__(self, library: Any, folder: Path, kind: str):
        options = {"compute_type": "default", "inter_threads": 1}
        self._library = library
        self._model = getattr(library, kind)(str(folder), device="cpu", **options)
        names = [folder / name for name in _VOCABULARIES]
        file = next(name for name in names if name.exists())
        self._words = json.loads(file.read_text(encoding="utf-8"))

    def _named(self, tokens: tuple[int, ...]) -> list[str]:
        return [self._words[token] for token in tokens]


class _Decoder(_Model):
    def __init__(self, library: Any, folder: Path):
        super().__init__(library, folder, "Generator")

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
    def __init__(self, library: Any, folder: Path):
        super().__init__(library, folder, "Encoder")

    def outputs(self, prompt: Prompt) -> np.ndarray:
        return _numpy(self._model.forward_batch([list(prompt.tokens)]).last_hidden_state)[0]


class _EncoderDecoder(_Model):
    def __init__(self, library: Any, folder: Path):
        super().__init__(library, folder, "Translator")

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


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(array, dtype=np.float32)
