"""Fitted tokenizers: bytes, and those of Hugging Face's `tokenizers`."""

import abc
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import ArrayLike
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as RustTokenizer

from jaxformer.data.tokenizers import training as tokenizer_training
from jaxformer.data.tokenizers.files import bounded_matches, write_tokenizer
from jaxformer.data.tokenizers.special_tokens import (
    Frame,
    Role,
    frame_of,
    ids_of,
    names_as_text,
    special_tokens_in,
)
from jaxformer.data.tokenizers.training import END_OF_TEXT, PAD
from jaxformer.errors import ConfigError, did_you_mean


class Tokenizer(abc.ABC):
    """A fitted tokenizer.

    Attributes:
        vocab_size: The number of ids; every id is below it.
        end_of_text_id: The id between documents; generation without a prompt starts with it.
        pad_id: The id that fills a row after its last token; such places have weight 0. Equal to
            `end_of_text_id` if the tokenizer has no padding token.
    """

    vocab_size: int
    end_of_text_id: int
    pad_id: int

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 [tokens], without special tokens around it.

        The name of a special token in the text is ordinary text.
        """
        return self.encode_batch([text])[0]

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 [tokens]."""

    @abc.abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of ids [tokens]; special and unknown ids are left out."""

    @abc.abstractmethod
    def find_id(self, name: str) -> int | None:
        """Returns the id of a token by its name; None if there is no such token."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Returns the names of all tokens that `find_id` finds, special ones first."""

    def token_id(self, name: str) -> int:
        """Returns the id of a token by its name.

        Args:
            name: The name in the vocabulary: "[MASK]", "Ġhouse", "<|im_end|>".

        Raises:
            ConfigError: There is no such token; names similar ones.
        """
        if (found := self.find_id(name)) is None:
            raise ConfigError(
                f"{name!r} is not a token of the tokenizer{_alike(name, self.names())}"
            )
        return found

    def special_ids(self, role: Role) -> np.ndarray:
        """Returns the ids of the special tokens with a role, int32 [1] or [sentinels].

        Raises:
            ConfigError: The tokenizer lacks such a token.
        """
        return np.array(ids_of(role, self.find_id), np.int32)

    def frame(self, texts: int) -> Frame | None:
        """Returns the special tokens that the tokenizer itself puts around one text or two."""
        del texts

    @abc.abstractmethod
    def pieces(self) -> list[str | None]:
        """Returns the text of each id, after a space if it can only begin a word.

        None stands for ids without a text: special and unused ones.
        """

    @property
    @abc.abstractmethod
    def backend_tokenizer(self) -> RustTokenizer:
        """The equivalent tokenizer of Hugging Face's `tokenizers`."""

    @abc.abstractmethod
    def save(self, folder: str | os.PathLike) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers can load too."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a string that differs between tokenizers with different ids."""


