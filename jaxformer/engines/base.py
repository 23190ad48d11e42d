"""What an engine is: a program that runs exported models; and what a format is: its files."""

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
    """The inputs on which a model is compared: one row without padding."""

    tokens: tuple[int, ...] = ()
    """The ids of the tokens; for an encoder-decoder those of the encoder."""
    decoder_tokens: tuple[int, ...] = ()
    """The ids of the decoder's tokens, from its start token on; empty for other models."""
    features: np.ndarray | None = None
    """The spectrogram float32 `[M, T]` that the encoder of a model of speech reads, not tokens."""
    num_given: int = 1
    """How many of the decoder's tokens are given: outputs are compared from the last of them on."""
    suppressed: tuple[int, ...] = ()
    """Tokens that are never written, such as the end at which an engine always stops."""

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The arrays of the row, by the names that transformers gives them."""
        if self.features is None:
            found = {"input_ids": np.array([self.tokens])}
        else:
            found = {"input_features": self.features[None]}
        if self.decoder_tokens:
            found["decoder_input_ids"] = np.array([self.decoder_tokens])
        return found

    @property
    def source(self) -> tuple[int, ...] | np.ndarray:
        """What an encoder, or a model without one, reads: the tokens or the spectrogram."""
        return self.tokens if self.features is None else self.features


LANGUAGE_MODELS = ("CausalLM", "LMHeadModel")
"""The endings of the class names of decoders with a head over the vocabulary."""


class LoadedModel(abc.ABC):
    """A model as an engine has loaded it from an export."""

    @abc.abstractmethod
    def outputs(self, prompt: Prompt) -> np.ndarray:
        """Returns the logits `[T, V]`, or the last hidden states `[T, D]` of a body, in float32.

        The first row is that of the last given token of a decoder behind an encoder.
        """

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        """Returns the likeliest next tokens, one by one with the engine's cache, past any end.

        Those that the prompt suppresses are not written.
        """
        raise NotImplementedError  # only asked of models that generate

    def tokenize(self, text: str) -> list[int] | None:
        """Returns the tokens of a text, without special ones around them; None: no tokenizer."""
        del text


class Engine(abc.ABC):
    """A program that runs exported models."""

    name: str
    """Its name for `verify --engines`."""
    module: str
    """The module that it is imported as; `jaxformer.extras` knows how to install it."""
    tolerance: float = 1e-4
    """The largest difference of float32 outputs up to 1, relative to larger ones."""

    @property
    def version(self) -> str:
        """The version that is installed."""
        return version(EXTRAS[self.module][0])

    def require(self) -> None:
        """Raises MissingExtra, which says how to install the engine, if it is not installed."""
        optional_module(self.module, f"the engine {self.name}")

    def check(self, folder: Path) -> None:
        """Raises a ConfigError if the engine has no class for the model of a folder."""
        del folder

    @abc.abstractmethod
    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        """Loads the model of an export; `description` is what its export.json says."""


class Format(abc.ABC):
    """The files of an export for one or more engines."""

    name: str
    """Its name for `export --format`."""
    engines: Sequence[Engine]
    """The engines that read the files."""
    quantisations: Sequence[str] = ()
    """The integer formats that its weights can have."""
    is_quantised: bool = False
    """Whether its weights must have one of them."""

    @abc.abstractmethod
    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        """Raises a ConfigError if the format cannot express a model, before anything is written."""

    @abc.abstractmethod
    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the files into an empty folder.

        Weights have this dtype (None: that of the checkpoint), or one of the `quantisations`.
        """

    def check_quantisation(self, quantise: str | None) -> None:
        """Raises a ConfigError for a quantisation that the format does not have."""
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
    """Raises a ConfigError unless a format has the class of a model.

    `kinds` are the endings of the class names that it has for each model type: "ForCausalLM".
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
