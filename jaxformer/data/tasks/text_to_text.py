"""Text to text: translation, summaries, answers; the model writes the second text of a pair."""

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.split import train_validation_split
from jaxformer.data.tasks.sequences import check_fit, padded
from jaxformer.data.tasks.text_metrics import BLEU, TextMetric
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.special_tokens import Frame
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer


class TextPair(NamedTuple):
    """A source, and a text that the model is to write for it."""

    texts: tuple[str, str]
    places: tuple[str, str]
    """The place of each ("file:line"), for messages."""
    references: tuple[str, ...] | None = None
    """All right texts, where the second is one of several; none: there is nothing to write."""
    group: str | None = None
    """Pairs with the same one are held out together; None: those with the same source."""


@dataclass(frozen=True)
class TextToText(Data):
    """Pairs of texts; the model writes the second from the first. A subclass for each kind of file.

    A row of a batch has "inputs" int32 [S], the source and end-of-text; "decoder_inputs" int32 [T],
    the start token and the target; "targets" int32 [T], the target and end-of-text; "weights"
    float32 [T]; "segments" [S] and "decoder_segments" [T], 1 for tokens and 0 for padding.
    """

    tokenizer: TokenizerSpec = field(default=TrainTokenizer(), kw_only=True)
    """How text becomes tokens, on both sides."""

    start: Literal["pad", "end_of_text"] = field(default="pad", kw_only=True)
    """The decoder's first input: the padding token (T5, Marian) or end-of-text (BART)."""

    special_tokens: Literal["end_of_text", "tokenizer"] = field(default="end_of_text", kw_only=True)
    """Those around a text: "end_of_text" alone after it; or those that the "tokenizer" itself adds
    (BART: <s> text </s>)."""

    source_length: int = field(default=64, kw_only=True)
    """The most tokens of a source, special tokens included."""

    target_length: int = field(default=64, kw_only=True)
    """The most tokens of a target, special tokens included."""

    truncate: bool = field(default=False, kw_only=True)
    """Cut longer texts; otherwise they are an error."""

    metric: TextMetric = field(default=BLEU(), kw_only=True)
    """What the model's texts for the validation sources are measured by: BLEU, ROUGE or
    AnswerMatch."""

    product: ClassVar[tuple[str, str]] = ("translation", "translations")
    """What the model writes: one of it, and several."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", source_length=at_least(2), target_length=at_least(2))

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.source_length, "decoder_inputs": self.target_length}

    @property
    @abc.abstractmethod
    def origin(self) -> str:
        """Where the training pairs come from, for messages."""

    @abc.abstractmethod
    def train_pairs(self) -> list[TextPair]:
        """Returns the training pairs, those that may be held out among them.

        Raises:
            DataError: They are missing or cannot be read.
        """

    @abc.abstractmethod
    def validation_pairs(self) -> list[TextPair] | None:
        """Returns the pairs for validation; None if they are a share of the training pairs.

        Raises:
            DataError: They cannot be read.
        """

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads and tokenises the pairs; keeps the tokenizer.

        Args:
            folder: The run's folder.

        Returns:
            Both sides of the data, with the tokenizer.

        Raises:
            DataError: A file cannot be read, two have different numbers of lines, or a line is
                too long; names the files and the line.
        """
        train, validation = self.train_pairs(), self.validation_pairs()
        if validation is None:
            names = [pair.texts[0] if pair.group is None else pair.group for pair in train]
            train, validation = train_validation_split(
                train, names, self.validation_fraction, self.split_seed, self.origin
            )
        texts = (text for pair in train for text in pair.texts)
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, texts)
        return Datasets(
            self.dataset(self.examples(train, tokenizer), "train"),
            self.dataset(self.examples(validation, tokenizer), "validation"),
            tokenizer,
        )

    def start_id(self, tokenizer):
        return tokenizer.pad_id if self.start == "pad" else tokenizer.end_of_text_id

    def validation_examples(self, tokenizer, labels):
        pairs = self.validation_pairs()
        return None if pairs is None else self.examples(pairs, tokenizer)

    def examples(self, pairs: Sequence[TextPair], tokenizer: Tokenizer) -> "TextToTextExamples":
        """Returns pairs as arrays.

        Args:
            pairs: The pairs.
            tokenizer: The run's.

        Raises:
            DataError: A text is too long.
        """
        own = tokenizer.frame(1) if self.special_tokens == "tokenizer" else None
        before, after = (own or Frame(((), (tokenizer.end_of_text_id,)), ((), (0,)), (0,))).gaps
        sides = []
        for side, name in enumerate(("source_length", "target_length")):
            ids = tokenizer.encode_batch([pair.texts[side] for pair in pairs])
            room = (limit := getattr(self, name)) - len(before) - len(after)
            sizes = [len(row) + limit - room for row in ids]
            places = [pair.places[side] for pair in pairs]
            check_fit(sizes, places, limit, f"data.{name}", self.truncate)
            sides.append([np.array([*before, *row[:room], *after], np.int32) for row in ids])
        start = self.start_id(tokenizer)
        return TextToTextExamples(self, pairs, *sides, start, tokenizer.pad_id)


class TextToTextExamples(ExampleSource):
    """Tokenised pairs.

    Attributes:
        pairs: The texts themselves, (source, target).
        references: All right texts for each source.
        config: The configuration of the data.
    """

    def __init__(
        self,
        config: TextToText,
        pairs: Sequence[TextPair],
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        start: int,
        pad: int,
    ):
        """Takes texts, their tokens [tokens], the start token and the padding token."""
        self.config, self.pairs = config, [pair.texts for pair in pairs]
        self.references = [
            (pair.texts[1],) if pair.references is None else pair.references for pair in pairs
        ]
        self._sources, self._targets = sources, targets
        self._start, self._pad = start, pad

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns the encoder's and the decoder's inputs, "targets" and "weights"."""
        size, target_size = self.config.source_length, self.config.target_length
        source, target = self._sources[index], self._targets[index]
        shifted = np.insert(target[:-1], 0, self._start)
        return {
            "inputs": padded(source, size, self._pad),
            "segments": padded(np.ones_like(source), size, 0),
            "decoder_inputs": padded(shifted, target_size, self._pad),
            "decoder_segments": padded(np.ones_like(shifted), target_size, 0),
            "targets": padded(target, target_size, self._pad),
            "weights": padded(np.ones(len(target), np.float32), target_size, 0),
        }

    def blank(self) -> Batch:
        """Returns a row of the same shapes whose weights are 0."""
        row = self.read(0, np.random.default_rng(0))
        return row | {"weights": np.zeros_like(row["weights"])}
