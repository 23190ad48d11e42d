"""The corpus: documents tokenised once into flat arrays on disk, which later starts map back in."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxformer.data.packing import TokenStream
from jaxformer.data.sources import Document, Source
from jaxformer.data.special_tokens import Role
from jaxformer.data.splitting import Split
from jaxformer.data.tokenizers import Tokenizer, TokenizerSpec, load_tokenizer
from jaxformer.errors import DataError

_FORMAT = 1
_BATCH_CHARACTERS = 1 << 21
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """A tokenizer and the two sides of the documents in its tokens."""

    tokenizer: Tokenizer
    train: TokenStream
    validation: TokenStream


def load_or_build(
    split: Split,
    spec: TokenizerSpec,
    folder: str | os.PathLike,
    special_tokens: Sequence[Role] = (),
) -> Corpus:
    """Returns the corpus kept in a folder, building what is missing.

    `folder/tokenizer` holds the tokenizer. Once there it stays, because a model trained with it
    needs it; if the documents change later they are tokenised again with the same one.
    `folder/corpus-FINGERPRINT` holds the tokens; the fingerprint covers the documents, the
    split and the tokenizer, so that a stale one is never used. Both appear whole or not at all,
    and of several processes that build at once all use what the first completed.

    Args:
        split: The documents and their sides.
        spec: The tokenizer to use or to train on the training side.
        folder: The run's folder; made if missing.
        special_tokens: The roles for which the tokenizer needs special tokens.

    Raises:
        ConfigError: The tokenizer lacks such a special token.
        DataError: There is no text, it cannot be read, or the folder holds another tokenizer.
    """
    folder = Path(folder)
    texts = (document.text for document, is_validation in split if not is_validation)
    tokenizer = keep_tokenizer(folder, spec, texts, special_tokens)
    home = folder / f"corpus-{_fingerprint(split, tokenizer)}"
    corpus = _load(home, tokenizer)
    if corpus is None:
        if any(folder.glob("corpus-*")):
            _log.warning(
                "The documents, their split or the tokenizer changed since %s was filled: "
                "tokenising again. The order of the data changes with it.",
                folder,
            )
        _publish(home, lambda temporary: _tokenise(split, tokenizer, temporary))
        corpus = _load(home, tokenizer)
    return corpus


def kept_corpus(folder: str | os.PathLike) -> Corpus | None:
    """Returns the corpus in a folder; None where there is none, or more than one."""
    homes = list(Path(folder).glob("corpus-*"))
    return _load(homes[0], load_tokenizer(Path(folder, "tokenizer"))) if len(homes) == 1 else None


def tokenised(source: Source, tokenizer: Tokenizer) -> TokenStream:
    """Returns all documents of a source in memory, for those that are few.

    Args:
        source: The documents.
        tokenizer: Makes them tokens.

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


def keep_tokenizer(
    folder: str | os.PathLike,
    spec: TokenizerSpec,
    texts: Iterable[str],
    special_tokens: Sequence[Role] = (),
) -> Tokenizer:
    """Returns the tokenizer in `folder/tokenizer`, made and kept there at the first call.

    Args:
        folder: The run's folder; made if missing.
        spec: The tokenizer to use or to train.
        texts: What to train it on; not read if there is nothing to train.
        special_tokens: The roles for which it needs special tokens.

    Raises:
        ConfigError: It lacks such a special token.
        DataError: The folder holds another tokenizer, or this one cannot be had.
    """
    home = Path(folder, "tokenizer")
    home.parent.mkdir(parents=True, exist_ok=True)
    record = home / "spec.json"
    asked = repr(spec)
    if special_tokens:
        asked += f" with special tokens ({', '.join(special_tokens)})"
    if not record.exists():

        def write(temporary: Path) -> None:
            start = time.perf_counter()
            tokenizer = spec.fit(texts, special_tokens)
            tokenizer.save(temporary)
            (temporary / record.name).write_text(json.dumps(asked), encoding="utf-8")
            seconds = time.perf_counter() - start
            _log.info("Tokenizer of %d tokens ready in %.1f s", tokenizer.vocab_size, seconds)

        _publish(home, write)
    if not record.exists():
        raise DataError(f"{home} is in the way: it holds no {record.name}, so no tokenizer of ours")
    made_by = json.loads(record.read_text(encoding="utf-8"))
    if made_by != asked:
        raise DataError(
            f"{home} holds the tokenizer {made_by}, but {asked} is asked for: use another "
            "folder, or delete this one if no model depends on it"
        )
    return load_tokenizer(home)


