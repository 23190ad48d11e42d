"""Encodes prompts as token ids, with the special tokens that the model saw in training."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from jaxformer.data.tokenizers.files import SETTINGS, bounded_matches, read_settings, tokenizer_in
from jaxformer.data.tokenizers.special_tokens import names_as_text
from jaxformer.errors import DataError


@dataclass(frozen=True)
class PromptEncoder:
    """Encodes prompts as token ids, as in the model's training."""

    tokenizer: Tokenizer

    end_of_text: int | None
    """The id between documents, for a model that this library trained; None for a Hugging Face
    tokenizer, whose post-processor adds the special tokens."""

    splits_special: bool = False
    """Whether a Hugging Face tokenizer reads the names of special tokens as ordinary text."""

    def plain(self, text: str) -> list[int]:
        """Returns the ids of a text to be continued, [tokens].

        A model trained by this library reads it as the start of a document, and the name of a
        special token in it as ordinary text. An empty text may give no ids at all.
        """
        if self.end_of_text is None:
            return self._encode(text, add_special_tokens=True)
        return [self.end_of_text, *self._ordinary(text)]

    def source(self, text: str) -> list[int]:
        """Returns the ids of the encoder's input, [tokens], with end-of-text as in training.

        Names of special tokens are treated as in `plain`.
        """
        if self.end_of_text is None:
            return self._encode(text, add_special_tokens=True)
        return [*self._ordinary(text), self.end_of_text]

    def rendered(self, text: str) -> list[int]:
        """Returns the ids of a rendered chat template, [tokens], which has all special tokens."""
        return self._encode(text, add_special_tokens=False)

    @bounded_matches()
    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self.tokenizer.encode_special_tokens = self.splits_special
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    @bounded_matches()
    def _ordinary(self, text: str) -> list[int]:
        self._of_text.encode_special_tokens = True
        return self._of_text.encode(text, add_special_tokens=False).ids

    @cached_property
    def _of_text(self) -> Tokenizer:
        return names_as_text(self.tokenizer)


def read_prompt_encoder(folder: str | Path) -> PromptEncoder:
    """Reads the tokenizer of a model."""
    tokenizer = tokenizer_in(folder)
    # A saved tokenizer may truncate or pad, depending on its last use.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = read_settings(Path(folder))
    if "jaxformer_kind" not in settings:
        return PromptEncoder(tokenizer, None, tokenizer.encode_special_tokens)
    name = settings.get("eos_token")
    id_ = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if id_ is None:
        raise DataError(
            f"{Path(folder, SETTINGS)}: eos_token = {name!r}: must be a token of "
            "tokenizer.json, the one between documents"
        )
    return PromptEncoder(tokenizer, id_)
