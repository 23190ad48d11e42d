"""Sentences with a tag for each word: named entities, parts of speech, classes of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.bad_rows import BadRows, each, read_rows
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.labels import Classes, in_order, numbered
from jaxformer.data.rows import TaskData
from jaxformer.data.tasks.sequences import (
    SpecialTokens,
    SpecialTokensOf,
    TokenizedText,
    add_special_tokens,
    check_fit,
    encode_words,
    model_inputs,
    padded,
)
from jaxformer.data.tasks.tags.sources import PythonTokens, Sentence, TagSource
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer


@dataclass(frozen=True)
class TaggedText(TaskData[Sentence]):
    """Sentences with a tag for each word, which the first piece of the word predicts.

    A row of a batch has "inputs", "segments" and "token_types" int32 [T]: [CLS] words [SEP];
    "targets" int32 [T] and "weights" float32 [T], 1 at the first piece of each word, else 0.

    References:
        Devlin et al., BERT, https://arxiv.org/abs/1810.04805, section 5.3.
    """

    train: TagSource = PythonTokens()
    """Where the training sentences come from."""

    validation: TagSource | None = None
    """Where the validation data come from; None holds out a share of the training data."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How words become tokens."""

    sequence_length: int | None = 128
    """The most tokens of a row; None: as many as the checkpoint takes, 512 at most."""

    truncate: bool = False
    """Cut longer sentences; otherwise they are an error."""

    special_tokens: SpecialTokensOf = "bert"
    """Those around the sentence: "bert", [CLS] words [SEP]; or those that the "tokenizer" adds."""

    label_order: tuple[str, ...] = ()
    """The tags in the order of their numbers; empty: those of the training data, sorted."""

    head = "token_classification"

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(3)))

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def read(self, source: TagSource) -> list[Sentence]:
        return read_rows(
            source, lambda sentence: sentence, self.on_bad_row, source.sentences, "sentences"
        )

    def side_of(self, row: Sentence) -> str:
        return row.name

    def texts(self, row: Sentence) -> tuple[str]:
        return ("".join(word.text for word in row.words),)

    def label_names(self, train):
        found = Classes().names(word.tag for sentence in train for word in sentence.words)
        return in_order(found, self.label_order)

    def examples(
        self, rows: Sequence[Sentence], tokenizer: Tokenizer, labels: Sequence[str] = ()
    ) -> "TaggedExamples":
        bad = BadRows(self.on_bad_row)
        numbers = list(each(partial(_numbers, tags=labels), rows, bad))
        bad.settle("tags", len(rows))
        rows = [sentence for sentence, _ in numbers]
        words = (word.text for sentence in rows for word in sentence.words)
        pieces = encode_words(words, tokenizer)
        special, length = SpecialTokens.of(tokenizer, self.special_tokens), self.sequence_length
        around = special.count(1)
        sizes = [sum(len(pieces[word.text]) for word in s.words) + around for s in rows]
        places = [sentence.words[0].where for sentence in rows]
        check_fit(sizes, places, length, "data.sequence_length", self.truncate)
        tagged = [_row(*numbered, pieces, special, length) for numbered in numbers]
        return TaggedExamples(tagged, length, tokenizer.pad_id)


class TaggedRow(NamedTuple):
    """A tokenised sentence before padding; arrays are [tokens]."""

    text: TokenizedText
    targets: np.ndarray
    """int32, the number of the tag of each word at its first piece, 0 elsewhere."""
    weights: np.ndarray
    """float32, 1 at the first piece of each word and 0 elsewhere."""


class TaggedExamples(ExampleSource):
    """Tokenised sentences with their tags.

    Args:
        rows: The sentences.
        length: T, to which rows are padded.
        pad_id: The padding token.
    """

    def __init__(self, rows: Sequence[TaggedRow], length: int, pad_id: int):
        self._rows, self._length, self._pad_id = rows, length, pad_id

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns the model's inputs with "targets" and "weights"."""
        row = self._rows[index]
        return model_inputs(row.text, self._length, self._pad_id) | {
            "targets": padded(row.targets, self._length, 0),
            "weights": padded(row.weights, self._length, 0),
        }

    def blank(self) -> Batch:
        """Returns a row of the same shapes whose weights are 0."""
        row = self.read(0, np.random.default_rng(0))
        return row | {"weights": np.zeros_like(row["weights"])}


def _numbers(rows: Sequence[Sentence], tags: Sequence[str]) -> list[np.ndarray]:
    """The numbers of the tags of each sentence, int32 [words]."""
    return [
        numbered((word.tag for word in row.words), tags, (word.where for word in row.words))
        for row in rows
    ]


def _row(
    sentence: Sentence,
    numbers: np.ndarray,
    pieces: dict[str, np.ndarray],
    special: SpecialTokens,
    length: int,
) -> TaggedRow:
    sizes = np.array([len(pieces[word.text]) for word in sentence.words])
    numbers, sizes = numbers[sizes > 0], sizes[sizes > 0]
    before = special.start((), 1)
    first = before + np.cumsum([0, *sizes])[:-1]
    ids = [np.zeros(0, np.int32), *(pieces[word.text] for word in sentence.words)]
    text = add_special_tokens([np.concatenate(ids)], special, length)
    inside = first < len(text.tokens) - (special.count(1) - before)
    targets = np.zeros(len(text.tokens), np.int32)
    weights = np.zeros(len(text.tokens), np.float32)
    targets[first[inside]], weights[first[inside]] = numbers[inside], 1
    return TaggedRow(text, targets, weights)
