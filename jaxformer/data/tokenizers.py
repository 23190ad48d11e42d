"""Tokenizers: text to token ids and back; every one is stored as a Hugging Face tokenizer.json."""

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

from jaxformer.data import tokenizer_training
from jaxformer.data.tokenizer_training import END_OF_TEXT, PAD
from jaxformer.errors import ConfigError, DataError

_FILE = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
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
    def save(self, folder: str | os.PathLike) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers can load too."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a string that differs between tokenizers that give different ids."""


class ByteTokenizer(Tokenizer):
    """One id per UTF-8 byte: 0 to 255, then end-of-text (256) and padding (257)."""

    vocab_size = 258
    end_of_text_id = 256
    pad_id = 257

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the bytes of each text, int32 [bytes]."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of bytes [bytes]; what is not UTF-8 becomes U+FFFD."""
        ids = np.asarray(ids)
        return ids[(ids >= 0) & (ids < 256)].astype(np.uint8).tobytes().decode(errors="replace")

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the equal byte-level BPE without merges, so that other tools can load it."""
        alphabet = tokenizer_training.byte_alphabet()
        rust = RustTokenizer(models.BPE({char: byte for byte, char in enumerate(alphabet)}, []))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        rust.decoder = decoders.ByteLevel()
        rust.add_special_tokens([AddedToken(END_OF_TEXT), AddedToken(PAD)])
        _write(folder, rust, END_OF_TEXT, PAD, kind="bytes")

    def fingerprint(self) -> str:
        """Returns a constant: there is one byte tokenizer."""
        return "bytes"


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
        with _all_cores():
            encodings = self._rust.encode_batch_fast(
                [part for text in parts for part in text], add_special_tokens=False
            )
        ids = iter(np.array(encoding.ids, np.int32) for encoding in encodings)
        return [np.concatenate([next(ids) for _ in text]) for text in parts]

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of ids [tokens]."""
        ids = np.asarray(ids)
        return self._rust.decode(ids[(ids >= 0) & (ids < self.vocab_size)].tolist())

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and the names of its special tokens."""
        _write(folder, self._rust, self._end_of_text, self._pad, kind="huggingface")

    def fingerprint(self) -> str:
        """Returns a digest of the tokenizer's definition."""
        definition = [self._rust.to_str(), self._end_of_text, self._pad]
        return hashlib.sha256(json.dumps(definition).encode()).hexdigest()


class TokenizerSpec(abc.ABC):
    """Which tokenizer to use, or how to make it; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Returns the tokenizer, made from the training documents' texts if it is to be trained."""


@dataclass(frozen=True)
class Bytes(TokenizerSpec):
    """The 256 bytes of UTF-8 with end-of-text and padding: nothing to train, any text."""

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Returns the byte tokenizer; reads no text."""
        return ByteTokenizer()


@dataclass(frozen=True)
class TokenizerFile(TokenizerSpec):
    """A tokenizer.json of Hugging Face's `tokenizers`, as published models carry it."""

    path: str
    """The tokenizer.json, or the folder that holds it."""

    end_of_text: str | None = None
    """The token between documents; None finds it in the files beside it or by its usual names."""

    pad: str | None = None
    """The padding token; None finds it likewise, and takes the end-of-text token if there is none.
    """

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Returns the tokenizer in the file; reads no text."""
        path = Path(self.path).expanduser()
        file = path / _FILE if path.is_dir() else path
        return _load(file, self.end_of_text, self.pad)


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
        smallest = tokenizer_training.smallest_vocabulary(self.kind)
        if self.vocab_size < smallest:
            raise ConfigError(
                f"vocab_size: a {self.kind} tokenizer needs at least {smallest} tokens (its "
                f"alphabet and special tokens), got {self.vocab_size}"
            )

    def fit(self, texts: Iterable[str]) -> Tokenizer:
        """Trains on the texts.

        Raises:
            DataError: The texts cannot give such a tokenizer.
        """
        with _all_cores():
            rust, end_of_text, pad = tokenizer_training.train(self.kind, self.vocab_size, texts)
        return HuggingFaceTokenizer(rust, end_of_text, pad)


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Loads what `Tokenizer.save` wrote, or the tokenizer of a run's folder.

    Args:
        folder: Holds tokenizer.json itself or in its subfolder "tokenizer".

    Raises:
        DataError: There is no tokenizer, or it cannot be read.
    """
    nested = Path(folder, "tokenizer")
    found = nested if (nested / _FILE).exists() else Path(folder)
    if _settings(found).get("jaxformer_kind") == "bytes":
        return ByteTokenizer()
    return _load(found / _FILE, None, None)


def _load(file: Path, end_of_text: str | None, pad: str | None) -> HuggingFaceTokenizer:
    if not file.is_file():
        raise DataError(f"{file} does not exist: give a tokenizer.json or the folder holding it")
    try:
        rust = RustTokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises bare Exception
        raise DataError(f"{file}: not a tokenizer.json that can be loaded: {error}") from error
    settings = _settings(file.parent)
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
    stored = stored["content"] if isinstance(stored, dict) else stored
    known = isinstance(stored, str) and rust.token_to_id(stored) is not None
    return asked or (stored if known else None)


def _first_known(rust: RustTokenizer, names: Sequence[str]) -> str | None:
    return next((name for name in names if rust.token_to_id(name) is not None), None)


def _settings(folder: Path) -> dict:
    file = folder / _SETTINGS
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON: {error}") from error


def _write(folder, rust: RustTokenizer, end_of_text: str, pad: str, kind: str) -> None:
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "pad_token": pad,
        "jaxformer_kind": kind,
    }
    (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    rust.save(str(folder / _FILE))


@contextmanager
def _all_cores() -> Iterator[None]:
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
