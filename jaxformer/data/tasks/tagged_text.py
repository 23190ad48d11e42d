"""Sentences with a tag for each word: named entities, parts of speech, classes of tokens."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.labels import Classes, in_order, numbered, save_labels
from jaxformer.data.split import train_validation_split
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
from jaxformer.data.tasks.tag_sources import PythonTokens, Sentence, TagSource
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import DataError


@dataclass(frozen=True)
class TaggedText(Data):
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

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads and tokenises the sentences; keeps the tokenizer and the names of the tags.

        Args:
            folder: The run's folder.

        Returns:
            Both sides of the data, with the tokenizer and the names of the tags.

        Raises:
            DataError: A source has no sentences or cannot be read, a sentence is too long, or a
                tag for validation is none of the training sentences'; names the file and the line.
        """
        train, validation = self._split()
        texts = ("".join(word.text for word in sentence.words) for sentence in train)
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, texts)
        tags = self._tags(train)
        save_labels(folder, tags)
        return Datasets(
            self.dataset(self._examples(train, tokenizer, tags), "train"),
            self.dataset(self._examples(validation, tokenizer, tags), "validation"),
            tokenizer,
            labels=tags,
        )

    def training_labels(self):
        return self._tags(self._split()[0])

    def _tags(self, train: Sequence[Sentence]) -> tuple[str, ...]:
        found = Classes().names(word.tag for sentence in train for word in sentence.words)
        return in_order(found, self.label_order)

    def validation_examples(self, tokenizer, labels):
        if self.validation is None:
            return None
        return self._examples(_read(self.validation), tokenizer, labels)

    def _split(self) -> tuple[list[Sentence], list[Sentence]]:
        sentences = _read(self.train)
        if self.validation is not None:
            return sentences, _read(self.validation)
        names = [sentence.name for sentence in sentences]
        return train_validation_split(
            sentences, names, self.validation_fraction, self.split_seed, self.train
        )

    def _examples(
        self, sentences: Sequence[Sentence], tokenizer: Tokenizer, tags: Sequence[str]
    ) -> "TaggedExamples":
        words = (word.text for sentence in sentences for word in sentence.words)
        pieces = encode_words(words, tokenizer)
        special, length = SpecialTokens.of(tokenizer, self.special_tokens), self.sequence_length
        around = special.count(1)
        sizes = [sum(len(pieces[word.text]) for word in s.words) + around for s in sentences]
        places = [sentence.words[0].where for sentence in sentences]
        check_fit(sizes, places, length, "data.sequence_length", self.truncate)
        rows = [_row(sentence, pieces, tags, special, length) for sentence in sentences]
        return TaggedExamples(rows, length, tokenizer.pad_id)


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


def _read(source: TagSource) -> list[Sentence]:
    sentences = list(source.sentences())
    if not sentences:
        raise DataError(f"{source} has no sentences")
    return sentences


def _row(
    sentence: Sentence,
    pieces: dict[str, np.ndarray],
    tags: Sequence[str],
    special: SpecialTokens,
    length: int,
) -> TaggedRow:
    words = [word for word in sentence.words if len(pieces[word.text])]
    sizes = [len(pieces[word.text]) for word in words]
    before = special.start((), 1)
    first = before + np.cumsum([0, *sizes])[:-1]
    ids = [np.zeros(0, np.int32), *(pieces[word.text] for word in words)]
    text = add_special_tokens([np.concatenate(ids)], special, length)
    numbers = numbered((word.tag for word in words), tags, (word.where for word in words))
    inside = first < len(text.tokens) - (special.count(1) - before)
    targets = np.zeros(len(text.tokens), np.int32)
    weights = np.zeros(len(text.tokens), np.float32)
    targets[first[inside]], weights[first[inside]] = numbers[inside], 1
    return TaggedRow(text, targets, weights)