def _fingerprint(split: Split, tokenizer: Tokenizer) -> str:
    parts = [_FORMAT, split.source.fingerprint(), split.fraction, split.seed]
    text = json.dumps([*parts, tokenizer.fingerprint()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _publish(home: Path, write: Callable[[Path], None]) -> None:
    """Fills a folder elsewhere and renames it into place, unless another process came first."""
    temporary = home.with_name(f".{home.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        write(temporary)
        # Renaming onto a folder that holds files fails everywhere, which decides the race.
        with contextlib.suppress(OSError):
            temporary.rename(home)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not home.is_dir():
        raise DataError(f"could not move the finished {home.name} into {home.parent}")


def _load(home: Path, tokenizer: Tokenizer) -> Corpus | None:
    """Maps a corpus into memory, or removes one that was damaged and returns None."""
    if not home.exists():
        return None
    try:
        sizes = json.loads((home / "corpus.json").read_text(encoding="utf-8"))
        train, validation = (
            TokenStream(
                tokens=np.load(home / f"{side}.tokens.npy", mmap_mode="r"),
                offsets=np.load(home / f"{side}.offsets.npy"),
                num_bytes=sizes[side]["bytes"],
            )
            for side in ("train", "validation")
        )
    except (OSError, ValueError, KeyError) as error:
        _log.warning("%s cannot be read (%s): tokenising again", home, error)
        shutil.rmtree(home, ignore_errors=True)
        return None
    return Corpus(tokenizer, train, validation)


def _tokenise(split: Split, tokenizer: Tokenizer, folder: Path) -> None:
    start = time.perf_counter()
    with (
        _StreamWriter(folder, "train", tokenizer) as train,
        _StreamWriter(folder, "validation", tokenizer) as validation,
    ):
        for batch in _batches(split):
            ids = tokenizer.encode_batch([document.text for document, _ in batch])
            for (document, is_validation), tokens in zip(batch, ids, strict=True):
                (validation if is_validation else train).append(document, tokens)
    sizes = {"train": train.sizes(), "validation": validation.sizes()}
    (folder / "corpus.json").write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
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


class _StreamWriter:
    """Writes one side as it comes, in the layout of `TokenStream`, without holding it in memory."""

    def __init__(self, folder: Path, side: str, tokenizer: Tokenizer):
        self._folder, self._side = folder, side
        self._separator = np.array([tokenizer.end_of_text_id])
        self._dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        self._offsets, self._num_bytes = [0], 0

    def __enter__(self):
        self._file = open(self._folder / f"{self._side}.tokens.npy", "wb")
        self._header(0)
        self._write(self._separator)
        return self

    def append(self, document: Document, tokens: np.ndarray) -> None:
        """Adds a document's tokens and the end-of-text after them."""
        self._write(tokens)
        self._write(self._separator)
        self._offsets.append(self._offsets[-1] + len(tokens) + 1)
        self._num_bytes += len(document.text.encode())

    def sizes(self) -> dict[str, int]:
        """Returns what was written, for people to read."""
        documents = len(self._offsets) - 1
        return {"documents": documents, "tokens": self._offsets[-1], "bytes": self._num_bytes}

    def __exit__(self, *exception) -> None:
        # The size is known only now. NumPy leaves room in a header for a larger one.
        self._file.seek(0)
        self._header(self._offsets[-1] + 1)
        self._file.close()
        np.save(self._folder / f"{self._side}.offsets.npy", np.array(self._offsets, np.int64))

    def _write(self, tokens: np.ndarray) -> None:
        self._file.write(tokens.astype(self._dtype).tobytes())

    def _header(self, size: int) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(self._file, header)
