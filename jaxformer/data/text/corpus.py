"""The corpus: documents tokenised once into flat arrays on disk, which later starts memory-map."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxformer.data.split import Split
from jaxformer.data.text.corpus_files import CORPUS_FILES, SIZES, Corpus, StreamWriter, read_corpus
from jaxformer.data.text.packing import TokenStream
from jaxformer.data.text.sources import Document, TextSource
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, load_tokenizer
from jaxformer.errors import DataError
from jaxformer.io.digests import DIGESTS, add_digests, write_digests
from jaxformer.io.files import move_into_place, remove_folder, temporary_folder

_FORMAT = 1
_BATCH_CHARACTERS = 1 << 21
_log = logging.getLogger(__name__)


def load_or_build(
    split: Split,
    spec: TokenizerSpec,
    folder: str | os.PathLike,
    special_tokens: Sequence[Role] = (),
) -> Corpus:
    """Returns the corpus in a folder, building what is missing.

    `folder/tokenizer` holds the tokenizer, which never changes, because a model trained with it
    depends on it; if the documents change later, they are tokenised again with the same one.
    `folder/corpus-FINGERPRINT` holds the tokens; the fingerprint covers the documents, the
    split and the tokenizer, so that a stale one is never used. Both appear complete or not at
    all. If several processes build at once, all use what the first one completed.

    Args:
        split: The documents and their sides.
        spec: The tokenizer to use or to train on the training side.
        folder: The run's folder; made if missing.
        special_tokens: The roles for which the tokenizer needs special tokens.

    Returns:
        The tokenizer and both sides of the documents.

    Raises:
        ConfigError: The tokenizer lacks such a special token.
        DataError: There is no text, it cannot be read, or the folder holds another tokenizer.
    """
    folder = Path(folder)
    texts = (document.text for document, is_validation in split if not is_validation)
    tokenizer = load_or_train_tokenizer(folder, spec, texts, special_tokens)
    home = folder / f"corpus-{_fingerprint(split, tokenizer)}"
    corpus = _load(home, tokenizer)
    if corpus is None:
        if any(folder.glob("corpus-*")):
            _log.warning(
                "The documents, their split or the tokenizer changed since %s was filled: "
                "tokenising again. The order of the data changes with it.",
                folder,
            )
        with temporary_folder(home) as temporary:
            _tokenise(split, tokenizer, temporary)
            move_into_place(temporary, home)
        corpus = read_corpus(home, tokenizer)
    return corpus


def load_corpus(folder: str | os.PathLike) -> Corpus | None:
    """Returns the corpus in a folder; None where there is none, or more than one."""
    homes = list(Path(folder).glob("corpus-*"))
    return _load(homes[0], load_tokenizer(Path(folder, "tokenizer"))) if len(homes) == 1 else None


def tokenised(source: TextSource, tokenizer: Tokenizer) -> TokenStream:
    """Tokenises all documents of a small source in memory.

    Args:
        source: The documents.
        tokenizer: The tokenizer.

    Returns:
        Their tokens.

    Raises:
        DataError: There is no text, or it cannot be read.
    """
    texts = [document.text for document in source.documents() if document.text]
    if not texts:
        raise DataError(f"{source} holds no text")
    separator = np.array([tokenizer.end_of_text_id], np.int32)
    rows = tokenizer.encode_batch(texts)
    return TokenStream(
        tokens=np.concatenate([separator, *(part for row in rows for part in (row, separator))]),
        offsets=np.cumsum([0, *(len(row) + 1 for row in rows)]),
        num_bytes=sum(len(text.encode()) for text in texts),
    )


def _fingerprint(split: Split, tokenizer: Tokenizer) -> str:
    parts = [_FORMAT, split.source.fingerprint(), split.fraction, split.seed]
    text = json.dumps([*parts, tokenizer.fingerprint()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _load(home: Path, tokenizer: Tokenizer) -> Corpus | None:
    """Maps a corpus into memory, or removes one that was damaged and returns None."""
    if not home.exists():
        return None
    try:
        corpus = read_corpus(home, tokenizer)
    except DataError as error:
        _log.warning("%s; tokenising again", error)
        remove_folder(home)
        return None
    add_digests(home / DIGESTS, CORPUS_FILES)
    return corpus


def _tokenise(split: Split, tokenizer: Tokenizer, folder: Path) -> None:
    start = time.perf_counter()
    with (
        StreamWriter(folder, "train", tokenizer) as train,
        StreamWriter(folder, "validation", tokenizer) as validation,
    ):
        for batch in _batches(split):
            ids = tokenizer.encode_batch([document.text for document, _ in batch])
            for (document, is_validation), tokens in zip(batch, ids, strict=True):
                (validation if is_validation else train).append(document, tokens)
    sizes = {"train": train.sizes(), "validation": validation.sizes()}
    (folder / SIZES).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
    write_digests(folder / DIGESTS, CORPUS_FILES)
    _log.info("Tokenised the corpus in %.1f s: %s", time.perf_counter() - start, sizes)


def _batches(split: Split) -> Iterator[list[tuple[Document, bool]]]:
    """Groups documents so that a tokenizer has enough to spread over its threads."""
    batch, size = [], 0
    for entry in split:
        batch.append(entry)
        size += len(entry[0].text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
