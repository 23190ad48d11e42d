"""Specifies a tokenizer or how to train it; all are saved as a Hugging Face tokenizer.json."""

import abc
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import AddedToken

from jaxformer.checks import check_field, check_types
from jaxformer.data.tokenizers import training as tokenizer_training
from jaxformer.data.tokenizers.files import (
    TOKENIZER,
    TOKENIZER_FILES,
    read_settings,
    read_tokenizer,
    tokenizer_file,
)
from jaxformer.data.tokenizers.special_tokens import Role, names_to_add
from jaxformer.data.tokenizers.tokenizer import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    all_cores,
)
from jaxformer.data.tokenizers.training import END_OF_TEXT, PAD
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import DIGESTS, check_digests
from jaxformer.io.model_files import is_side_file
from jaxformer.io.paths import any_path, is_remote
from jaxformer.io.staging import staged

# The names of these two in published tokenizers, the most explicit first.
_END_OF_TEXT_NAMES = (
    END_OF_TEXT, "<|end_of_text|>", "<|im_end|>", "</s>", "<eos>", "[EOS]", "[SEP]",
)  # fmt: skip
_PAD_NAMES = (PAD, "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|padding|>")


class TokenizerSpec(abc.ABC):
    """Which tokenizer to use, or how to make it; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        """Returns the tokenizer, which is trained on the training documents if necessary.

        Args:
            texts: The texts to train on; not read if there is nothing to train.
            special_tokens: The roles for which there must be special tokens.

        Returns:
            The tokenizer; equal texts give equal tokenizers.

        Raises:
            ConfigError: The tokenizer cannot have such special tokens.
            DataError: It cannot be read, or trained on these texts.
        """


@dataclass(frozen=True)
class Bytes(TokenizerSpec):
    """The 256 bytes with end-of-text and padding, which encode any text without training."""

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        return ByteTokenizer(names_to_add(special_tokens, ByteTokenizer().find_id))


@dataclass(frozen=True)
class TokenizerFile(TokenizerSpec):
    """The tokenizer of a published model, in any of the usual files.

    These are the tokenizer.json of Hugging Face's `tokenizers`, a SentencePiece model
    (tokenizer.model, spiece.model), a file of tiktoken, vocab.json with merges.txt, and vocab.txt.
    """

    path: str
    """The file or its folder; may be gs:// or s3://."""

    end_of_text: str | None = None
    """The token between documents; None: found in the files next to it or by its usual names."""

    pad: str | None = None
    """The padding token; None: found by its usual names, or else end-of-text."""

    pattern: str | None = None
    """How a file of tiktoken cuts a text: the name of an encoding ("gpt2", "cl100k_base",
    "o200k_base", "llama3", "qwen") or a regular expression. None: by the file's name."""

    def __repr__(self) -> str:
        # Runs keep this text; in older runs it has no pattern.
        pattern = "" if self.pattern is None else f", pattern={self.pattern!r}"
        shown = f"path={self.path!r}, end_of_text={self.end_of_text!r}, pad={self.pad!r}"
        return f"TokenizerFile({shown}{pattern})"

    def place(self) -> Path:
        """Returns the file or the folder on this machine, which is a copy if it is in a store."""
        path = any_path(self.path, "tokenizer.path")
        if not is_remote(path):
            return path
        if path.is_file():  # the files next to it name its special tokens
            folder = staged(path.parent, lambda name: name == path.name or is_side_file(name))
            return folder / path.name
        return staged(path, is_side_file)

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        path = self.place()
        file = _file_in(path) if path.is_dir() else path
        tokenizer = _load(file, self.end_of_text, self.pad, self.pattern)
        for role in special_tokens:
            try:
                tokenizer.special_ids(role)
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}") from None
        return tokenizer


