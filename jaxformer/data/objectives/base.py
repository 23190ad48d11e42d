"""Training objectives: how inputs and targets are made from a text."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxformer.checks import PROBABILITY, check_field, check_fields, check_types
from jaxformer.data.dataset import Batch, ExampleSource, padded
from jaxformer.data.text.packing import Joined, Packing, Rows, TokenRow, TokenStream
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import ConfigError

RowFunction = Callable[[TokenRow, np.random.Generator], Batch]
Corruption = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Objective(abc.ABC):
    """How a stream of tokens becomes examples; subclasses are frozen dataclasses."""

    special_tokens: ClassVar[tuple[Role, ...]] = ()
    """The roles for which the tokenizer must have special tokens."""

    predicts_every_token: ClassVar[bool] = False
    """Whether every token is predicted, so that the loss can be reported in bits per byte."""

    least_length: ClassVar[int] = 1
    """The smallest sequence_length with at least one target."""

    head: ClassVar[str] = "language_model"
    """The head that it trains, see `Data.head`."""

    takes_segments: ClassVar[bool] = True
    """Whether a row may hold several documents that do not attend to each other."""

    longest_row: ClassVar[int] = 2048
    """The number of tokens of a row if neither the experiment nor the model sets it."""

    def before_documents(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Returns the tokens with which each document begins."""
        del tokenizer
        return ()

    def lengths(self, sequence_length: int) -> dict[str, int]:
        """The tokens of "inputs", and of "decoder_inputs" for an encoder-decoder."""
        return {"inputs": sequence_length}

    def start_id(self, tokenizer: Tokenizer) -> int | None:
        """Returns the first input of the decoder of an encoder-decoder; None without one."""
        del tokenizer

    def raw_length(self, sequence_length: int) -> int:
        """Returns the number of tokens of text in an example."""
        return sequence_length

    def validate(self, packing: Packing, sequence_length: int) -> None:
        """Checks that the objective can use these rows.

        Args:
            packing: How documents are arranged in rows.
            sequence_length: The tokens of "inputs".

        Raises:
            ConfigError: It cannot use this packing or this length.
        """
        if sequence_length < self.least_length:
            raise ConfigError(
                f"data.sequence_length = {sequence_length}: must be at least {self.least_length}"
            )
        if not (self.takes_segments or isinstance(packing, Joined)):
            raise ConfigError(
                f"packing = {packing}: {type(self).__name__} takes each row as one text; use "
                "Joined()"
            )

    @abc.abstractmethod
    def examples(
        self, stream: TokenStream, packing: Packing, sequence_length: int, tokenizer: Tokenizer
    ) -> ExampleSource:
        """Returns the examples of a stream.

        Args:
            stream: The tokens.
            packing: How documents are arranged in rows.
            sequence_length: The tokens of "inputs".
            tokenizer: The tokenizer of the stream; it has the special tokens.
        """


class RowObjective(Objective):
    """An objective that makes each example from one row, by a pure function."""

    @abc.abstractmethod
    def bind(self, tokenizer: Tokenizer, sequence_length: int) -> RowFunction:
        """Returns the function from a row and its random generator to one row of the batch.

        Args:
            tokenizer: Provides the ids of special tokens and the beginnings of words.
            sequence_length: The tokens of "inputs".
        """

    def examples(self, stream, packing, sequence_length, tokenizer):
        rows = packing.rows(stream, self.raw_length(sequence_length), tokenizer.pad_id)
        return RowExamples(stream, rows, self.bind(tokenizer, sequence_length))


class RowExamples(ExampleSource):
    """The examples that an objective makes from the rows of a token stream."""

    def __init__(self, stream: TokenStream, rows: Rows, function: RowFunction):
        self.stream = stream
        self.rows = rows
        self._function = function

    def __len__(self) -> int:
        return self.rows.num_rows

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        return self._function(self.rows.read(index), rng)

    def blank(self) -> Batch:
        return self._function(self.rows.blank(), np.random.default_rng(0))


@dataclass(frozen=True)
class CausalLM(RowObjective):
    """Predict each next token.

    inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = 1 unless t is padding
    """

    predicts_every_token: ClassVar[bool] = True

    begin_of_text: bool = False
    """Whether a document begins with the tokens that the tokenizer puts before a text (<s>, <bos>),
    as in the training of Llama and Gemma."""

    def before_documents(self, tokenizer):
        frame = tokenizer.frame(1) if self.begin_of_text else None
        return () if frame is None else frame.gaps[0]

    def bind(self, tokenizer, sequence_length):
        return lambda row, rng: next_tokens(row)


