"""The interfaces of engines, which run exported models, and of formats, which write them."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.extras import EXTRAS, optional_module
from jaxformer.pretrained.model import Pretrained


@dataclass(frozen=True)
class Prompt:
    """The inputs of a comparison: one row without padding."""

    tokens: tuple[int, ...] = ()
    """The token ids; for an encoder-decoder, those of the encoder."""
    decoder_tokens: tuple[int, ...] = ()
    """The decoder's token ids, beginning with the start token; empty for other models."""
    features: np.ndarray | None = None
    """The spectrogram, float32 `[M, T]`, for the encoder of a speech model, instead of tokens."""
    num_given: int = 1
    """The number of given decoder tokens; outputs are compared from the last of them."""
    suppressed: tuple[int, ...] = ()
    """Tokens that are never generated, such as the end token, where engines always stop."""

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the row by their names in transformers."""
        if self.features is None:
            found = {"input_ids": np.array([self.tokens])}
        else:
            found = {"input_features": self.features[None]}
        if self.decoder_tokens:
            found["decoder_input_ids"] = np.array([self.decoder_tokens])
        return found

    @property
    def source(self) -> tuple[int, ...] | np.ndarray:
        """The input of the encoder, or of a model without one: tokens or the spectrogram."""
        return self.tokens if self.features is None else self.features


LANGUAGE_MODELS = ("CausalLM", "LMHeadModel")
"""Suffixes of the class names of decoders with a language-model head."""


class LoadedModel(abc.ABC):
    """A model that an engine has loaded from an export."""

    @abc.abstractmethod
    def outputs(self, prompt: Prompt) -> np.ndarray:
        """Returns float32 logits `[T, V]`, or the last hidden states `[T, D]` of a body.

        For the decoder of an encoder-decoder, the first row belongs to the last given token.
        """

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        """Generates tokens greedily with the engine's cache, continuing after end tokens.

        Suppressed tokens of the prompt are not generated.
        """
        raise NotImplementedError  # only called for models that generate

    def tokenize(self, text: str) -> list[int] | None:
        """Returns the tokens of a text without special tokens, or None without a tokenizer."""
        del text


class Engine(abc.ABC):
    """A program that runs exported models."""

    name: str
    """The name for `verify --engines`."""
    module: str
    """The name of its Python module; `jaxformer.extras` has its install command."""
    tolerance: float = 1e-4
    """The maximum difference of float32 outputs: absolute up to 1, relative above."""

    @property
    def version(self) -> str:
        """Returns the installed version."""
        return version(EXTRAS[self.module][0])

    def require(self) -> None:
        """Raises MissingExtra, with the install command, if the engine is not installed."""
        optional_module(self.module, f"the engine {self.name}")

    def check(self, folder: Path) -> None:
        """Raises ConfigError if the engine does not support the model in a folder."""
        del folder

    @abc.abstractmethod
    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        """Loads the model of an export; `description` is the contents of its export.json."""


class Format(abc.ABC):
    """An export format for one or more engines."""

    name: str
    """The name for `export --format`."""
    engines: Sequence[Engine]
    """The engines that read this format."""
    quantisations: Sequence[str] = ()
    """The supported integer formats of weights."""
    is_quantised: bool = False
    """Whether weights must have one of them."""

    @abc.abstractmethod
    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        """Raises ConfigError if the format cannot express a model."""

    @abc.abstractmethod
    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the files to an empty folder.

        Weights have this dtype (None: the checkpoint's), or one of the `quantisations`.
        """

    def check_quantisation(self, quantise: str | None) -> None:
        """Raises ConfigError if the format does not support a quantisation."""
        if quantise is None and not self.is_quantised:
            return
        if quantise not in self.quantisations:
            known = " or ".join(self.quantisations) or "left out"
            raise ConfigError(
                f"--quantise {quantise or 'is missing'}: must be {known} with --format {self.name}"
                f"{did_you_mean(quantise, self.quantisations)}"
            )


def check_kind(
    pretrained: Pretrained, format_name: str, kinds: Mapping[str, tuple[str, ...]]
) -> None:
    """Raises ConfigError unless a format supports the class of a model.

    `kinds` are the suffixes of supported class names by model type: "ForCausalLM".
    """
    checkpoint = pretrained.checkpoint
    model_type, name = checkpoint.model_format.model_type, checkpoint.architecture.name
    if model_type not in kinds:
        raise ConfigError(
            f"--format {format_name}: must be a model of {', '.join(sorted(kinds))}; this one is "
            f"a {model_type!r}"
        )
    if not name.endswith(kinds[model_type]):
        raise ConfigError(
            f"--format {format_name}: has no {name}: for {model_type!r} it must be a class that "
            f"ends with {' or '.join(kinds[model_type])}, which --architecture chooses"
        )
