"""The files of a corpus: writes, memory-maps and checks them.

A corpus of one shard is a folder with `CORPUS_FILES`; one of several has a folder of that kind for
each, and a record of their number.
"""

import json
import os
import resource
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from jaxformer.data.text.packing import Tokens, TokenShards, TokenStream
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import DataError
from jaxformer.io.files import DIGESTS, check_digests, ordinary_file, read_json, write_digests

SIZES = "corpus.json"
_SIDES = ("train", "validation")


def _tokens(side: str) -> str:
    return f"{side}.tokens.npy"


def _offsets(side: str) -> str:
    return f"{side}.offsets.npy"


CORPUS_FILES = (SIZES, *map(_tokens, _SIDES), *map(_offsets, _SIDES))
"""The files in the folder of a corpus."""


@dataclass(frozen=True)
class Corpus:
    """A tokenizer, and the two sides of the documents as its tokens."""

    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens


def shard_name(number: int) -> str:
    """Returns the name of the folder of a shard."""
    return f"shard-{number:05d}"


def is_sharded(home: Path) -> bool:
    """Whether the corpus in a folder has several shards."""
    return any(home.glob("shard-*"))


def folders_of_shards(run_dir: Path) -> set[str]:
    """Returns the names of the folders of sharded corpora in a run's folder, finished or not."""
    found = chain(run_dir.glob("*/shard-*"), run_dir.glob("*/*/shard-*"))
    return {path.relative_to(run_dir).parts[0] for path in found}


def read_corpus(home: Path, tokenizer: Tokenizer) -> Corpus:
    """Maps the corpus in a folder into memory."""
    if not is_sharded(home):
        return read_shard(home, tokenizer)
    check_digests(home / DIGESTS, [SIZES])
    names = [shard_name(number) for number in range(read_json(home / SIZES)["shards"])]
    shards = read_shards([home / name for name in names], tokenizer)
    for shard in shards:
        if isinstance(shard, DataError):
            raise shard
    train, validation = (
        TokenShards(tuple(getattr(shard, side) for shard in shards)) for side in _SIDES
    )
    return Corpus(tokenizer, train, validation)


def read_shards(homes: Sequence[Path], tokenizer: Tokenizer) -> list[Corpus | DataError]:
    """Maps shards into memory, several at a time because checking them reads every byte."""

    def read(home: Path) -> Corpus | DataError:
        try:
            return read_shard(home, tokenizer)
        except DataError as error:
            return error

    # A mapped file stays open, and the shell's limit is often 1024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a limit that it does not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(read, homes))


def read_shard(home: Path, tokenizer: Tokenizer) -> Corpus:
    """Maps a corpus of one shard, or one of its shards, into memory."""
    recorded = (home / DIGESTS).exists()
    if recorded:
        check_digests(home / DIGESTS, CORPUS_FILES)
    sizes = read_json(home / SIZES)
    streams = [_stream(home, side, sizes.get(side)) for side in _SIDES]
    if not recorded:
        for side, stream in zip(_SIDES, streams, strict=True):
            _check_tokens(home / _tokens(side), stream, tokenizer)
    return Corpus(tokenizer, *streams)


def write_record(home: Path, num_shards: int) -> None:
    """Writes the record that makes a folder of shards a corpus, with their total sizes."""
    sizes = [read_json(home / shard_name(number) / SIZES) for number in range(num_shards)]
    total = {
        side: {key: sum(shard[side][key] for shard in sizes) for key in sizes[0][side]}
        for side in _SIDES
    }
    _write_sizes(home, {"shards": num_shards, **total}, [SIZES])


def _write_sizes(home: Path, sizes: dict, files: Iterable[str]) -> None:
    (home / SIZES).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
    write_digests(home / DIGESTS, files)


