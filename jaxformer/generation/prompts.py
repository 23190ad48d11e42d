"""Token ids of what a model is given to read, with the special tokens it saw in training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from jaxformer.errors import DataError, check_argument
from jaxformer.generation.batch import token_ids
from jaxformer.generation.tokenizer_files import SETTINGS, read_json_object, read_tokenizer
from jaxformer.model_files import TOKENIZER


@dataclass(frozen=True)
class PromptEncoder:
    """Turns prompts into ids, as the model's training did."""

    tokenizer: Tokenizer

    end_of_text: int | None
    """The id between the documents of one of our runs; None: the tokenizer adds special tokens of
    its own (its post-processor), as it does in transformers."""

    def plain(self, text: str) -> list[int]:
        """Returns the ids of a text to be continued, [tokens].

        One of our models reads it as the start of a document, and the name of a special token in it
        as ordinary text. Of an empty text, a tokenizer that adds nothing makes nothing.
        """
        if self.end_of_text is None:
            return self._encode(text, add_special_tokens=True)
        return [self.end_of_text, *self._ordinary(text)]

    def source(self, text: str) -> list[int]:
        """Returns the ids of what an encoder reads, [tokens]; one of our models' ends with its end.

        Names of special tokens are read as in `plain`.
        """
        if self.end_of_text is None:
            return self._encode(text, add_special_tokens=True)
        return [*self._ordinary(text), self.end_of_text]

    def rendered(self, text: str) -> list[int]:
        """Returns the ids of what a chat template wrote, [tokens]: it has all special tokens."""
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self.tokenizer.encode_special_tokens = False
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def _ordinary(self, text: str) -> list[int]:
        self.tokenizer.encode_special_tokens = True
        return self.tokenizer.encode(text, add_special_tokens=False).ids


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


def read_prompt_encoder(folder: str | Path) -> PromptEncoder:
    """Reads the tokenizer of a model.

    Args:
        folder: Holds tokenizer.json, and tokenizer_config.json, which says whether it is of one of
            our runs.

    Raises:
        DataError: There is no tokenizer.json, or one of the files cannot be read.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise DataError(
            f"{Path(folder, TOKENIZER)} does not exist; other tokenizer files become one with "
            "transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    # Some are saved as they were last used, and would cut a long prompt or fill up a short one.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = read_json_object(Path(folder, SETTINGS))
    if "jaxformer_kind" not in settings:
        return PromptEncoder(tokenizer, None)
    name = settings.get("eos_token")
    id_ = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if id_ is None:
        raise DataError(
            f"{Path(folder, SETTINGS)}: eos_token = {name!r}: must be a token of "
            "tokenizer.json, the one between documents"
        )
    return PromptEncoder(tokenizer, id_)
