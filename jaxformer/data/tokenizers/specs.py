"""Tokenizers, all of them stored as a Hugging Face tokenizer.json."""

import abc
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from jaxformer.data.tokenizers import training as tokenizer_training
from jaxformer.data.tokenizers.files import (
    TOKENIZER,
    TOKENIZER_FILES,
    read_settings,
    read_tokenizer,
    write_tokenizer,
)
from jaxformer.data.tokenizers.special_tokens import Frame, Role, frame_of, ids_of, names_to_add
from jaxformer.data.tokenizers.training import END_OF_TEXT, PAD
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.digests import DIGESTS, check_digests
from jaxformer.io.model_files import small_file_in

# What the published tokenizers call these two, most explicit first.
_END_OF_TEXT_NAMES = (
    END_OF_TEXT, "<|end_of_text|>", "<|im_end|>", "</s>", "<eos>", "[EOS]", "[SEP]",
)  # fmt: skip
_PAD_NAMES = (PAD, "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|padding|>")


class Tokenizer(abc.ABC):
    """A fitted tokenizer.

    Attributes:
        vocab_size: The number of ids; every id is below it.
        end_of_text_id: The id between documents; generation from nothing starts with it.
        pad_id: The id that fills a row after its last token; such places have weight 0. Equal to
            `end_of_text_id` where a tokenizer has no padding token.
    """

    vocab_size: int
    end_of_text_id: int
    pad_id: int

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32 [tokens], without special tokens around it.

        A special token's name inside the text is ordinary text.
        """
        return self.encode_batch([text])[0]

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 [tokens]."""

    @abc.abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of ids [tokens]; special and unknown ids are left out."""

    @abc.abstractmethod
    def token_id(self, name: str) -> int | None:
        """Returns the id of a token by its name; None if there is no such token."""

    def special_ids(self, role: Role) -> np.ndarray:
        """Returns the ids of the special tokens with a role, int32 [1] or [sentinels].

        Raises:
            ConfigError: The tokenizer lacks such a token.
        """
        return np.array(ids_of(role, self.token_id), np.int32)

    def frame(self, texts: int) -> Frame | None:
        """Returns the special tokens that the tokenizer itself puts around one text or two."""
        del texts

    @abc.abstractmethod
    def pieces(self) -> list[str | None]:
        """Returns the text of each id, with a space in front where it can only begin a word.

        None stands for ids that are no text: special and unused ones.
        """

    @property
    @abc.abstractmethod
    def backend_tokenizer(self) -> RustTokenizer:
        """The same tokenizer as one of Hugging Face's `tokenizers`."""

    @abc.abstractmethod
    def save(self, folder: str | os.PathLike) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers can load too."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a string that differs between tokenizers that give different ids."""


