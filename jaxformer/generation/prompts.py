"""Prompts: from texts or token ids of any lengths to the rows of one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import DataError, check_argument


class Prompts(NamedTuple):
    """A batch of prompts, each from the left of its row."""

    tokens: np.ndarray
    """int32 `[B, T]`, 0 beyond a row's length."""
    lengths: np.ndarray
    """int32 `[B]`, at least 1."""
    source: np.ndarray | None = None
    """int32 `[B, R]`: the tokens that an encoder has read, -1 at padding; None: it reads none."""

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> Prompts:
        """Pads rows of tokens on the right."""
        lengths = np.array([len(row) for row in rows], np.int32)
        tokens = np.zeros((len(rows), lengths.max()), np.int32)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = ids
        return cls(tokens, lengths)

    @classmethod
    def of_ids(
        cls,
        ids: np.ndarray,
        mask: np.ndarray | None,
        vocab_size: int,
        source: np.ndarray | None = None,
    ) -> Prompts:
        """Moves the padding of prompts to the right.

        Args:
            ids: int `[B, T]`.
            mask: `[B, T]`, 1 at real tokens and 0 at padding, on either side; None: no padding.
            vocab_size: V.
            source: The tokens that an encoder has read.

        Returns:
            The prompts.

        Raises:
            DataError: A prompt is empty, a token is not in the vocabulary, or the shapes do not
                fit.
        """
        real = real_tokens(ids, mask, vocab_size)
        rows = [row[kept] for row, kept in zip(np.asarray(ids), real, strict=True)]
        return cls.of_rows(rows)._replace(source=source)


def real_tokens(ids: np.ndarray, mask: np.ndarray | None, vocab_size: int) -> np.ndarray:
    """Bool `[B, T]`: which ids are not padding; arguments and errors are those of `of_ids`."""
    ids = np.asarray(ids)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise DataError(
            f"input_ids: expected integers [rows, tokens], got {ids.dtype} {list(ids.shape)}"
        )
    real = np.ones(ids.shape, bool) if mask is None else np.asarray(mask) > 0
    if real.shape != ids.shape:
        raise DataError(
            f"attention_mask: expected the shape of input_ids, {list(ids.shape)}, got "
            f"{list(real.shape)}"
        )
    lengths = real.sum(axis=1, dtype=np.int32)
    if not ids.size or not lengths.all():
        empty = int(np.argmin(lengths)) if ids.size else 0
        raise DataError(
            f"input_ids: the prompt of row {empty} is empty: it needs one token at least, such as "
            "the one that starts a text"
        )
    if (unknown := real & ((ids < 0) | (ids >= vocab_size))).any():
        row, place = np.argwhere(unknown)[0]
        raise DataError(
            f"input_ids: token {ids[row, place]} in row {row} is not in the vocabulary, expected 0 "
            f"to {vocab_size - 1}"
        )
    return real


def texts_of(inputs: Any) -> list[str] | None:
    """A text or several texts as a list; None if the inputs are not texts."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    is_list = isinstance(texts, Sequence | np.ndarray) and len(texts) > 0
    return list(texts) if is_list and all(isinstance(text, str) for text in texts) else None


def rows_of(inputs: Any) -> list[np.ndarray]:
    """The token ids of one prompt or of several prompts as a list of int `[T]`.

    Args:
        inputs: A list of token ids, a list of such lists, or an array `[T]` or `[B, T]`.

    Returns:
        One array for each prompt.

    Raises:
        ArgumentError: The inputs are of another type.
        DataError: A prompt holds something other than integers.
    """
    is_rows = hasattr(inputs, "ndim") and inputs.ndim in (1, 2) and len(inputs) > 0
    if not hasattr(inputs, "ndim"):
        is_rows = isinstance(inputs, Sequence) and not isinstance(inputs, bytes) and len(inputs) > 0
    expected = "a text, token ids, a list of texts or of token ids, or a dictionary of arrays"
    check_argument("inputs", inputs, is_rows, expected)
    rows = [inputs] if np.ndim(inputs[0]) == 0 else inputs
    return [token_ids(f"inputs: prompt {number}", row) for number, row in enumerate(rows)]


def token_ids(name: str, value: Any) -> np.ndarray:
    """Token ids that a user gives, as int `[T]`.

    Args:
        name: What they are, for the message.
        value: A list or an array of integers.

    Returns:
        The ids.

    Raises:
        DataError: The value is not a list of integers.
    """
    try:
        tokens = np.asarray(value)
    except ValueError:  # lists of different lengths
        tokens = np.asarray(value, object)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise DataError(f"{name} must be a list of integers, got {tokens.dtype} {[*tokens.shape]}")
    return tokens


def padded(rows: Sequence[Sequence[int]], padding: int, left: bool) -> Mapping[str, np.ndarray]:
    """Pads rows of tokens, as "input_ids" and "attention_mask" int64 `[B, T]`.

    Args:
        rows: The tokens of each row.
        padding: The token to pad with.
        left: Whether to pad on the left.

    Returns:
        The two arrays.

    Raises:
        DataError: A row is empty.
    """
    for number, row in enumerate(rows):
        if not len(row):
            raise DataError(f"prompt {number} is empty: it needs one token at least")
    width = max(map(len, rows))
    ids = np.full((len(rows), width), padding, np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[number, place], mask[number, place] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def are_real(lengths: np.ndarray, width: int) -> np.ndarray:
    """Bool `[B, width]`: the tokens of rows with these lengths `[B]` that are not padding."""
    return np.arange(width)[None, :] < lengths[:, None]


def bucket(size: int, least: int) -> int:
    """The next power of two, at least `least`, so that programs are compiled for few sizes."""
    return max(least, 1 << (size - 1).bit_length())
