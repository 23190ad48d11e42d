"""What a user gives a model to read: texts or token ids, of one prompt or of several."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.errors import DataError, check_argument
from jaxformer.generation.prompts import token_ids


def texts_of(inputs: Any) -> list[str] | None:
    """A text, or several, as a list; None: these are no texts."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    is_list = isinstance(texts, Sequence | np.ndarray) and len(texts) > 0
    return list(texts) if is_list and all(isinstance(text, str) for text in texts) else None


def rows_of(inputs: Any) -> list[np.ndarray]:
    """The tokens of one prompt, or of several of any lengths, as a list of int `[T]`.

    Raises:
        ArgumentError: They are something else.
        DataError: A prompt has something else than integers.
    """
    is_rows = hasattr(inputs, "ndim") and inputs.ndim in (1, 2) and len(inputs) > 0
    if not hasattr(inputs, "ndim"):
        is_rows = isinstance(inputs, Sequence) and not isinstance(inputs, bytes) and len(inputs) > 0
    expected = "a text, token ids, a list of texts or of token ids, or a dictionary of arrays"
    check_argument("inputs", inputs, is_rows, expected)
    rows = [inputs] if np.ndim(inputs[0]) == 0 else inputs
    return [token_ids(f"inputs: prompt {number}", row) for number, row in enumerate(rows)]


def padded(rows: Sequence[Sequence[int]], padding: int, left: bool) -> Mapping[str, np.ndarray]:
    """Rows of tokens as "input_ids" and "attention_mask" int64 `[B, T]`.

    Args:
        rows: Their tokens.
        padding: What fills them up.
        left: On which side.

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