def _stream(home: Path, side: str, sizes: object) -> TokenStream:
    tokens = _array(home / _tokens(side), "uint16", "uint32")
    offsets = _array(home / _offsets(side), "int64")
    held = {"documents": len(offsets) - 1, "tokens": len(tokens) - 1}
    if not isinstance(sizes, dict) or sizes | held != sizes or type(sizes.get("bytes")) is not int:
        raise DataError(f"{home / SIZES}: does not fit {_tokens(side)} and {_offsets(side)}")
    ends_fit = offsets[0] == 0 and offsets[-1] == len(tokens) - 1
    if not ends_fit or (np.diff(offsets) < 1).any():
        raise DataError(f"{home / _offsets(side)}: not a list of the offsets of documents")
    # A small array in memory is faster than a mapped one, and keeps no file open.
    offsets = offsets if offsets.nbytes >> 20 else np.array(offsets)
    return TokenStream(tokens, offsets, sizes["bytes"])


def _check_tokens(path: Path, stream: TokenStream, tokenizer: Tokenizer) -> None:
    """Raises DataError if tokens without digests cannot come from the tokenizer."""
    tokens, end = stream.tokens, tokenizer.end_of_text_id
    if (largest := int(tokens.max())) >= tokenizer.vocab_size:
        raise DataError(
            f"{path}: token {largest} is outside of the vocabulary of {tokenizer.vocab_size}"
        )
    # A file with only end-of-text is considered lost.
    empty = stream.num_documents and (tokens == end).all()
    if empty or (tokens[stream.offsets] != end).any():
        raise DataError(f"{path}: not documents between end-of-text tokens")


def _array(path: Path, *dtypes: str) -> np.ndarray:
    """Memory-maps a list of integers."""
    try:
        array = np.load(ordinary_file(path), mmap_mode="r", allow_pickle=False)
    except DataError:
        raise
    except Exception as error:  # NumPy's parser of headers raises many errors
        raise DataError(f"{path}: not an array that can be read: {error}") from error
    if getattr(array, "ndim", 0) != 1 or array.dtype not in dtypes or not array.size:
        raise DataError(f"{path}: not a list of {' or '.join(dtypes)}")
    return array


class ShardWriter:
    """Writes a shard to an empty folder while it is tokenised."""

    def __init__(self, folder: Path, tokenizer: Tokenizer):
        self._folder = folder
        self._sides = {side: _StreamWriter(folder, side, tokenizer) for side in _SIDES}

    def __enter__(self):
        return self

    def append(
        self, tokens: np.ndarray, num_bytes: int, is_validation: bool, ends_document: bool
    ) -> None:
        """Adds the tokens of a document, or of a part of one."""
        side = "validation" if is_validation else "train"
        self._sides[side].append(tokens, num_bytes, ends_document)

    def __exit__(self, *exception) -> None:
        sizes = {side: writer.close() for side, writer in self._sides.items()}
        if exception[0] is None:
            _write_sizes(self._folder, sizes, CORPUS_FILES)


class _StreamWriter:
    """Writes one side to disk while it is tokenised, in the layout of `TokenStream`."""

    def __init__(self, folder: Path, side: str, tokenizer: Tokenizer):
        self._folder, self._side = folder, side
        self._separator = np.array([tokenizer.end_of_text_id])
        self._dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        self._offsets = array("q", [0])
        self._size = 0
        self._num_bytes = 0
        self._file = (folder / _tokens(side)).open("wb")
        self._header(0)
        self._write(self._separator)

    def append(self, tokens: np.ndarray, num_bytes: int, ends: bool) -> None:
        self._write(tokens)
        self._size += len(tokens)
        self._num_bytes += num_bytes
        if ends:
            self._write(self._separator)
            self._size += 1
            self._offsets.append(self._size)

    def close(self) -> dict[str, int]:
        """Completes the files and returns their entry in `corpus.json`."""
        # The size is known only now; NumPy leaves room in a header for a larger one.
        self._file.seek(0)
        self._header(self._size + 1)
        self._file.close()
        np.save(self._folder / _offsets(self._side), np.array(self._offsets, np.int64))
        documents = len(self._offsets) - 1
        return {"documents": documents, "tokens": self._size, "bytes": self._num_bytes}

    def _write(self, tokens: np.ndarray) -> None:
        self._file.write(tokens.astype(self._dtype).tobytes())

    def _header(self, size: int) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(self._file, header)
