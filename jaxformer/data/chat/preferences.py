"""Preferences: prompts, each with an answer that was chosen and one that was rejected."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.base import Data, Datasets
from jaxformer.data.chat.choice import check_template_name, encoders
from jaxformer.data.chat.encoder import said_in
from jaxformer.data.chat.learned import TooLong
from jaxformer.data.chat.pairs import Pair, PairExamples, Pairs
from jaxformer.data.chat.preference_rows import Preference, PreferenceRow
from jaxformer.data.dataset import Dataset
from jaxformer.data.files.tables import read_records
from jaxformer.data.split import train_validation_split
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import (
    Tokenizer,
    TokenizerSpec,
    TrainTokenizer,
    load_tokenizer,
)
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

    too_long: TooLong = "error"
    """What becomes of a pair with more tokens: an error, cut at the beginning of the prompt (and
    then at the end of the answer), or left out."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(2)))
        check_template_name(self.template)

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
            ConfigError: There is no such template.
            DataError: A table cannot be read, a row is no preference or too long, or the template
                is missing or refuses it; names the file and the line.
        """
        train, held_out = self._split()
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, _texts(train))
        learned = self._pairs(train, tokenizer, folder)
        checked = self._pairs(held_out, tokenizer, folder)
        return Datasets(
            self._dataset(learned, tokenizer, "train"),
            self._dataset(checked, tokenizer, "validation"),
            tokenizer,
            summary=(("training", learned.in_words()), ("validation", checked.in_words())),
        )

    def prepare_validation(self, folder: str | os.PathLike) -> Datasets:
        """Reads the pairs for validation.

        Args:
            folder: The run's folder, which has its tokenizer and its template.

        Returns:
            The validation side, with the tokenizer.

        Raises:
            DataError: The table cannot be read, or a row is wrong; names the file and the line.
        """
        if self.validation is None:
            return self.prepare(folder)
        tokenizer = load_tokenizer(Path(folder, "tokenizer"))
        pairs = self._pairs(self._read(self.validation), tokenizer, folder)
        return Datasets(None, self._dataset(pairs, tokenizer, "validation"), tokenizer)

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

    def _pairs(
        self, rows: Sequence[PreferenceRow], tokenizer: Tokenizer, folder: str | os.PathLike
    ) -> Pairs:
        """Renders and tokenises both sides of each row."""
        sides = [side for row in rows for side in row]
        found = []
        for encoder, own in encoders(sides, folder, self.template, self.tokenizer, tokenizer):
            encoded = encoder.encode_batch(own)
            places = (chat.where for chat in own[::2])
            found += map(Pair.of, encoded[::2], encoded[1::2], places)
        return Pairs.fitting(found, self.sequence_length, self.too_long)

    def _dataset(self, pairs: Pairs, tokenizer: Tokenizer, name: str) -> Dataset:
        examples = PairExamples(pairs.kept, self.sequence_length, tokenizer.pad_id)
        return self.dataset(examples, name)


def _texts(rows: Sequence[PreferenceRow]) -> Iterator[str]:
    for row in rows:
        for message in (*row.chosen.messages, *row.rejected.messages):
            yield said_in(message)
