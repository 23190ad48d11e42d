"""The corpus: documents are tokenised once into arrays on disk, which later runs memory-map."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields, check_types, optional
from jaxformer.data.split import Split
from jaxformer.data.text.corpus_files import (
    CORPUS_FILES,
    Corpus,
    ShardWriter,
    is_sharded,
    read_corpus,
)
from jaxformer.data.text.packing import TokenStream
from jaxformer.data.text.remote_corpus import share_corpus
from jaxformer.data.text.sources import TextSource, digest_of
from jaxformer.data.text.staging import (
    Staging,
    TokenisingProgress,
    remove_others,
    set_aside,
    staging,
)
from jaxformer.data.tokenizers.pool import TokenizerPool, num_cores
from jaxformer.data.tokenizers.specs import Tokenizer, load_tokenizer
from jaxformer.data.tokenizers.training import cut
from jaxformer.errors import DataError
from jaxformer.io.files import DIGESTS, add_digests, move_into_place, temporary_folder
from jaxformer.io.mirror import store_path_of
from jaxformer.io.paths import any_path, is_remote

_FORMAT = 1
_BATCH_CHARACTERS = 1 << 21
# Starting the processes takes as long as tokenising a few megabytes.
_BATCHES_WITHOUT_PROCESSES = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusOptions:
    """How documents are tokenised to disk, and where the tokens are kept."""

    shard_bytes: int = 1 << 28
    """Bytes of text after which another shard begins. An interrupted build continues after its last
    complete shard; documents are packed within a shard.
    """

    num_proc: int | None = None
    """The number of processes that tokenise more than a few megabytes; None: one per CPU core."""

    cache_dir: str | None = None
    """A folder in which runs share their tokens, which may be gs:// or s3://; None keeps them in
    the run's folder."""

    def __post_init__(self):
        check_types(self, "data.corpus")
        check_fields(self, "data.corpus", shard_bytes=at_least(1), num_proc=optional(at_least(1)))
        if self.cache_dir is not None:
            any_path(self.cache_dir, "data.corpus.cache_dir")


def training_texts(splits: Iterable[Split]) -> Iterator[str]:
    """Yields the texts on which a tokenizer is trained."""
    entries = chain.from_iterable(splits)
    return (document.text for document, is_validation in entries if not is_validation)


def load_or_tokenise(
    split: Split,
    tokenizer: Tokenizer,
    folder: str | os.PathLike,
    options: CorpusOptions = CorpusOptions(),
    begin: tuple[int, ...] = (),
) -> Corpus:
    """Returns the tokens of documents, which are tokenised unless the tokens already exist.

    `folder/corpus-FINGERPRINT` holds the tokens; the fingerprint covers the documents, the split,
    the tokenizer and `begin`, so that a stale corpus is never used. The folder appears complete or
    not at all. If several processes build at once, one does the work and the others wait for it. If
    it is killed, the next one keeps the complete shards. The files are the same for any number of
    processes and interruptions. The store of a remote run has them too, for other machines.
    """
    own = _own_folder(Path(folder), split, tokenizer, options, begin)
    run = store_path_of(own.parent) or own.parent
    kept = store_path_of(own)
    cache = options.cache_dir
    if cache is not None and is_remote(cache):
        kept = any_path(cache, "data.corpus.cache_dir") / own.name
        cache = None
    shared = cache is not None and (own.is_symlink() or not own.exists())
    home = Path(cache).expanduser().absolute() / own.name if shared else own
    # A corpus of earlier versions is a single shard, so that its rows keep their order.
    is_whole = home.exists() and not is_sharded(home)
    corpus = _load(home, tokenizer)
    if corpus is None:
        others = [other for other in run.glob("corpus-*") if other.name != own.name]
        if others:
            _log.warning(
                "The documents, their split or the tokenizer differ from those of the tokens in "
                "%s: tokenising again",
                run,
            )
        with staging(home, tokenizer, kept) as shards:
            if shards is not None:
                shard_bytes = sys.maxsize if is_whole else options.shard_bytes
                _tokenise(split, tokenizer, shards, shard_bytes, options.num_proc, begin)
        corpus = read_corpus(home, tokenizer)
        if others and not any(_same_tokens(home, other) for other in others):
            _log.warning("The order of the data changed with the tokens in %s", run)
    if shared:
        _link(own, home)
    else:
        remove_others(own)
    if kept is not None:
        share_corpus(kept, home)
    return corpus


def load_corpus(
    folder: str | os.PathLike, run_dir: str | os.PathLike | None = None
) -> Corpus | None:
    """Returns the corpus in a folder; None if there is none, or more than one."""
    homes = list(Path(folder).glob("corpus-*"))
    if len(homes) != 1:
        return None
    return _load(homes[0], load_tokenizer(Path(run_dir or folder, "tokenizer")))


def tokenised(source: TextSource, tokenizer: Tokenizer, begin: tuple[int, ...] = ()) -> TokenStream:
    """Tokenises all documents of a small source in memory."""
    texts = [document.text for document in source.documents() if document.text]
    if not texts:
        raise DataError(f"{source} holds no text")
    separator = np.array([tokenizer.end_of_text_id], np.int32)
    rows = [_after(begin, row) for row in tokenizer.encode_batch(texts)]
    return TokenStream(
        tokens=np.concatenate([separator, *(part for row in rows for part in (row, separator))]),
        offsets=np.cumsum([0, *(len(row) + 1 for row in rows)]),
        num_bytes=sum(len(text.encode()) for text in texts),
    )


def _after(begin: tuple[int, ...], tokens: np.ndarray) -> np.ndarray:
    return np.concatenate([np.array(begin, tokens.dtype), tokens]) if begin else tokens


