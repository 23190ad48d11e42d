"""The tokens nearest to a word, by the cosine of their input embeddings."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.checks import check_argument
from jaxformer.errors import ArgumentError, DataError
from jaxformer.pretrained.auto import open_checkpoint
from jaxformer.pretrained.inspection.tokens import TextTokenizer, Token, open_tokenizer
from jaxformer.pretrained.model import Pretrained

_TABLE = "embedding.table"


class Neighbour(NamedTuple):
    """A neighbour of a token."""

    piece: str
    """The token as stored in the tokenizer."""
    text: str
    """Its text."""
    id: int
    """The row in the embedding table."""
    cosine: float
    """The cosine of the embeddings, from -1 to 1."""


class Neighbours(NamedTuple):
    """A token and its nearest neighbours."""

    token: Token
    """The token of the word."""
    nearest: list[Neighbour]
    """The neighbours, nearest first, without the token itself."""


def neighbours(
    model: str | Path | Pretrained,
    word: str,
    *,
    k: int = 10,
    step: int | None = None,
    best: bool = False,
) -> Neighbours:
    """Finds the tokens whose input embeddings have the largest cosine to that of a word.

        cos(a, b) = <E_a, E_b> / (|E_a| |E_b|)

    The word must be a single token, after a space if the tokenizer distinguishes the two, or else
    at the start of a text. From a folder, only the embedding table is read.
    """
    check_argument("k", k, isinstance(k, int) and k >= 1, "an integer of at least 1")
    tokenizer = open_tokenizer(model)
    token = _single(tokenizer, word)
    table = _table(model, step, best)
    rows, cosines = nearest_rows(table, token.id, k)
    names = tokenizer.rust.id_to_token
    decode = tokenizer.rust.decode
    found = [
        Neighbour(
            names(row) or f"(unused id {row})",
            decode([row], skip_special_tokens=False),
            row,
            float(cosine),
        )
        for row, cosine in zip(rows.tolist(), cosines, strict=True)
    ]
    return Neighbours(token, found)


def nearest_rows(table: np.ndarray, row: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the k rows of a table `[V, E]` with the largest cosine to another of its rows.

    Returns:
        Their indices int `[k]` and cosines float32 `[k]`, largest first. The cosine to a row of
        zeros is 0.
    """
    table = np.asarray(table, np.float32)
    lengths = np.linalg.norm(table, axis=1)
    cosines = table @ table[row] / np.maximum(lengths * lengths[row], np.finfo(np.float32).tiny)
    cosines[row] = -np.inf
    order = np.argsort(-cosines, kind="stable")[: min(k, len(table) - 1)]
    return order, np.clip(cosines[order], -1, 1)


def _single(tokenizer: TextTokenizer, word: str) -> Token:
    """Returns the token of a word that is a single token."""
    check_argument("word", word, isinstance(word, str) and bool(word.strip()), "a word")
    stripped = word.strip()
    splits = [_pieces(tokenizer, text) for text in (f" {stripped}", stripped)]
    for tokens in splits:
        if len(tokens) == 1 and not (tokens[0].special and tokens[0].piece != stripped):
            return tokens[0]
    if (id_ := tokenizer.id_of(stripped)) is not None:
        return Token(stripped, id_, None, None, False)
    fewest = min(splits, key=len)
    pieces = " ".join(token.piece for token in fewest) or "nothing"
    if len(fewest) <= 1:
        raise ArgumentError(
            f"word = {word!r}: must be in the vocabulary; the tokenizer reads it as {pieces}"
        )
    longest = max(fewest, key=lambda token: len(token.piece)).piece
    raise ArgumentError(
        f"word = {word!r}: must be one token, and is {len(fewest)}: {pieces}; give one of these "
        f"pieces as it stands here, such as {longest!r}, or another word"
    )


def _pieces(tokenizer: TextTokenizer, text: str) -> list[Token]:
    """Returns the tokens of a text, without special tokens around it or a separate space token."""
    tokens = [token for token in tokenizer.tokens(text) if token.start is not None]
    return [token for token in tokens if token.piece not in ("\u2581", "\u0120")]


def _table(model: str | Path | Pretrained, step: int | None, best: bool) -> np.ndarray:
    if isinstance(model, Pretrained):
        shapes = model.abstract_model.shapes
        read = model.parameters.__getitem__
    else:
        opened = open_checkpoint(model, "folder", step=step, best=best)
        shapes = opened.shapes

        def read(name: str) -> np.ndarray:
            return opened.read([name])[name]

    if _TABLE not in shapes:
        raise DataError(f"{model}: the model has no table of token embeddings")
    return np.asarray(read(_TABLE), np.float32)
