"""Prompts of different lengths as the rows of one batch."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.memory import available_bytes, num_bytes


class Batch(NamedTuple):
    """Prompts from the left, whatever side their padding was on."""

    tokens: np.ndarray
    """int32 `[B, T]`, 0 beyond a row's length."""
    lengths: np.ndarray
    """int32 `[B]`, at least 1."""


def batch_of(ids: np.ndarray, mask: np.ndarray | None, vocab_size: int) -> Batch:
    """Leaves out the padding of prompts.

    Args:
        ids: int `[B, T]`.
        mask: `[B, T]`, 1 at real tokens and 0 at padding, wherever it is; None: there is none.
        vocab_size: V.

    Raises:
        DataError: A prompt is empty, a token is not in the vocabulary, or the shapes do not fit.
    """
    real = real_tokens(ids, mask, vocab_size)
    return batch_of_rows([row[kept] for row, kept in zip(np.asarray(ids), real, strict=True)])


def real_tokens(ids: np.ndarray, mask: np.ndarray | None, vocab_size: int) -> np.ndarray:
    """Bool `[B, T]`: which ids are not padding; arguments and errors are those of `batch_of`."""
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


def token_ids(name: str, value: Any) -> np.ndarray:
    """Tokens that a user gives, int `[T]`.

    Raises:
        DataError: They are no list of integers; names them.
    """
    try:
        tokens = np.asarray(value)
    except ValueError:  # lists of several lengths
        tokens = np.asarray(value, object)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise DataError(f"{name} must be a list of integers, got {tokens.dtype} {[*tokens.shape]}")
    return tokens


def batch_of_rows(rows: Sequence[Sequence[int]]) -> Batch:
    """Rows of tokens as one batch."""
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return Batch(tokens, lengths)


def are_real(lengths: np.ndarray, width: int) -> np.ndarray:
    """Bool `[B, width]`: the places of rows of so many tokens `[B]` that are not padding."""
    return np.arange(width)[None, :] < lengths[:, None]


def copies(arrays: Any, count: int) -> Any:
    """A tree of arrays `[B count, ...]`: each row of `[B, ...]` several times in a row.

    Raises:
        ConfigError: They would be larger than all memory.
    """
    needed, available = count * num_bytes(arrays), available_bytes(jax.local_devices())
    if needed > available:
        raise ConfigError(
            f"num_return_sequences = {count}: the prompts alone need {needed / 1e9:,.1f} GB of "
            f"memory, and there are {available / 1e9:,.1f} GB: ask for fewer"
        )
    return jax.tree.map(partial(np.repeat, repeats=count, axis=0), arrays)


def bucket(size: int, least: int) -> int:
    """The next power of two: programs are compiled for few sizes."""
    return max(least, 1 << (size - 1).bit_length())