@dataclass(frozen=True)
class PrefixLM(RowObjective):
    """Predict each next token after a prefix of random length, which the model sees in full.

    n tokens give a prefix of P = floor(u n) tokens, u uniform in [min_fraction, max_fraction]. The
    token at P is the first one outside the prefix, and position P - 1 predicts it:

        inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = 1 for P - 1 <= t < n

    "prefix" holds P, the number of leading tokens that see each other in both directions.

    References:
        Liu et al. 2018, https://arxiv.org/abs/1801.10198; Raffel et al. 2020, section 3.2.1,
        https://arxiv.org/abs/1910.10683
    """

    takes_segments: ClassVar[bool] = False

    min_fraction: float = 0.0
    """The smallest share of a row in the prefix."""

    max_fraction: float = 1.0
    """The largest share of a row in the prefix."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, min_fraction=PROBABILITY)
        in_order = self.min_fraction <= self.max_fraction <= 1
        check_field(self, "max_fraction", in_order, "between min_fraction and 1")

    def bind(self, tokenizer, sequence_length):
        def example(row: TokenRow, rng: np.random.Generator) -> Batch:
            fraction = rng.uniform(self.min_fraction, self.max_fraction)
            return after_prefix(next_tokens(row), int(fraction * row.valid.sum()))

        return example


class Seq2SeqObjective(RowObjective):
    """An objective of an encoder-decoder, whose decoder restores a text that was corrupted."""

    least_length: ClassVar[int] = 3
    takes_segments: ClassVar[bool] = False

    @abc.abstractmethod
    def corruption(self, tokenizer: Tokenizer) -> Corruption:
        """Returns the function from the tokens of a text to the source and the targets."""

    def bind(self, tokenizer, sequence_length):
        corrupted = self.corruption(tokenizer)
        lengths = self.lengths(sequence_length)
        start_id = self.start_id(tokenizer)

        def example(row: TokenRow, rng: np.random.Generator) -> Batch:
            tokens = row.tokens[row.valid]
            source, targets = corrupted(tokens, rng) if len(tokens) else (tokens, tokens)
            return teacher_forced(source, targets, lengths, tokenizer.pad_id, start_id)

        return example


def next_tokens(row: TokenRow) -> Batch:
    """Returns a row as inputs [T] and the tokens that follow as targets [T], with weights [T]."""
    example = {
        "inputs": row.tokens,
        "targets": row.following,
        "weights": row.valid.astype(np.float32),
    }
    if row.segments is not None:
        example |= {"segments": row.segments, "positions": row.positions}
    return example


def after_prefix(example: Batch, prefix: int) -> Batch:
    """Returns the example with "prefix", and weights only for predictions of the other tokens."""
    places = np.arange(len(example["weights"]))
    seen = places < prefix - 1
    weights = np.where(seen, 0, example["weights"]).astype(np.float32)
    return example | {"prefix": np.asarray(prefix, np.int32), "weights": weights}


def teacher_forced(
    source: np.ndarray, targets: np.ndarray, lengths: dict[str, int], pad_id: int, start_id: int
) -> Batch:
    """Returns the inputs and targets of an encoder-decoder, padded to its lengths.

    decoder_inputs[0] = start,  decoder_inputs[t] = targets[t - 1]

    These are "inputs" and "segments" int32 [S]; "decoder_inputs", "decoder_segments" and "targets"
    int32 [T]; "weights" float32 [T]. Segments are 1, and 0 at padding.
    """
    size = lengths["inputs"]
    decoder_size = lengths["decoder_inputs"]
    source = source.astype(np.int32)
    targets = targets.astype(np.int32)
    shifted = np.insert(targets, 0, start_id)[: len(targets)]
    valid = np.arange(decoder_size) < len(targets)
    return {
        "inputs": padded(source, size, pad_id),
        "segments": (np.arange(size) < len(source)).astype(np.int32),
        "decoder_inputs": padded(shifted, decoder_size, pad_id),
        "decoder_segments": valid.astype(np.int32),
        "targets": padded(targets, decoder_size, pad_id),
        "weights": valid.astype(np.float32),
    }