class ByteTokenizer(Tokenizer):
    """One id per UTF-8 byte: 0 to 255, then end-of-text (256), padding (257) and special tokens."""

    end_of_text_id = 256
    pad_id = 257

    def __init__(self, special_tokens: Sequence[str] = ()):
        """`special_tokens` are the names of the ids from 258 on."""
        self._special = (END_OF_TEXT, PAD, *special_tokens)

    @property
    def vocab_size(self) -> int:
        """The bytes and the special tokens."""
        return 256 + len(self._special)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of bytes [bytes]; invalid UTF-8 becomes U+FFFD."""
        ids = np.asarray(ids)
        return ids[(ids >= 0) & (ids < 256)].astype(np.uint8).tobytes().decode(errors="replace")

    def find_id(self, name: str) -> int | None:
        return 256 + self._special.index(name) if name in self._special else None

    def names(self) -> list[str]:
        """Returns the names of the special tokens; bytes have no names."""
        return list(self._special)

    def pieces(self) -> list[str | None]:
        """Returns the character of each byte; U+FFFD for bytes beyond ASCII."""
        return [self.decode([byte]) for byte in range(256)] + [None] * len(self._special)

    @property
    def backend_tokenizer(self) -> RustTokenizer:
        alphabet = tokenizer_training.byte_alphabet()
        ids = {character: byte for byte, character in enumerate(alphabet)}
        rust = tokenizer_training.byte_level(models.BPE(ids, []))
        rust.add_special_tokens([AddedToken(name) for name in self._special])
        return rust

    def save(self, folder: str | os.PathLike) -> None:
        write_tokenizer(folder, self.backend_tokenizer, END_OF_TEXT, PAD, kind="bytes")

    def fingerprint(self) -> str:
        return " ".join(["bytes", *self._special[2:]])


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of Hugging Face's `tokenizers` with an end-of-text and a padding token."""

    def __init__(self, rust: RustTokenizer, end_of_text: str, pad: str):
        rust.no_truncation()
        rust.no_padding()
        # A document that mentions "<|endoftext|>" must not end there.
        self._rust, self._of_text = rust, names_as_text(rust)
        self._end_of_text, self._pad = end_of_text, pad
        self.vocab_size = max(rust.get_vocab(with_added_tokens=True).values()) + 1
        self.end_of_text_id = rust.token_to_id(end_of_text)
        self.pad_id = rust.token_to_id(pad)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 [tokens].

        Texts of more than 250,000 characters are encoded in parts that end with a line, so that
        tokens do not span these line ends.
        """
        parts = [tokenizer_training.cut(text) for text in texts]
        with all_cores():
            encodings = self._of_text.encode_batch_fast(
                [part for text in parts for part in text], add_special_tokens=False
            )
        ids = iter(np.array(encoding.ids, np.int32) for encoding in encodings)
        return [np.concatenate([next(ids) for _ in text]) for text in parts]

    def decode(self, ids: ArrayLike) -> str:
        ids = np.asarray(ids)
        return self._rust.decode(ids[(ids >= 0) & (ids < self.vocab_size)].tolist())

    def find_id(self, name: str) -> int | None:
        return self._rust.token_to_id(name)

    def names(self) -> list[str]:
        added = [token.content for token in self._rust.get_added_tokens_decoder().values()]
        return list(dict.fromkeys([*added, *self._rust.get_vocab(with_added_tokens=True)]))

    def frame(self, texts: int) -> Frame | None:
        return frame_of(self._rust, texts)

    def pieces(self) -> list[str | None]:
        names = {id_: name for name, id_ in self._rust.get_vocab(with_added_tokens=True).items()}
        special = {*special_tokens_in(self._rust), self.end_of_text_id, self.pad_id}
        text_of = tokenizer_training.piece_reader(self._rust)
        return [
            text_of(names[id_]) if id_ in names and id_ not in special else None
            for id_ in range(self.vocab_size)
        ]

    @property
    def backend_tokenizer(self) -> RustTokenizer:
        return self._rust

    def save(self, folder: str | os.PathLike) -> None:
        write_tokenizer(folder, self._rust, self._end_of_text, self._pad, kind="huggingface")

    def fingerprint(self) -> str:
        definition = [self._rust.to_str(), self._end_of_text, self._pad]
        return hashlib.sha256(json.dumps(definition).encode()).hexdigest()


def _alike(name: str, names: Sequence[str]) -> str:
    """The part of a message that names tokens similar to a missing one."""
    word = name.strip("[]<>|▁Ġ# ").lower()
    if name[:1] in ("<", "["):  # as in special tokens
        names = [each for each in names if each[:1] in ("<", "[") and each[1:]]
    inside = [each for each in names if len(word) > 1 and word in each.lower()]
    if found := did_you_mean(name, sorted(inside, key=len)[:100] or names[:1000], 3):
        return found
    return f"; there are {', '.join(map(repr, names[:5]))}" + (" ..." if names[5:] else "")


@contextmanager
def all_cores() -> Iterator[None]:
    """Lets the Rust library use threads within this context, and reports endless matches.

    Its threads do not survive a fork: otherwise it prints a warning into every process forked
    afterwards. The user's choice in the environment is kept.
    """
    name = "TOKENIZERS_PARALLELISM"
    chosen = os.environ.get(name)
    os.environ[name] = chosen or "true"
    try:
        with bounded_matches():
            yield
    finally:
        os.environ[name] = chosen or "false"
