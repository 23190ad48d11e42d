"""Texts as rows of tokens: special tokens, token types, truncation, padding."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from jaxformer.data.dataset import Batch, ExampleSource, padded
from jaxformer.data.rows import Row, TaskData, too_long_error
from jaxformer.data.tokenizers.special_tokens import Frame, Role
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import ConfigError

_log = logging.getLogger(__name__)


SpecialTokensOf = Literal["bert", "tokenizer"]


class SpecialTokens(NamedTuple):
    """The special tokens around texts: [CLS] a [SEP], and [CLS] a [SEP] b [SEP]."""

    frames: tuple[Frame, Frame]
    """The special tokens around one text, and around two."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, by: SpecialTokensOf = "bert") -> "SpecialTokens":
        """Returns the special tokens for a tokenizer.

        Args:
            tokenizer: The tokenizer.
            by: "bert": its [CLS] and [SEP], or end-of-text if it has none; "tokenizer": those that
                it adds itself. This library's tokenizers add none, so this means their [CLS] and
                [SEP], if any.
        """
        own = tuple(tokenizer.frame(texts) for texts in (1, 2))
        if by == "tokenizer" and None not in own:
            return cls(own)
        first, last = (_special_id(tokenizer, role) for role in ("cls", "sep"))
        if by == "tokenizer" and first is None:
            return cls((Frame(((), ()), ((), ()), (0,)), Frame(((),) * 3, ((),) * 3, (0, 1))))
        end = tokenizer.end_of_text_id
        return cls.bert(end if first is None else first, end if last is None else last)

    @classmethod
    def bert(cls, first: int, last: int) -> "SpecialTokens":
        """Returns BERT's special tokens: `first` a `last` b `last`, with token type 1 from b on."""
        one = Frame(((first,), (last,)), ((0,), (0,)), (0,))
        return cls((one, Frame(((first,), (last,), (last,)), ((0,), (0,), (1,)), (0, 1))))

    @classmethod
    def around_text(cls, tokenizer: Tokenizer, *, own: bool) -> "SpecialTokens":
        """Returns end-of-text after a text, or with `own` the tokenizer's own tokens, if any."""
        frame = tokenizer.frame(1) if own else None
        frame = frame or Frame(((), (tokenizer.end_of_text_id,)), ((), (0,)), (0,))
        return cls((frame, frame))

    def count(self, texts: int) -> int:
        """Returns the number of special tokens around one text or two."""
        return sum(map(len, self.frames[texts - 1].gaps))

    def start(self, before: Sequence[int], texts: int) -> int:
        """Returns where a text starts in a row of `texts`, after texts with `before` tokens."""
        gaps = self.frames[texts - 1].gaps[: len(before) + 1]
        return sum(before) + sum(map(len, gaps))


class EncodedText(NamedTuple):
    """One or two texts as a row of tokens, before padding; arrays are int32 [tokens]."""

    ids: np.ndarray
    types: np.ndarray
    """The text that each token belongs to: 0, or 1 in the second of a pair."""
    cut: bool = False
    """Whether the texts had too many tokens and were cut."""


class EncodedWords(NamedTuple):
    """A text that is split into words, as a row of tokens."""

    text: EncodedText
    first: np.ndarray
    """int32 [words], the first token of each word; -1: it was cut off or has none."""


def truncated_lengths(lengths: Sequence[int], space: int) -> tuple[int, ...]:
    """Returns how many tokens of one or two texts to keep, cutting the longer one first."""
    if len(lengths) == 1:
        return (min(lengths[0], space),)
    first, second = lengths
    if first + second <= space:
        return first, second
    half = space // 2
    if second <= half:
        return space - second, second
    return (first, space - first) if first <= space - half else (space - half, half)


