"""A task in one file: texts with a rating each, which `rating_head.Rating` learns."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rating_head import Rating

from jaxformer.data.bad_rows import read_rows
from jaxformer.data.dataset import ExampleSource
from jaxformer.data.rows import TaskData
from jaxformer.data.tasks.sequences import RowEncoder, SpecialTokens, model_inputs
from jaxformer.data.tokenizers.specs import TokenizerSpec, TrainTokenizer


class RatedRow(NamedTuple):
    where: str
    text: str
    rating: int


@dataclass(frozen=True, kw_only=True)
class RatedText(TaskData[RatedRow]):
    """The columns "review" and "stars" of a table."""

    train: str
    validation: str | None = None
    tokenizer: TokenizerSpec = TrainTokenizer()
    sequence_length: int = 16
    text: tuple[str, ...] = ("review",)
    head = Rating.kind()

    @property
    def lengths(self):
        return {"inputs": self.sequence_length}

    def read(self, source):
        def row(record):
            return RatedRow(record.where, record.text("review"), int(record.value("stars")))

        return read_rows(source, row, self.on_bad_row)

    def side_of(self, row):
        return row.text

    def texts(self, row):
        return (row.text,)

    def examples(self, rows, tokenizer, labels=()):
        encoder = RowEncoder(tokenizer, SpecialTokens.of(tokenizer), self.sequence_length)
        texts = encoder.encode([(row.text,) for row in rows])
        return RatedExamples(texts, rows, self.sequence_length, tokenizer.pad_id)


class RatedExamples(ExampleSource):
    def __init__(self, texts, rows, *shape):
        self._texts, self._rows, self._shape = texts, rows, shape

    def __len__(self):
        return len(self._rows)

    def read(self, index, rng, weight=1.0):
        labels = {"rating": np.int32(self._rows[index].rating)}
        inputs = model_inputs(self._texts[index], *self._shape)
        return inputs | labels | {"rating_weights": np.float32(weight)}

    def blank(self):
        return self.read(0, None, weight=0.0)
