"""A task in one file: texts with a rating each, which `rating_head.Rating` learns."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rating_head import Rating

from jaxformer.data.bad_rows import read_rows
from jaxformer.data.tasks.sequences import SequenceData, SequenceExamples


class RatedRow(NamedTuple):
    where: str
    text: str
    rating: int


@dataclass(frozen=True, kw_only=True)
class RatedText(SequenceData[RatedRow]):
    """The columns "review" and "stars" of a table."""

    train: str
    validation: str | None = None
    sequence_length: int = 16
    text: tuple[str, ...] = ("review",)
    head = Rating.kind()

    def read(self, source):
        def row(record):
            return RatedRow(record.where, record.text("review"), int(record.value("stars")))

        return read_rows(source, row, self.on_bad_row)

    def side_of(self, row):
        return row.text

    def texts(self, row):
        return (row.text,)

    def examples(self, rows, tokenizer, labels=()):
        texts = self.encoder(tokenizer).encode([(row.text,) for row in rows])
        ratings = np.array([row.rating for row in rows], np.int32)
        arrays = {"rating": ratings, "rating_weights": np.ones(len(rows), np.float32)}
        return SequenceExamples(texts, self.sequence_length, tokenizer.pad_id, arrays)