class RowEncoder:
    """Encodes texts as rows of tokens, in the same way for training and prediction.

    Args:
        tokenizer: The tokenizer.
        special: The special tokens around texts.
        length: The maximum number of tokens of a row; longer rows are cut, the longer text of a
            pair first.
        field: The field that sets the length, for messages.
        truncate: Whether rows may be cut if `where` is given.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        special: SpecialTokens,
        length: int,
        *,
        field: str = "data.sequence_length",
        truncate: bool = True,
    ):
        self._tokenizer = tokenizer
        self.special = special
        self.length = length
        self._field, self._truncate = field, truncate

    def encode(self, rows: Sequence[Sequence[str]], where: Sequence[str] = ()) -> list[EncodedText]:
        """Returns texts, or pairs of texts, as rows."""
        columns = zip(*rows, strict=True)
        pieces = [encode_each(column, self._tokenizer) for column in columns]
        texts = [[found[text] for found, text in zip(pieces, row, strict=True)] for row in rows]
        self._check(texts, where)
        return [self.joined(each) for each in texts]

    def encode_words(
        self, rows: Sequence[Sequence[str]], where: Sequence[str] = ()
    ) -> list[EncodedWords]:
        """Returns texts that are split into words as rows; each word is encoded separately."""
        pieces = encode_each((word for words in rows for word in words), self._tokenizer)
        parts = [[pieces[word] for word in words] for words in rows]
        texts = [[np.concatenate([np.zeros(0, np.int32), *each])] for each in parts]
        self._check(texts, where)
        start = self.special.start((), 1)
        found = []
        for each, text in zip(parts, map(self.joined, texts), strict=True):
            sizes = np.array([len(part) for part in each], np.int32)
            first = start + np.cumsum(sizes) - sizes
            end = len(text.ids) - (self.special.count(1) - start)
            inside = (sizes > 0) & (first < end)
            found.append(EncodedWords(text, np.where(inside, first, -1).astype(np.int32)))
        return found

    def joined(self, texts: Sequence[np.ndarray]) -> EncodedText:
        """Returns one or two texts, int32 [tokens] each, with special tokens, cut to fit."""
        frame = self.special.frames[len(texts) - 1]
        added = self.special.count(len(texts))
        sizes = [len(text) for text in texts]
        kept = truncated_lengths(sizes, self.length - added)
        parts, types = [frame.gaps[0]], [frame.gap_types[0]]
        for number, (text, size) in enumerate(zip(texts, kept, strict=True)):
            parts += [text[:size], frame.gaps[number + 1]]
            types += [np.full(size, frame.text_types[number]), frame.gap_types[number + 1]]
        arrays = (np.concatenate(side).astype(np.int32) for side in (parts, types))
        return EncodedText(*arrays, sum(sizes) + added > self.length)

    def _check(self, texts: Sequence[Sequence[np.ndarray]], where: Sequence[str]) -> None:
        if where:
            sizes = [sum(map(len, text)) + self.special.count(len(text)) for text in texts]
            check_fit(sizes, where, self.length, self._field, self._truncate)


@dataclass(frozen=True, kw_only=True)
class SequenceData(TaskData[Row]):
    """Rows of one text or two, each of which becomes one sequence of tokens."""

    tokenizer: TokenizerSpec = TrainTokenizer(kind="wordpiece")
    """How text becomes tokens."""

    sequence_length: int | None = 128
    """The maximum number of tokens of a row; None: as in the checkpoint, at most 512."""

    truncate: bool = False
    """Whether to cut longer rows, the longer text of a pair first; otherwise they are an error."""

    special_tokens: SpecialTokensOf = "bert"
    """The special tokens around the texts: "bert", [CLS] a [SEP] b [SEP], or the end-of-text token
    instead; "tokenizer": those that the tokenizer itself adds, as in transformers.
    """

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def encoder(self, tokenizer: Tokenizer) -> RowEncoder:
        """Returns the encoder of the rows."""
        special = SpecialTokens.of(tokenizer, self.special_tokens)
        return RowEncoder(tokenizer, special, self.sequence_length, truncate=self.truncate)


def encode_each(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Returns the tokens int32 [tokens] of each different text."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenizer.encode_batch(different), strict=True))


def model_inputs(text: EncodedText, length: int, pad_id: int) -> Batch:
    """Returns the inputs of an encoder: "inputs", "segments" and "token_types", int32 [length]."""
    return {
        "inputs": padded(text.ids, length, pad_id),
        "segments": padded(np.ones_like(text.ids), length, 0),
        "token_types": padded(text.types, length, 0),
    }


def with_decoder(inputs: Batch, start: int | None) -> Batch:
    """Returns the inputs of an encoder, and of a decoder that reads the same after `start`."""
    if start is None:
        return inputs
    tokens = inputs["inputs"]
    first = np.full_like(tokens[..., :1], start)
    shifted = np.concatenate([first, tokens[..., :-1]], axis=-1)
    return inputs | {"decoder_inputs": shifted, "decoder_segments": inputs["segments"]}


class SequenceExamples(ExampleSource):
    """Encoded texts with the arrays that a head reads.

    Args:
        texts: The rows.
        length: T, to which rows are padded.
        pad_id: The padding token.
        arrays: Further arrays of the rows by name, [rows, ...].
        per_token: Further arrays of each row's tokens by name, `[tokens]` each; padded with 0.
        start: The decoder's first token; None for a model without a decoder.
    """

    def __init__(
        self,
        texts: Sequence[EncodedText],
        length: int,
        pad_id: int,
        arrays: Mapping[str, Sequence] = MappingProxyType({}),
        per_token: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
        start: int | None = None,
    ):
        self._texts = texts
        self._length = length
        self._pad_id = pad_id
        self._arrays = arrays
        self._per_token = per_token
        self._start = start

    def __len__(self) -> int:
        return len(self._texts)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        inputs = model_inputs(self._texts[index], self._length, self._pad_id)
        per_token = self._per_token.items()
        return (
            with_decoder(inputs, self._start)
            | {name: values[index] for name, values in self._arrays.items()}
            | {name: padded(values[index], self._length, 0) for name, values in per_token}
        )


def check_fit(
    sizes: Sequence[int], places: Sequence[str], limit: int, field: str, truncate: bool
) -> None:
    """Reports rows that are too long: an error, or a warning if they may be cut."""
    count = sum(size > limit for size in sizes)
    if not count:
        return
    if not truncate:
        remedy = "cut them with --data.truncate"
        raise too_long_error(sizes, places, limit, field, "rows", remedy)
    shown = f"{count:,} of {len(sizes):,} rows"
    _log.warning("%s are longer than %s = %d and were cut", shown, field, limit)


def _special_id(tokenizer: Tokenizer, role: Role) -> int | None:
    try:
        return int(tokenizer.special_ids(role)[0])
    except ConfigError:
        return None
