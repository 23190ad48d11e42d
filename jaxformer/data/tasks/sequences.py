"""One or two texts as one row: special tokens, token types, padding."""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.data.dataset import Batch
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import ConfigError, DataError

_log = logging.getLogger(__name__)


class SpecialTokens(NamedTuple):
    """The special tokens around texts a and b: first a last b last."""

    first: int
    """Before the first text: [CLS]."""
    last: int
    """After each text: [SEP]."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialTokens":
        """Returns a tokenizer's [CLS] and [SEP]; end-of-text if it has none."""
        return cls(_id_of(tokenizer, "cls"), _id_of(tokenizer, "sep"))


class TokenizedText(NamedTuple):
    """A row before padding; arrays are int32 [tokens]."""

    tokens: np.ndarray
    types: np.ndarray


def truncated_lengths(lengths: Sequence[int], space: int) -> tuple[int, ...]:
    """Returns how many tokens of one or two texts to keep, cutting the longer one first.

    Args:
        lengths: The tokens of each.
        space: The most tokens to keep.
    """
    if len(lengths) == 1:
        return (min(lengths[0], space),)
    first, second = lengths
    if first + second <= space:
        return first, second
    half = space // 2
    if second <= half:
        return space - second, second
    return (first, space - first) if first <= space - half else (space - half, half)


def add_special_tokens(
    texts: Sequence[np.ndarray], special: SpecialTokens, length: int
) -> TokenizedText:
    """Returns one or two texts with special tokens, cutting the longer one first to fit.

    Args:
        texts: int32 [tokens] each.
        special: The special tokens.
        length: The most tokens of the result.
    """
    kept = truncated_lengths([len(text) for text in texts], length - 1 - len(texts))
    parts = [np.append(text[:size], special.last) for text, size in zip(texts, kept, strict=True)]
    parts[0] = np.insert(parts[0], 0, special.first)
    types = [np.full(len(part), number) for number, part in enumerate(parts)]
    return TokenizedText(*(np.concatenate(side).astype(np.int32) for side in (parts, types)))


def encode_words(words: Iterable[str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the tokens int32 [tokens] of each different word, encoded on its own."""
    different = sorted(set(words))
    return dict(zip(different, tokenizer.encode_batch(different), strict=True))


def padded(values: np.ndarray, length: int, fill: float) -> np.ndarray:
    """Returns values [tokens] followed by `fill` up to `length`, of the same dtype."""
    # Several times as fast as `np.pad`.
    row = np.full(length, fill, values.dtype)
    row[: len(values)] = values
    return row


def model_inputs(text: TokenizedText, length: int, pad_id: int) -> Batch:
    """Returns the inputs of an encoder: "inputs", "segments" and "token_types", int32 [length]."""
    return {
        "inputs": padded(text.tokens, length, pad_id),
        "segments": padded(np.ones_like(text.tokens), length, 0),
        "token_types": padded(text.types, length, 0),
    }


def check_fit(
    sizes: Sequence[int], places: Sequence[str], limit: int, field: str, truncate: bool
) -> None:
    """Reports rows that are too long, which is an error unless they may be cut.

    Args:
        sizes: The tokens of each row, special tokens included.
        places: The place of each row ("file:line"), for the message.
        limit: The most tokens that a row may have.
        field: What the limit is called: "data.sequence_length".
        truncate: Whether longer rows are to be cut.

    Raises:
        DataError: A row is too long and may not be cut; names it, its length and what to do.
    """
    long = [number for number, size in enumerate(sizes) if size > limit]
    if not long:
        return
    count = f"{len(long):,} of {len(sizes):,} rows"
    if truncate:
        _log.warning("%s are longer than %s = %d and were cut", count, field, limit)
        return
    longest = max(sizes)
    raise DataError(
        f"{places[long[0]]}: {sizes[long[0]]} tokens, more than {field} = {limit}, and so have "
        f"{count}: set {field} to {longest}, which the model's positions must reach, or cut them "
        "with --data.truncate"
    )


def _id_of(tokenizer: Tokenizer, role: Role) -> int:
    try:
        return int(tokenizer.special_ids(role)[0])
    except ConfigError:
        return tokenizer.end_of_text_id
