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
from pathlib import Path

import numpy as np

from jaxformer.data.text.corpus_files import CORPUS_FILES, SIZES, Corpus, StreamWriter, read_corpus
from jaxformer.data.text.packing import TokenStream
from jaxformer.data.text.sources import Document, Source
from jaxformer.data.text.splitting import Split
from jaxformer.data.tokenizers.files import TOKENIZER_FILES
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, load_tokenizer
from jaxformer.errors import DataError
from jaxformer.io.digests import DIGESTS, check_digests, write_digests
from jaxformer.io.files import read_bytes
from jaxformer.io.json_files import read_json

_FORMAT = 1
_SPEC = "spec.json"
_BATCH_CHARACTERS = 1 << 21
_log = logging.getLogger(__name__)


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
        corpus = read_corpus(home, tokenizer)
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
    asked = repr(spec)
    if special_tokens:
        asked += f" with special tokens ({', '.join(special_tokens)})"

    def write(temporary: Path) -> None:
        start = time.perf_counter()
        tokenizer = spec.fit(texts, special_tokens)
        tokenizer.save(temporary)
        (temporary / _SPEC).write_text(json.dumps(asked), encoding="utf-8")
        write_digests(temporary / DIGESTS, (*TOKENIZER_FILES, _SPEC))
        seconds = time.perf_counter() - start
        _log.info("Tokenizer of %d tokens ready in %.1f s", tokenizer.vocab_size, seconds)

    if not home.is_dir():
        _publish(home, write)
    if (home / DIGESTS).exists():
        _repair_tokenizer(home, write)
    elif not (home / _SPEC).exists():
        raise DataError(f"{home} is in the way: it holds no {_SPEC}, so no tokenizer of ours")
    made_by = read_json(home / _SPEC, str)
    if made_by != asked:
        raise DataError(
            f"{home} holds the tokenizer {made_by}, but {asked} is asked for: use another "
            "folder, or delete this one if no model depends on it"
        )
    tokenizer = load_tokenizer(home)
    _write_missing_digests(home, (*TOKENIZER_FILES, _SPEC))
    return tokenizer


def _repair_tokenizer(home: Path, write: Callable[[Path], None]) -> None:
    """Makes a damaged tokenizer again, where that gives the very files that were there."""
    try:
        check_digests(home / DIGESTS, (*TOKENIZER_FILES, _SPEC))
        return
    except DataError as error:
        damage = error
    try:
        with _written_aside(home, write) as made:
            if read_bytes(made / DIGESTS) != read_bytes(home / DIGESTS):
                raise DataError("the same experiment now gives another tokenizer")
            _remove(home)
            _move(made, home)
    except DataError as error:
        raise DataError(
            f"{damage}, and it cannot be made again: {error}. Put a copy of the file back, or "
            "use another folder"
        ) from error
    _log.warning("%s; made again as it was", damage)


def _fingerprint(split: Split, tokenizer: Tokenizer) -> str:
    parts = [_FORMAT, split.source.fingerprint(), split.fraction, split.seed]
    text = json.dumps([*parts, tokenizer.fingerprint()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _publish(home: Path, write: Callable[[Path], None]) -> None:
    """Fills a folder elsewhere and moves it into place, unless another process came first."""
    with _written_aside(home, write) as made:
        _move(made, home)


@contextlib.contextmanager
def _written_aside(home: Path, write: Callable[[Path], None]) -> Iterator[Path]:
    """Gives a folder beside another, filled; it goes again unless it is moved away."""
    temporary = home.with_name(f".{home.name}.{uuid.uuid4().hex}")
    try:
        try:
            temporary.mkdir(parents=True)
            write(temporary)
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{home} cannot be written, and nothing of it was: {reason}") from error
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(made: Path, home: Path) -> None:
    # Renaming onto a folder that holds files fails everywhere, which decides the race.
    with contextlib.suppress(OSError):
        made.rename(home)
    if not home.is_dir():
        raise DataError(f"could not move the finished {home.name} into {home.parent}")


def _remove(home: Path) -> None:
    """Takes a folder away; a link to one goes alone."""
    if home.is_symlink() or not home.is_dir():
        home.unlink(missing_ok=True)
    else:
        shutil.rmtree(home, ignore_errors=True)


def _write_missing_digests(home: Path, names: Iterable[str]) -> None:
    """Adds the digests that earlier versions did not write."""
    if not (home / DIGESTS).exists():
        with contextlib.suppress(OSError, DataError):  # a folder that can only be read
            write_digests(home / DIGESTS, names)


def _load(home: Path, tokenizer: Tokenizer) -> Corpus | None:
    """Maps a corpus into memory, or removes one that was damaged and returns None."""
    if not home.exists():
        return None
    try:
        corpus = read_corpus(home, tokenizer)
    except DataError as error:
        _log.warning("%s; tokenising again", error)
        _remove(home)
        return None
    _write_missing_digests(home, CORPUS_FILES)
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