@dataclass(frozen=True)
class TrainTokenizer(TokenizerSpec):
    """Trains a subword tokenizer on the training documents; equal documents give equal tokenizers.

    References:
        Sennrich et al. 2016, https://arxiv.org/abs/1508.07909 (BPE); Radford et al. 2019 (bytes as
        its alphabet); Schuster & Nakajima 2012 (WordPiece); Kudo 2018,
        https://arxiv.org/abs/1804.10959 (unigram).
    """

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """bpe and unigram work on bytes and reproduce every text exactly; wordpiece is BERT's."""

    vocab_size: int = 4096
    """The number of tokens, with bytes and special tokens; a small corpus may give fewer."""

    def __post_init__(self):
        check_types(self)
        self._check_size(extra=0)

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        own = tokenizer_training.default_special_tokens(self.kind)
        extra = names_to_add(special_tokens, dict.fromkeys(own, 0).get)
        self._check_size(len(extra))
        with all_cores():
            rust, end_of_text, pad = tokenizer_training.train(
                self.kind, self.vocab_size - len(extra), texts
            )
        rust.add_special_tokens([AddedToken(name) for name in extra])
        return HuggingFaceTokenizer(rust, end_of_text, pad)

    def _check_size(self, extra: int) -> None:
        special = tokenizer_training.default_special_tokens(self.kind)
        smallest = len(special) + (1 if self.kind == "wordpiece" else 256) + extra
        if self.vocab_size < smallest:
            raise ConfigError(
                f"vocab_size: a {self.kind} tokenizer needs at least {smallest} tokens (its "
                f"alphabet and special tokens), got {self.vocab_size}"
            )


@dataclass(frozen=True)
class Characters(TokenizerSpec):
    """A token for each character, for transcripts by a CTC head; id 0 is padding, and the blank."""

    alphabet: str = "'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    """The characters other than the blank between words, each once."""

    def __post_init__(self):
        check_types(self)
        different = len(set(self.alphabet)) == len(self.alphabet) > 0
        rule = "different characters, without blanks and |"
        check_field(self, "alphabet", different and not set(self.alphabet) & set(" |"), rule)

    def fit(self, texts: Iterable[str], special_tokens: Sequence[Role] = ()) -> Tokenizer:
        rust, end_of_text, pad = tokenizer_training.characters(self.alphabet)
        extra = names_to_add(special_tokens, rust.token_to_id)
        rust.add_special_tokens([AddedToken(name) for name in extra])
        return HuggingFaceTokenizer(rust, end_of_text, pad)


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Loads a tokenizer that `Tokenizer.save` wrote, or that of a run.

    Args:
        folder: The folder with tokenizer.json, or with a subfolder "tokenizer" that has it.

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
                "the same tokenizer again if the data have not changed"
            ) from error
    file = _file_in(found)
    if read_settings(found).get("jaxformer_kind") == "bytes":
        return _load_bytes(file)
    return _load(file, None, None)


def _load_bytes(file: Path) -> ByteTokenizer:
    added = sorted(read_tokenizer(file).get_added_tokens_decoder().items())
    ids = [id_ for id_, _ in added]
    names = [token.content for _, token in added]
    if ids != list(range(256, 256 + len(ids))) or names[:2] != [END_OF_TEXT, PAD]:
        raise DataError(f"{file}: not the 256 bytes with their special tokens")
    return ByteTokenizer(names[2:])


def _file_in(folder: Path) -> Path:
    return tokenizer_file(folder) or folder / TOKENIZER


def _load(
    file: Path, end_of_text: str | None, pad: str | None, pattern: str | None = None
) -> HuggingFaceTokenizer:
    rust = read_tokenizer(file, pattern)
    settings = read_settings(file.parent)

    def special(name: str, asked: str | None, key: str, usual: Sequence[str]) -> str | None:
        """The token that the user named, the one stored with the file, or a usual one."""
        if asked is not None and rust.token_to_id(asked) is None:
            raise DataError(f"{file}: {name}={asked!r} is not in the vocabulary")
        stored = settings.get(key)
        stored = stored.get("content") if isinstance(stored, dict) else stored
        names = (asked, stored, *usual)
        known = (
            each for each in names if isinstance(each, str) and rust.token_to_id(each) is not None
        )
        return next(known, None)

    end_of_text = special("end_of_text", end_of_text, "eos_token", _END_OF_TEXT_NAMES)
    if end_of_text is None:
        raise DataError(
            f"{file}: cannot tell which token ends a text (none of {', '.join(_END_OF_TEXT_NAMES)})"
            "; name it with `end_of_text`"
        )
    pad = special("pad", pad, "pad_token", _PAD_NAMES)
    return HuggingFaceTokenizer(rust, end_of_text, pad or end_of_text)
