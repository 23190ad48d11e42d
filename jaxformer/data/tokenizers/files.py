"""The files of a tokenizer: tokenizer.json or older ones, and tokenizer_config.json beside it."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from jaxformer.data.tokenizers.convert import VOCABULARY, convert, tokenizer_file
from jaxformer.data.tokenizers.special_tokens import ids_of
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import read_bytes, replacing
from jaxformer.io.model_files import TOKENIZER, read_object

SETTINGS = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER, SETTINGS)
"""What `write_tokenizer` writes."""
_OTHER_FILES = (
    "a SentencePiece model (tokenizer.model, spiece.model), a tiktoken file, vocab.json with "
    "merges.txt, or vocab.txt"
)
# Published vocabularies leave some ids unused, never most of them.
_MOST_UNUSED = 1 << 16


def read_tokenizer(file: Path, pattern: str | None = None) -> Tokenizer:
    """Reads a tokenizer.json, a SentencePiece model, a tiktoken file or a vocabulary.

    Args:
        file: The file, such as `tokenizer_file` finds in a folder.
        pattern: For a tiktoken file, see `tiktoken_tokenizer`.

    Returns:
        The tokenizer, of the `tokenizers` package.

    Raises:
        DataError: It is missing or damaged, or one of its ids is far beyond the others.
    """
    if not file.exists():
        raise DataError(
            f"{file} does not exist: give a tokenizer.json, {_OTHER_FILES}; or the folder of one"
        )
    is_older = file.suffix != ".json" or file.name == VOCABULARY
    tokenizer = convert(file, pattern) if is_older else _read_json(file)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(vocabulary, key=vocabulary.get, default=None)
    if last is None:
        raise DataError(f"{file}: it has no tokens")
    # A table of all ids would not end.
    if vocabulary[last] > 2 * len(vocabulary) + _MOST_UNUSED:
        raise DataError(
            f"{file}: the token {last!r} has the id {vocabulary[last]}, but there are only "
            f"{len(vocabulary)} tokens"
        )
    return tokenizer


def _read_json(file: Path) -> Tokenizer:
    definition = read_bytes(file)
    try:
        return Tokenizer.from_buffer(definition)
    except Exception as error:  # the Rust library raises bare Exception
        raise DataError(
            f"{file}: not a tokenizer.json that can be loaded: {str(error)[:300]}"
        ) from error


def tokenizer_in(folder: str | os.PathLike) -> Tokenizer:
    """Reads the tokenizer of a model's folder.

    Args:
        folder: The folder.

    Returns:
        The tokenizer, of the `tokenizers` package.

    Raises:
        DataError: There is none, or it cannot be read.
    """
    file = tokenizer_file(folder)
    if file is None:
        raise DataError(
            f"{Path(folder, TOKENIZER)} does not exist, nor {_OTHER_FILES}; transformers can write "
            "it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return read_tokenizer(file)


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads the tokenizer_config.json of a folder.

    Args:
        folder: The folder.

    Returns:
        Its fields; empty if there is no such file.

    Raises:
        DataError: It is no JSON object, or no file of the folder.
    """
    return read_object(folder, SETTINGS) or {}


def write_tokenizer(
    folder: str | os.PathLike, tokenizer: Tokenizer, end_of_text: str, pad: str, kind: str
) -> None:
    """Writes a tokenizer and the names of its special tokens.

    Args:
        folder: The folder; made if missing.
        tokenizer: The tokenizer.
        end_of_text: The token between documents.
        pad: The padding token.
        kind: Which subclass of `Tokenizer` reads it: "bytes" or "huggingface".

    Raises:
        DataError: The disk is full or cannot be written to.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "pad_token": pad,
        "jaxformer_kind": kind,
    }
    for role in ("cls", "sep", "mask"):
        with suppress(ConfigError):
            (first, *_) = ids_of(role, tokenizer.token_to_id)
            settings[f"{role}_token"] = tokenizer.id_to_token(first)
    texts = (tokenizer.to_str(pretty=True), json.dumps(settings, indent=2) + "\n")
    for name, text in zip(TOKENIZER_FILES, texts, strict=True):
        with replacing(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
