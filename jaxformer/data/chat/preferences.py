"""Preferences: prompts, each with an answer that was chosen and one that was rejected."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.base import Data, Datasets
from jaxformer.data.chat.choice import template_file
from jaxformer.data.chat.encoder import EncodedChat
from jaxformer.data.chat.preference_rows import Preference, PreferenceRow
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.split import train_validation_split
from jaxformer.data.tasks.records import read_records
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import TokenizerSpec, TrainTokenizer
from jaxformer.errors import DataError


@dataclass(frozen=True)
class PreferenceData(Data):
    """Prompts, each with an answer that was chosen and one that was rejected: the data of DPO.

    A row of a batch is a pair, the chosen side first: "inputs" and "targets" int32 [2, T], and
    "weights" float32 [2, T], 1 where the target is a token of the answer. A text without messages
    is continued as it stands; of messages, the chat template makes the text.
    """

    sequences_per_row: ClassVar[int] = 2
    longest_row: ClassVar[int] = 1024

    train: str = "preferences.jsonl"
    """The training table: .jsonl, .parquet or another that holds messages or texts."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    columns: Preference = Preference()
    """The names of the columns."""

    template: str | None = None
    """The chat template: ChatML, Llama2, Llama3, Mistral or a .jinja file; None: the checkpoint's.
    """

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens."""

    sequence_length: int | None = None
    """Tokens of a prompt with an answer; None: as many as the checkpoint takes, 1024 at most."""

    too_long: Literal["error", "cut", "drop"] = "error"
    """What becomes of a pair with more tokens: an error, cut at the beginning of the prompt (and
    then at the end of the answer), or left out."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(2)))
        if self.template is not None:
            template_file(self.template)

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads, renders and tokenises the pairs; keeps the tokenizer and the template.

        Args:
            folder: The run's folder.

        Returns:
            Both sides of the data, with the tokenizer.

        Raises:
            DataError: A table cannot be read, or a row is no preference or too long; names the
                line.
        """
        train, validation = self._split()
        texts = (
            message["content"]
            for row in train
            for message in row.chosen.messages
            if isinstance(message.get("content"), str)
        )
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, texts)
        return Datasets(
            self.dataset(self._examples(train, tokenizer, folder), "train"),
            self.dataset(self._examples(validation, tokenizer, folder), "validation"),
            tokenizer,
        )

    def validation_examples(self, tokenizer, labels):
        return None

    def _split(self) -> tuple[list[PreferenceRow], list[PreferenceRow]]:
        rows = self._read(self.train)
        if self.validation is not None:
            return rows, self._read(self.validation)
        # Pairs with the same prompt fall on the same side.
        names = [json.dumps(row.prompt, default=str) for row in rows]
        return train_validation_split(
            rows, names, self.validation_fraction, self.split_seed, self.train
        )

    def _read(self, path: str) -> list[PreferenceRow]:
        rows = [self.columns.read(record) for record in read_records(path)]
        if not rows:
            raise DataError(f"{path} has no rows")
        return rows


class Answer(NamedTuple):
    """One side of a pair as tokens."""

    tokens: np.ndarray
    """int32 [tokens], the prompt and the answer."""
    learned: np.ndarray
    """bool [tokens], whether a token belongs to the answer."""


class Pair(NamedTuple):
    """A prompt with both answers as tokens."""

    chosen: Answer
    rejected: Answer
    where: str
    """ "file:line"."""

    @classmethod
    def of(cls, chosen: EncodedChat, rejected: EncodedChat, where: str) -> "Pair":
        """Returns both sides, with answers that begin at the same token.

        A token may hold the end of the prompt and the beginning of one answer. From there on, both
        sides are answers.
        """
        sides = [Answer(chat.tokens, chat.is_answer) for chat in (chosen, rejected)]
        size = min(len(side.tokens) for side in sides)
        same = chosen.tokens[:size] == rejected.tokens[:size]
        common = size if same.all() else int(np.argmin(same))
        start = min(common, *(int(np.argmax(side.learned)) for side in sides))
        return cls(*(_from(start, side) for side in sides), where)

    @property
    def prompt_size(self) -> int:
        """The tokens before the answers."""
        return int(np.argmax(self.chosen.learned))

    @property
    def size(self) -> int:
        """The tokens of the longer side."""
        return max(len(self.chosen.tokens), len(self.rejected.tokens))

    def cut(self, size: int) -> "Pair":
        """Returns the pair with at most `size` tokens a side.

        The beginning of the prompt goes first, all but its last token, and then the end of the
        answers.
        """
        start = min(max(self.size - size, 0), max(self.prompt_size - 1, 0))
        place = slice(start, start + size)
        return Pair(
            *(Answer(side.tokens[place], side.learned[place]) for side in self[:2]), self.where
        )


class PairExamples(ExampleSource):
    """Pairs of answers.

    Args:
        pairs: The pairs, of at most T + 1 tokens a side.
        length: T, to which rows are padded.
        pad_id: The padding token.
    """

    def __init__(self, pairs: Sequence[Pair], length: int, pad_id: int):
        self.pairs = pairs
        self._length, self._pad_id = length, pad_id

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns "inputs", "targets" and "weights", each [2, T].

        inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = 1 if x[t + 1] is of the answer
        """
        del rng
        row = self.blank()
        for place, side in enumerate(self.pairs[index][:2]):
            size = len(side.tokens) - 1
            row["inputs"][place, :size] = side.tokens[:-1]
            row["targets"][place, :size] = side.tokens[1:]
            row["weights"][place, :size] = side.learned[1:]
        return row

    def blank(self) -> Batch:
        """Returns a row of padding, whose weights are 0."""
        shape = 2, self._length
        return {
            "inputs": np.full(shape, self._pad_id, np.int32),
            "targets": np.full(shape, self._pad_id, np.int32),
            "weights": np.zeros(shape, np.float32),
        }

    def fingerprint(self) -> str:
        """Returns a digest of all tokens, and of which belong to the answers."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            for tokens, learned in pair[:2]:
                digest.update(len(tokens).to_bytes(8, "little"))
                digest.update(tokens.astype("<i4").tobytes())
                digest.update(learned.astype(bool).tobytes())
        return digest.hexdigest()[:16]


def _from(start: int, side: Answer) -> Answer:
    """A side whose answer begins at a place, without what comes after its end."""
    end = int(np.flatnonzero(side.learned)[-1]) + 1
    learned = side.learned[:end].copy()
    learned[start : int(np.argmax(learned))] = True
    return Answer(side.tokens[:end], learned)
