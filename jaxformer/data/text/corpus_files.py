"""The files of a corpus: streamed to disk, memory-mapped, and checked."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxformer.data.text.packing import TokenStream
from jaxformer.data.text.sources import Document
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import DataError
from jaxformer.io.digests import DIGESTS, check_digests
from jaxformer.io.files import ordinary_file
from jaxformer.io.json_files import read_json

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
    """A tokenizer and the two sides of the documents in its tokens."""

    tokenizer: Tokenizer
    train: TokenStream
    validation: TokenStream


def read_corpus(home: Path, tokenizer: Tokenizer) -> Corpus:
    """Maps the corpus in a folder into memory.

    Args:
        home: The folder.
        tokenizer: The tokenizer that made the tokens.

    Returns:
        Both sides of the corpus, memory-mapped.

    Raises:
        DataError: A file is missing, damaged or of another format; names it.
    """
    recorded = (home / DIGESTS).exists()
    if recorded:
        check_digests(home / DIGESTS, CORPUS_FILES)
    sizes = read_json(home / SIZES)
    corpus = Corpus(tokenizer, *(_stream(home, side, sizes.get(side)) for side in _SIDES))
    for side, stream in zip(_SIDES, (corpus.train, corpus.validation), strict=True):
        _check_tokens(home / _tokens(side), stream, tokenizer, recorded)
    return corpus


def _stream(home: Path, side: str, sizes: object) -> TokenStream:
    tokens = _array(home / _tokens(side), "uint16", "uint32")
    offsets = _array(home / _offsets(side), "int64")
    held = {"documents": len(offsets) - 1, "tokens": len(tokens) - 1}
    if not isinstance(sizes, dict) or sizes | held != sizes or type(sizes.get("bytes")) is not int:
        raise DataError(f"{home / SIZES}: does not fit {_tokens(side)} and {_offsets(side)}")
    ends_fit = offsets[0] == 0 and offsets[-1] == len(tokens) - 1
    if not ends_fit or (np.diff(offsets) < 1).any():
        raise DataError(f"{home / _offsets(side)}: no list of where documents begin")
    return TokenStream(tokens, np.array(offsets), sizes["bytes"])


def _check_tokens(path: Path, stream: TokenStream, tokenizer: Tokenizer, recorded: bool) -> None:
    """Raises DataError for tokens that the tokenizer cannot have made."""
    tokens, end = stream.tokens, tokenizer.end_of_text_id
    if (largest := int(tokens.max())) >= tokenizer.vocab_size:
        raise DataError(
            f"{path}: token {largest} is outside of the vocabulary of {tokenizer.vocab_size}"
        )
    # Without digests, a file of nothing but end-of-text is taken for a lost one.
    empty = not recorded and stream.num_documents and (tokens == end).all()
    if empty or (tokens[stream.offsets] != end).any():
        raise DataError(f"{path}: not documents between end-of-text tokens")


def _array(path: Path, *dtypes: str) -> np.ndarray:
    """Memory-maps a list of integers; refuses a file that is shorter than its header says."""
    try:
        array = np.load(ordinary_file(path), mmap_mode="r", allow_pickle=False)
    except DataError:
        raise
    except Exception as error:  # NumPy's parser of headers raises many
        raise DataError(f"{path}: no array that can be read: {error}") from error
    if getattr(array, "ndim", 0) != 1 or array.dtype not in dtypes or not array.size:
        raise DataError(f"{path}: no list of {' or '.join(dtypes)}")
    return array


class StreamWriter:
    """Writes one side to disk as it is tokenised, in the layout of `TokenStream`."""

    def __init__(self, folder: Path, side: str, tokenizer: Tokenizer):
        self._folder, self._side = folder, side
        self._separator = np.array([tokenizer.end_of_text_id])
        self._dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
        self._offsets, self._num_bytes = [0], 0

    def __enter__(self):
        self._file = open(self._folder / _tokens(self._side), "wb")
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
        """Returns the number of documents, tokens and bytes."""
        documents = len(self._offsets) - 1
        return {"documents": documents, "tokens": self._offsets[-1], "bytes": self._num_bytes}

    def __exit__(self, *exception) -> None:
        # The size is known only now. NumPy leaves room in a header for a larger one.
        self._file.seek(0)
        self._header(self._offsets[-1] + 1)
        self._file.close()
        np.save(self._folder / _offsets(self._side), np.array(self._offsets, np.int64))

    def _write(self, tokens: np.ndarray) -> None:
        self._file.write(tokens.astype(self._dtype).tobytes())

    def _header(self, size: int) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(self._file, header)