class ByteTokenizer(Tokenizer):
    """One id per UTF-8 byte: 0 to 255, then end-of-text (256), padding (257) and special tokens."""

    end_of_text_id = 256
    pad_id = 257

    def __init__(self, special_tokens: Sequence[str] = ()):
        """`special_tokens` are the names of those from 258 on."""
        self._special = (END_OF_TEXT, PAD, *special_tokens)

    @property
    def vocab_size(self) -> int:
        """The bytes and the special tokens."""
        return 256 + len(self._special)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the bytes of each text, int32 [bytes]."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of bytes [bytes]; what is not UTF-8 becomes U+FFFD."""
        ids = np.asarray(ids)
        return ids[(ids >= 0) & (ids < 256)].astype(np.uint8).tobytes().decode(errors="replace")

    def token_id(self, name: str) -> int | None:
        """Returns the id of a special token by its name."""
        return 256 + self._special.index(name) if name in self._special else None

    def pieces(self) -> list[str | None]:
        """Returns the character of each byte; beyond ASCII, where it takes several, U+FFFD."""
        return [self.decode([byte]) for byte in range(256)] + [None] * len(self._special)

    @property
    def backend_tokenizer(self) -> RustTokenizer:
        """The equal byte-level BPE without merges."""
        alphabet = tokenizer_training.byte_alphabet()
        rust = RustTokenizer(models.BPE({char: byte for byte, char in enumerate(alphabet)}, []))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        rust.decoder = decoders.ByteLevel()
        rust.add_special_tokens([AddedToken(name) for name in self._special])
        return rust

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the equal byte-level BPE, so that other tools can load it."""
        write_tokenizer(folder, self.backend_tokenizer, END_OF_TEXT, PAD, kind="bytes")

    def fingerprint(self) -> str:
        """Returns what tells byte tokenizers apart: their special tokens."""
        return " ".join(["bytes", *self._special[2:]])


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of Hugging Face's `tokenizers` with its end-of-text and padding tokens named."""

    def __init__(self, rust: RustTokenizer, end_of_text: str, pad: str):
        rust.no_truncation()
        rust.no_padding()
        # A document that mentions "<|endoftext|>" must not end there.
        rust.encode_special_tokens = True
        self._rust = rust
        self._end_of_text, self._pad = end_of_text, pad
        self.vocab_size = max(rust.get_vocab(with_added_tokens=True).values()) + 1
        self.end_of_text_id = rust.token_to_id(end_of_text)
        self.pad_id = rust.token_to_id(pad)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each text, int32 [tokens].

        Texts beyond a quarter of a million characters are encoded in parts that end with a line,
        so a token never spans those lines.
        """
        parts = [tokenizer_training.cut(text) for text in texts]
        with all_cores():
            encodings = self._rust.encode_batch_fast(
                [part for text in parts for part in text], add_special_tokens=False
            )
        ids = iter(np.array(encoding.ids, np.int32) for encoding in encodings)
        return [np.concatenate([next(ids) for _ in text]) for text in parts]

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of ids [tokens]."""
        ids = np.asarray(ids)
        return self._rust.decode(ids[(ids >= 0) & (ids < self.vocab_size)].tolist())

    def token_id(self, name: str) -> int | None:
        """Returns the id of a token by its name."""
        return self._rust.token_to_id(name)

    def frame(self, texts: int) -> Frame | None:
        """Returns what the post-processor adds; None if there is none."""
        return frame_of(self._rust, texts)

    def pieces(self) -> list[str | None]:
        """Returns the text of each id, whatever mark its kind of tokenizer puts at words."""
        names = {id_: name for name, id_ in self._rust.get_vocab(with_added_tokens=True).items()}
        added = self._rust.get_added_tokens_decoder()
        special = {id_ for id_, token in added.items() if token.special}
        special |= {self.end_of_text_id, self.pad_id}
        text_of = tokenizer_training.piece_reader(self._rust)
        return [
            text_of(names[id_]) if id_ in names and id_ not in special else None
            for id_ in range(self.vocab_size)
        ]

    @property
    def backend_tokenizer(self) -> RustTokenizer:
        """The tokenizer itself."""
        return self._rust

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and the names of its special tokens."""
        write_tokenizer(folder, self._rust, self._end_of_text, self._pad, kind="huggingface")

    def fingerprint(self) -> str:
        """Returns a digest of the tokenizer's definition."""
        definition = [self._rust.to_str(), self._end_of_text, self._pad]
        return hashlib.sha256(json.dumps(definition).encode()).hexdigest()


class TokenizerSpec(abc.ABC):
    """Which tokenizer to use, or how to make it; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        """Returns the tokenizer, made from the training documents' texts if it is to be trained.

        Args:
            texts: What to train on; not read if there is nothing to train.
            special_tokens: The roles for which there must be special tokens.

        Raises:
            ConfigError: It cannot have such special tokens.
        """


@dataclass(frozen=True)
class Bytes(TokenizerSpec):
    """The 256 bytes of UTF-8 with end-of-text and padding: nothing to train, any text."""

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        """Returns the byte tokenizer; reads no text."""
        return ByteTokenizer(names_to_add(special_tokens, ByteTokenizer().token_id))


@dataclass(frozen=True)
class TokenizerFile(TokenizerSpec):
    """A tokenizer.json of Hugging Face's `tokenizers`, as published models carry it."""

    path: str
    """The tokenizer.json, or the folder that holds it."""

    end_of_text: str | None = None
    """The token between documents; None finds it in the files beside it or by its usual names."""

    pad: str | None = None
    """The padding token; None finds it by its usual names, else uses end-of-text."""

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        """Returns the tokenizer in the file; reads no text."""
        path = Path(os.path.expanduser(self.path))
        file = _file_in(path) if path.is_dir() else path
        tokenizer = _load(file, self.end_of_text, self.pad)
        for role in special_tokens:
            try:
                tokenizer.special_ids(role)
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}") from None
        return tokenizer