def _own_folder(
    run: Path, split: Split, tokenizer: Tokenizer, options: CorpusOptions, begin: tuple[int, ...]
) -> Path:
    """The folder of a run's tokens; a folder of an earlier version keeps its name."""

    def folder(documents: str) -> Path:
        parts = [_FORMAT, documents, split.fraction, split.seed, tokenizer.fingerprint()]
        if options.shard_bytes != CorpusOptions.shard_bytes:
            parts.append(options.shard_bytes)
        if begin:
            parts.append({"begin": begin})
        return run / f"corpus-{digest_of(parts)[:16]}"

    former = folder(split.source.former_fingerprint())
    kept = store_path_of(former)
    if former.exists() or (kept is not None and kept.exists()):
        return former
    return folder(split.source.fingerprint())


def _same_tokens(home: Path, other: Path) -> bool:
    """Whether two corpora have the same files, by their digests."""
    one, two = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob(DIGESTS)}
        for folder in (home, other)
    )
    return bool(one) and one == two


def _load(home: Path, tokenizer: Tokenizer) -> Corpus | None:
    """Maps a corpus into memory; sets a damaged one aside and returns None."""
    if not home.exists():
        return None
    try:
        corpus = read_corpus(home, tokenizer)
    except DataError as error:
        _log.warning("%s; tokenising again", error)
        set_aside(home)
        return None
    if not is_sharded(home):
        add_digests(home / DIGESTS, CORPUS_FILES)
    return corpus


def _link(own: Path, home: Path) -> None:
    """Links the folder of a run to the tokens that it shares with other runs."""
    if own.is_symlink() and own.resolve() == home.resolve():
        return
    own.parent.mkdir(parents=True, exist_ok=True)
    own.unlink(missing_ok=True)
    with suppress(FileExistsError):  # another process was faster
        own.symlink_to(home)


class _Piece(NamedTuple):
    """A document, or a part of a document that is too long to tokenise at once."""

    shard: int
    text: str
    num_bytes: int
    is_validation: bool
    begins_document: bool
    ends_document: bool


def _tokenise(
    split: Split,
    tokenizer: Tokenizer,
    shards: Staging,
    shard_bytes: int,
    num_proc: int | None,
    begin: tuple[int, ...],
) -> None:
    """Writes the missing shards, and combines all shards into the corpus."""
    with TokenisingProgress(split.source.num_bytes()) as progress:
        pieces = _unfinished(_pieces(split, shard_bytes), shards, progress)
        encoded = _encoded(_batches(pieces), tokenizer, num_proc or num_cores())
        for number, batches in groupby(encoded, key=lambda item: item[0][0].shard):
            folder = shards.add(number)
            with temporary_folder(folder) as temporary:
                with ShardWriter(temporary, tokenizer) as writer:
                    for batch, ids in batches:
                        for piece, tokens in zip(batch, ids, strict=True):
                            tokens = _after(begin, tokens) if piece.begins_document else tokens
                            writer.append(
                                tokens, piece.num_bytes, piece.is_validation, piece.ends_document
                            )
                        _count(batch, ids, progress)
                move_into_place(temporary, folder)
            shards.share(number)
        shards.complete()


def _pieces(split: Split, shard_bytes: int) -> Iterator[_Piece]:
    """Cuts long documents into pieces, and numbers the shards, which contain whole documents."""
    shard, size = 0, 0
    for document, is_validation in split:
        parts = cut(document.text)
        for number, part in enumerate(parts, start=1):
            num_bytes = len(part.encode())
            ends = (number == 1, number == len(parts))
            yield _Piece(shard, part, num_bytes, is_validation, *ends)
            size += num_bytes
        if size >= shard_bytes:
            shard, size = shard + 1, 0


def _unfinished(
    pieces: Iterable[_Piece], shards: Staging, progress: TokenisingProgress
) -> Iterator[_Piece]:
    """Leaves out the shards that an earlier process has finished."""
    for number, shard in groupby(pieces, key=lambda piece: piece.shard):
        if number not in shards.finished:
            yield from shard
            continue
        documents = num_bytes = 0
        for piece in shard:
            documents += piece.ends_document
            num_bytes += piece.num_bytes
        shards.check(number, documents, num_bytes)
        progress.skip(num_bytes)


def _count(
    batch: Sequence[_Piece], ids: Sequence[np.ndarray], progress: TokenisingProgress
) -> None:
    documents = sum(piece.ends_document for piece in batch)
    progress.add(documents, sum(map(len, ids)), sum(piece.num_bytes for piece in batch))


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Groups the pieces of a shard so that a tokenizer can keep its threads busy."""
    batch, size = [], 0
    for piece in pieces:
        if batch and (size >= _BATCH_CHARACTERS or piece.shard != batch[0].shard):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece.text)
    if batch:
        yield batch


def _encoded(
    batches: Iterator[list[_Piece]], tokenizer: Tokenizer, num_proc: int
) -> Iterator[tuple[list[_Piece], list[np.ndarray]]]:
    """Yields each batch with the tokens of its pieces; many batches are tokenised in parallel."""

    def texts(batch: list[_Piece]) -> list[str]:
        return [piece.text for piece in batch]

    first = list(islice(batches, _BATCHES_WITHOUT_PROCESSES))
    batches = chain(first, batches)
    if num_proc == 1 or len(first) < _BATCHES_WITHOUT_PROCESSES:
        yield from ((batch, tokenizer.encode_batch(texts(batch))) for batch in batches)
        return
    with TokenizerPool(tokenizer, num_proc) as pool:
        yield from pool.map(batches, texts)
