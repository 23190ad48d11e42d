"""Sentences with a tag for each word: named entities, parts of speech, classes of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.bad_rows import map_rows, read_rows
from jaxformer.data.labels import Classes, in_order, numbered
from jaxformer.data.tasks.sequences import EncodedText, SequenceData, SequenceExamples
from jaxformer.data.tasks.tags.sources import PythonTokens, Sentence, TagSource
from jaxformer.data.tokenizers.specs import TokenizerSpec, TrainTokenizer


@dataclass(frozen=True)
class TaggedText(SequenceData[Sentence]):
    """Sentences with a tag for each word, which is predicted from the word's first token.

    A row of a batch has "inputs", "segments" and "token_types" int32 [T]: [CLS] words [SEP];
    "targets" int32 [T] and "weights" float32 [T], 1 at the first token of each word, else 0.

    References:
        Devlin et al., BERT, https://arxiv.org/abs/1810.04805, section 5.3.
    """

    train: TagSource = PythonTokens()
    """Where the training sentences come from."""

    validation: TagSource | None = None
    """Where the validation data come from; None holds out a share of the training data."""

    tokenizer: TokenizerSpec = field(default=TrainTokenizer(), kw_only=True)
    """How words become tokens."""

    label_order: tuple[str, ...] = ()
    """The tags in the order of their numbers; empty: those of the training data, sorted."""

    head = "token_classification"

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(3)))

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

    def examples(self, rows, tokenizer, labels=()) -> SequenceExamples:
        number = partial(_numbers, tags=labels)
        rows, numbers = map_rows(number, rows, self.on_bad_row, "tags")
        encoder = self.encoder(tokenizer)
        words = [[word.text for word in sentence.words] for sentence in rows]
        encoded = encoder.encode_words(words, [sentence.words[0].where for sentence in rows])
        tagged = [_targets(*found, own) for found, own in zip(encoded, numbers, strict=True)]
        return SequenceExamples(
            [text for text, _ in encoded],
            encoder.length,
            tokenizer.pad_id,
            per_token={
                "targets": [targets for targets, _ in tagged],
                "weights": [weights for _, weights in tagged],
            },
        )


def _numbers(rows: Sequence[Sentence], tags: Sequence[str]) -> list[np.ndarray]:
    """The numbers of the tags of each sentence, int32 [words]."""
    return [
        numbered((word.tag for word in row.words), tags, (word.where for word in row.words))
        for row in rows
    ]


def _targets(
    text: EncodedText, first: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the targets and weights [tokens], given the first token and the tag of each word."""
    targets = np.zeros(len(text.ids), np.int32)
    weights = np.zeros(len(text.ids), np.float32)
    there = first >= 0
    targets[first[there]] = numbers[there]
    weights[first[there]] = 1
    return targets, weights