@dataclass(frozen=True)
class TrainTokenizer(TokenizerSpec):
    """Trains a subword tokenizer on the training documents; the same documents give the same one.

    References:
        Sennrich et al. 2016, https://arxiv.org/abs/1508.07909 (BPE); Radford et al. 2019 (bytes as
        its alphabet); Schuster & Nakajima 2012 (WordPiece); Kudo 2018,
        https://arxiv.org/abs/1804.10959 (unigram).
    """

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """bpe and unigram work on bytes and give back every text exactly; wordpiece is BERT's."""

    vocab_size: int = 4096
    """Tokens to learn, bytes and special tokens included; a small corpus may give fewer."""

    def __post_init__(self):
        _check_size(self.kind, self.vocab_size, extra=0)

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        """Trains on the texts.

        Args:
            texts: The training texts.
            special_tokens: The roles for which there must be special tokens.

        Returns:
            The trained tokenizer.

        Raises:
            ConfigError: The special tokens leave no room for the others.
            DataError: The texts cannot give such a tokenizer.
        """
        own = tokenizer_training.own_special_tokens(self.kind)
        extra = names_to_add(special_tokens, dict.fromkeys(own, 0).get)
        _check_size(self.kind, self.vocab_size, len(extra))
        with all_cores():
            rust, end_of_text, pad = tokenizer_training.train(
                self.kind, self.vocab_size - len(extra), texts
            )
        rust.add_special_tokens([AddedToken(name) for name in extra])
        return HuggingFaceTokenizer(rust, end_of_text, pad)


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Loads a tokenizer that `Tokenizer.save` wrote, or that of a run.

    Args:
        folder: Holds tokenizer.json itself or in its subfolder "tokenizer".

    Returns:
        The tokenizer.

    Raises:
        DataError: There is no tokenizer, or it cannot be read or is damaged.
    """
    nested = Path(folder, "tokenizer")
    found = nested if os.path.lexists(nested / TOKENIZER) else Path(folder)
    if (found / DIGESTS).exists():
        try:
            check_digests(found / DIGESTS, TOKENIZER_FILES)
        except DataError as error:
            raise DataError(
                f"{error}: put a copy of the file back, or start the run once more, which makes "
                "the same tokenizer again if the data are what they were"
            ) from error
    file = _file_in(found)
    if read_settings(found).get("jaxformer_kind") == "bytes":
        return _load_bytes(file)
    return _load(file, None, None)


def _load_bytes(file: Path) -> ByteTokenizer:
    added = sorted(read_tokenizer(file).get_added_tokens_decoder().items())
    ids, names = [id_ for id_, _ in added], [token.content for _, token in added]
    if ids != list(range(256, 256 + len(ids))) or names[:2] != [END_OF_TEXT, PAD]:
        raise DataError(f"{file}: not the 256 bytes with their special tokens")
    return ByteTokenizer(names[2:])


def _check_size(kind: str, vocab_size: int, extra: int) -> None:
    smallest = tokenizer_training.smallest_vocabulary(kind) + extra
    if vocab_size < smallest:
        raise ConfigError(
            f"vocab_size: a {kind} tokenizer needs at least {smallest} tokens (its alphabet and "
            f"special tokens), got {vocab_size}"
        )


def _file_in(folder: Path) -> Path:
    return small_file_in(folder, TOKENIZER) or folder / TOKENIZER


def _load(file: Path, end_of_text: str | None, pad: str | None) -> HuggingFaceTokenizer:
    rust = read_tokenizer(file)
    settings = read_settings(file.parent)
    end_of_text = _special(rust, file, "end_of_text", end_of_text, settings.get("eos_token"))
    end_of_text = end_of_text or _first_known(rust, _END_OF_TEXT_NAMES)
    if end_of_text is None:
        raise DataError(
            f"{file}: cannot tell which token ends a text (none of {', '.join(_END_OF_TEXT_NAMES)})"
            "; name it with `end_of_text`"
        )
    pad = _special(rust, file, "pad", pad, settings.get("pad_token"))
    return HuggingFaceTokenizer(
        rust, end_of_text, pad or _first_known(rust, _PAD_NAMES) or end_of_text
    )


def _special(rust, file: Path, name: str, asked: str | None, stored: object) -> str | None:
    """Returns the token the user named, else the one stored beside the file, if there is one."""
    if asked is not None and rust.token_to_id(asked) is None:
        raise DataError(f"{file}: {name}={asked!r} is not in the vocabulary")
    stored = stored.get("content") if isinstance(stored, dict) else stored
    known = isinstance(stored, str) and rust.token_to_id(stored) is not None
    return asked or (stored if known else None)


def _first_known(rust: RustTokenizer, names: Sequence[str]) -> str | None:
    return next((name for name in names if rust.token_to_id(name) is not None), None)


@contextmanager
def all_cores() -> Iterator[None]:
    """Lets the Rust library use threads inside, and not outside.

    Its threads do not survive a fork: left to itself it prints a warning into every process forked
    afterwards. A choice the user made in the environment is kept.
    """
    name = "TOKENIZERS_PARALLELISM"
    chosen = os.environ.get(name)
    os.environ[name] = chosen or "true"
    try:
        yield
    finally:
        os.environ[name] = chosen or "false"
