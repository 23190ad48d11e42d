"""Masked language modelling: the model predicts masked tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from jaxformer.checks import PROBABILITY, at_least, check_field, check_fields, check_types, optional
from jaxformer.data.dataset import Batch
from jaxformer.data.objectives.base import RowObjective
from jaxformer.data.text.packing import TokenRow
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer

# Success probability of the geometric span lengths in SpanBERT.
_GEOMETRIC_P = 0.2

MaskFunction = Callable[
    [np.ndarray, np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]
]


@dataclass(frozen=True)
class MaskedLM(RowObjective):
    """Predict masked tokens from all others, with a new mask in each epoch.

    A row is [CLS], the tokens, [SEP]. Of its n text tokens, round(rate n) and at least one are
    chosen, by whole words or spans if configured. Of the chosen tokens, a share of `mask_share`
    becomes [MASK], one of `random_share` any token of the vocabulary, and the rest stays unchanged:

        inputs[t] = corrupted x[t],  targets[t] = x[t],  weights[t] = 1 where t was chosen

    Words and spans that would exceed the number are left out, so the number is exact whenever it
    can be reached. All tokens of a span are replaced in the same way, as in SpanBERT.

    References:
        Devlin et al. 2018, section 3.1, https://arxiv.org/abs/1810.04805; Liu et al. 2019 (dynamic
        masking), https://arxiv.org/abs/1907.11692; Joshi et al. 2019 (spans),
        https://arxiv.org/abs/1907.10529; Sun et al. 2019 (words and phrases),
        https://arxiv.org/abs/1904.09223
    """

    head = "masked_language_model"
    special_tokens: ClassVar[tuple[Role, ...]] = ("cls", "sep", "mask")
    least_length: ClassVar[int] = 3

    rate: float = 0.15
    """The share of the tokens that are predicted."""

    mask_share: float = 0.8
    """The share of the chosen tokens that become the mask token."""

    random_share: float = 0.1
    """The share of the chosen tokens that become a random token."""

    whole_word: bool = False
    """Whether to choose all tokens of a word or none."""

    max_span: int | None = None
    """Choose spans of 1 to max_span tokens (words with whole_word) of geometric length (SpanBERT:
    10); None: one at a time."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "rate", 0 < self.rate <= 1, "above 0 and at most 1")
        check_fields(self, mask_share=PROBABILITY, max_span=optional(at_least(1)))
        left = 1 - self.mask_share
        check_field(self, "random_share", 0 <= self.random_share <= left + 1e-9, f"0 to {left:g}")

    def raw_length(self, sequence_length):
        return sequence_length - 2

    def bind(self, tokenizer, sequence_length):
        mask, pad_id = self.masker(tokenizer), tokenizer.pad_id
        ends = [int(tokenizer.special_ids(role)[0]) for role in ("cls", "sep")]

        def example(row: TokenRow, rng: np.random.Generator) -> Batch:
            framed = frame(row, *ends, pad_id)
            inputs, weights = mask(framed["inputs"], framed["segments"], rng)
            return framed | {"inputs": inputs, "targets": framed["inputs"], "weights": weights}

        return example

    def masker(self, tokenizer: Tokenizer) -> MaskFunction:
        """Returns the function from tokens and segments, int [T], to inputs and weights [T]."""
        vocabulary = Vocabulary.of(tokenizer)
        ordinary_ids = np.flatnonzero(vocabulary.is_text)
        mask_id = tokenizer.special_ids("mask")[0]

        def mask(tokens, segments, rng):
            units = find_units(tokens, segments, vocabulary, self.whole_word)
            spans = choose_spans(units, segments, self.rate, self.max_span, rng)
            chosen = np.zeros(len(tokens), bool)
            fates = rng.random(len(tokens))
            for start, end in spans:
                chosen[start:end] = True
                if self.max_span is not None:
                    fates[start:end] = fates[start]
            masked = chosen & (fates < self.mask_share)
            randomised = chosen & ~masked & (fates < self.mask_share + self.random_share)
            others = rng.choice(ordinary_ids, size=len(tokens))
            inputs = np.where(masked, mask_id, np.where(randomised, others, tokens))
            return inputs.astype(np.int32), chosen.astype(np.float32)

        return mask


