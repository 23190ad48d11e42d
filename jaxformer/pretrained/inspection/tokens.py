"""The tokens of a text as a model reads them, with their positions in the text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from jaxformer.checks import check_argument
from jaxformer.data.tasks.sequences import SpecialTokens
from jaxformer.data.tokenizers.files import read_settings, tokenizer_file
from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.data.tokenizers.special_tokens import ids_of, special_tokens_in
from jaxformer.data.tokenizers.specs import load_tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.positions.base import Position
from jaxformer.models.model import ModelConfig
from jaxformer.pretrained.auto import model_folder, open_checkpoint
from jaxformer.pretrained.model import Pretrained

_SPACE = "\u2581"
"""SentencePiece's separate token for a space."""


class Token(NamedTuple):
    """A token of a text."""

    piece: str
    """The token as stored in the tokenizer: "Ġking" (byte-level BPE), "##ing" (WordPiece), "▁the".
    """
    id: int
    """The row in the embedding table."""
    start: int | None
    """The start of its characters in the text; None if the tokenizer added it."""
    end: int | None
    """The end of its characters: the token is `text[start:end]`."""
    special: bool
    """Whether it is a special token, such as [CLS] or the end of text."""

    def shown(self, text: str) -> str:
        """Returns the characters in the text, or the piece if there are none."""
        if self.start is None or self.piece == _SPACE:
            return self.piece
        return text[self.start : self.end].strip() or self.piece


@dataclass(frozen=True)
class TextTokenizer:
    """A model's tokenizer, with the special tokens around a text in training."""

    rust: RustTokenizer
    """The tokenizer."""
    before: tuple[int, ...] | None
    """The ids before a text; None if the tokenizer's post-processor adds them."""
    after: tuple[int, ...]
    """The ids after a text."""
    settings: dict[str, Any]
    """The fields of tokenizer_config.json."""

    def tokens(self, text: str, *, parse_special: bool | None = None) -> list[Token]:
        """Returns the tokens of a text, including the special ones around it.

        With `parse_special`, the name of a special token in the text, such as "[MASK]", becomes
        that token. None is true for a Hugging Face tokenizer and false for a run of this library,
        as in training.
        """
        check_argument("text", text, isinstance(text, str), "a string")
        own = self.before is None
        self.rust.encode_special_tokens = not (own if parse_special is None else parse_special)
        found = self._marked(self.rust.encode(text, add_special_tokens=own))
        if own:
            return found
        return [*map(self._added, self.before), *found, *map(self._added, self.after)]

    def id_of(self, name: str) -> int | None:
        """Returns the id of a token, or None if it is not in the vocabulary."""
        return self.rust.token_to_id(name)

    @property
    def mask_token(self) -> str | None:
        """The name of the mask token, or None."""
        named = self.settings.get("mask_token")
        named = named.get("content") if isinstance(named, dict) else named
        if isinstance(named, str) and self.id_of(named) is not None:
            return named
        try:
            return self.rust.id_to_token(ids_of("mask", self.id_of)[0])
        except ConfigError:
            return None

    def _added(self, id_: int) -> Token:
        return Token(self.rust.id_to_token(id_), id_, None, None, True)

    def _marked(self, encoding: Encoding) -> list[Token]:
        special = special_tokens_in(self.rust)
        rows = zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True)
        name = self.rust.id_to_token
        return [
            self._added(id_) if mask else Token(name(id_), id_, *offsets, id_ in special)
            for id_, offsets, mask in rows
        ]


def open_tokenizer(model: str | Path | Pretrained) -> TextTokenizer:
    """Returns the tokenizer of a model; reads no weights.

    A Hugging Face tokenizer adds its own special tokens. A run adds the end of text before a
    decoder's text or after an encoder-decoder's, or [CLS] and [SEP] around an encoder's.
    """
    if isinstance(model, Pretrained):
        if model.folder is None:
            raise DataError("the model has no folder, and so no tokenizer")
        return _read(model.folder, model.folder, model.config)
    folder = model_folder(model, "folder", weights=False)
    if tokenizer_file(folder) is not None:  # the folder may have no model
        return _read(folder, folder, None)
    opened = open_checkpoint(folder, "folder", weights=False)
    return _read(opened.home, folder, opened.model)


def tokenize(model: str | Path | Pretrained, text: str) -> list[Token]:
    """Returns the tokens of a text as a model reads them."""
    return open_tokenizer(model).tokens(text)


def check_fits(name: str, tokens: Sequence[Any], position: Position) -> None:
    """Checks that a text has at most as many tokens as the model has positions."""
    limit = position.max_length
    if limit is not None and len(tokens) > limit:
        raise DataError(
            f"{name}: {len(tokens)} tokens, special ones included: must be at most {limit}, the "
            "positions of the model; give a shorter one"
        )


def _read(home: Path, folder: Path, config: ModelConfig | None) -> TextTokenizer:
    if tokenizer_file(home) is None:
        raise DataError(
            f"{folder} has no tokenizer: an image model needs none; for a text model copy its "
            "tokenizer.json (or tokenizer.model, vocab.txt, ...) there"
        )
    encoder = read_prompt_encoder(home)
    settings = read_settings(home)
    if encoder.end_of_text is None or config is None:
        return TextTokenizer(encoder.tokenizer, None, (), settings)
    end = encoder.end_of_text
    if config.is_encoder_decoder:
        before, after = (), (end,)
    elif config.causal:
        before, after = (end,), ()
    else:
        before, after = SpecialTokens.of(load_tokenizer(home)).frames[0].gaps
    return TextTokenizer(encoder.tokenizer, tuple(before), tuple(after), settings)