class Vocabulary(NamedTuple):
    """Properties of each token id for masking; all arrays are bool [V].

    Attributes:
        is_text: Whether it is text; False for special tokens.
        starts_in_word: Its text begins with a character of a word, without a space in front.
        ends_in_word: Its text ends with a character of a word.
    """

    is_text: np.ndarray
    starts_in_word: np.ndarray
    ends_in_word: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """Returns the tables of a tokenizer."""
        pieces = tokenizer.pieces()
        return cls(
            np.array([piece is not None for piece in pieces]),
            np.array([bool(piece) and _in_word(piece[0]) for piece in pieces]),
            np.array([bool(piece) and _in_word(piece[-1]) for piece in pieces]),
        )


def _in_word(character: str) -> bool:
    # U+FFFD is part of a character beyond ASCII, and most of these are letters.
    return character.isalnum() or character in "_\ufffd"


def frame(row: TokenRow, first_id: int, last_id: int, pad_id: int) -> Batch:
    """Returns a row [T] between two special tokens, which join its first and last segment.

    That is "inputs" and "segments" int32 [T + 2], and "positions" if the row has them. A row of
    padding gets no special tokens.
    """
    size, count = len(row.tokens), int(row.valid.sum())
    inputs = np.full(size + 2, pad_id, np.int32)
    segments = np.zeros(size + 2, np.int32)
    if count:
        inputs[: count + 2] = [first_id, *row.tokens[:count], last_id]
        own = np.ones(size, np.int32) if row.segments is None else row.segments
        segments[: count + 2] = [own[0], *own[:count], own[count - 1]]
    framed = {"inputs": inputs, "segments": segments}
    if row.positions is not None:
        starts = np.flatnonzero(np.diff(segments, prepend=-1))
        places = np.arange(size + 2)
        since = places - starts[np.searchsorted(starts, places, side="right") - 1]
        framed["positions"] = np.where(segments > 0, since, 0).astype(np.int32)
    return framed


def find_units(
    tokens: np.ndarray, segments: np.ndarray, vocabulary: Vocabulary, whole_word: bool
) -> np.ndarray:
    """Returns the units that are masked together: int [units, 2], the start and end of each.

    A unit is a word or a token of a row [T]; special tokens and padding are in none.
    """
    text = vocabulary.is_text[tokens] & (segments > 0)
    continues = np.zeros(len(tokens), bool)
    if whole_word:
        inside = vocabulary.starts_in_word[tokens[1:]] & vocabulary.ends_in_word[tokens[:-1]]
        continues[1:] = text[1:] & text[:-1] & (segments[1:] == segments[:-1]) & inside
    starts = np.flatnonzero(text & ~continues)
    bounds = np.append(np.flatnonzero(~continues), len(tokens))
    return np.stack([starts, bounds[np.searchsorted(bounds, starts) + 1]], axis=1)


def choose_spans(
    units: np.ndarray,
    segments: np.ndarray,
    rate: float,
    max_span: int | None,
    rng: np.random.Generator,
) -> Sequence[tuple[int, int]]:
    """Returns the (start, end) of random spans of units, which hold a share of the tokens.

    A span has a geometric number of units, at most `max_span` or one, and stays within a segment.
    """
    sizes = units[:, 1] - units[:, 0]
    budget = max(1, round(rate * int(sizes.sum())))
    adjacent = (units[1:, 0] == units[:-1, 1]) & (segments[units[1:, 0]] == segments[units[:-1, 0]])
    starts, ends = units.T.tolist()
    sizes = sizes.tolist()
    adjacent = [*adjacent.tolist(), False]
    lengths = _span_lengths(max_span, len(units), rng)
    free, taken, spans = [True] * len(units), 0, []
    for first, length in zip(rng.permutation(len(units)).tolist(), lengths, strict=True):
        if taken >= budget:
            break
        last = first
        while last < first + length and free[last] and (not taken or taken + sizes[last] <= budget):
            free[last], taken, last = False, taken + sizes[last], last + 1
            if not adjacent[last - 1]:
                break
        if last > first:
            spans.append((starts[first], ends[last - 1]))
    return spans


def _span_lengths(max_span: int | None, count: int, rng: np.random.Generator) -> list[int]:
    if max_span is None:
        return [1] * count
    shares = _GEOMETRIC_P * (1 - _GEOMETRIC_P) ** np.arange(max_span)
    return (rng.choice(max_span, size=count, p=shares / shares.sum()) + 1).tolist()
