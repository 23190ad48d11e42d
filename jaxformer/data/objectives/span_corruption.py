"""Span corruption, T5's objective: sentinels replace spans, and the decoder predicts the spans."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from jaxformer.checks import FRACTION, at_least, check_field, check_fields, check_types, optional
from jaxformer.data.objectives.base import Seq2SeqObjective
from jaxformer.data.tokenizers.special_tokens import NUM_SENTINELS, Role
from jaxformer.errors import ConfigError


@dataclass(frozen=True)
class SpanCorruption(Seq2SeqObjective):
    """Predict the spans that sentinels replace.

    With a, b, ... the pieces of text that remain and x, y, ... the spans that are removed:

        inputs  = a <0> b <1> ... </s>
        targets = <0> x <1> y ... <last> </s>,   decoder_inputs = pad, targets without the last

    The numbers of removed tokens and of spans depend only on the length of the text. The
    length is chosen so that the inputs have exactly `sequence_length` tokens, and the targets
    always have the same number. The decoder starts from the padding token.

    T5's vocabulary ends with its sentinels, in reverse order. ByT5 has mean_span=20.

    References:
        Raffel et al. 2020, section 3.1.4, https://arxiv.org/abs/1910.10683; Xue et al. 2022,
        https://arxiv.org/abs/2105.13626 (bytes)
    """

    special_tokens: ClassVar[tuple[Role, ...]] = ("sentinels",)
    longest_row: ClassVar[int] = 512  # T5's

    noise_density: float = 0.15
    """The share of the tokens that are removed."""

    mean_span: float = 3.0
    """The mean number of tokens of a span."""

    final_sentinel: bool = True
    """Whether a sentinel follows the last span, as in the paper but not in T5's published code."""

    target_length: int | None = None
    """The length to which targets are padded, such as a multiple of mesh.sequence. None: no
    padding."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, target_length=optional(at_least(1)), noise_density=FRACTION)
        # Every span needs a remaining token before it.
        least = max(1.0, self.noise_density / (1 - self.noise_density))
        long_enough = least <= self.mean_span < math.inf
        check_field(self, "mean_span", long_enough, f"a finite number from {least:g}")

    def raw_length(self, sequence_length):
        length = 1
        while self._lengths(length + 1)[0] <= sequence_length:
            length += 1
        return length

    def lengths(self, sequence_length):
        _, targets = self._lengths(self.raw_length(sequence_length))
        return {"inputs": sequence_length, "decoder_inputs": self.target_length or targets}

    def validate(self, packing, sequence_length):
        super().validate(packing, sequence_length)
        length = self.raw_length(sequence_length)
        needed = self._sentinels(length)
        if needed > NUM_SENTINELS:
            spans = itertools.count(math.ceil(self.mean_span))
            fits = (replace(self, mean_span=float(span)) for span in spans)
            enough = next(
                x for x in fits if x._sentinels(x.raw_length(sequence_length)) <= NUM_SENTINELS
            )
            raise ConfigError(
                f"sequence_length = {sequence_length} needs {needed} sentinels, but there are "
                f"{NUM_SENTINELS}: choose a shorter one, or an objective.mean_span of at least "
                f"{enough.mean_span:g}"
            )
        _, least = self._lengths(length)
        holds = self.target_length is None or self.target_length >= least
        check_field(self, "target_length", holds, f"at least the {least} tokens of the targets")

    def _sentinels(self, length: int) -> int:
        """The sentinels of a text."""
        _, spans = noise_counts(length, self.noise_density, self.mean_span)
        return spans + self.final_sentinel

    def start_id(self, tokenizer):
        return tokenizer.pad_id

    def corruption(self, tokenizer):
        sentinels = tokenizer.special_ids("sentinels")
        end_id = tokenizer.end_of_text_id

        def corrupted(tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
            noise = noise_mask(len(tokens), self.noise_density, self.mean_span, rng)
            source, targets = corrupt(tokens, noise, sentinels, self.final_sentinel)
            return np.append(source, end_id), np.append(targets, end_id)

        return corrupted

    def _lengths(self, length: int) -> tuple[int, int]:
        """The numbers of tokens of the inputs and targets of a text, with their end-of-text."""
        noise, spans = noise_counts(length, self.noise_density, self.mean_span)
        return length - noise + spans + 1, noise + spans + self.final_sentinel + 1


def noise_counts(length: int, density: float, mean_span: float) -> tuple[int, int]:
    """Returns how many of a text's tokens are removed, and in how many spans.

        noise = round(density * length),  spans = round(noise / mean_span)

    Both are at least one, and at least one token remains before every span.
    """
    if length < 2:
        return 0, 0
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), length - noise)


def noise_mask(
    length: int, density: float, mean_span: float, rng: np.random.Generator
) -> np.ndarray:
    """Returns which tokens are removed: bool [length]; all masks with these counts are equally
    likely.

    The text is cut into stretches that alternately remain and are removed, from a first one that
    remains to a last one that is removed.
    """
    noise, spans = noise_counts(length, density, mean_span)
    if not spans:
        return np.zeros(length, bool)
    stretches = np.empty(2 * spans, np.int64)
    stretches[0::2] = _partition(length - noise, spans, rng)
    stretches[1::2] = _partition(noise, spans, rng)
    return np.repeat(np.arange(2 * spans) % 2 == 1, stretches)


def corrupt(
    tokens: np.ndarray, noise: np.ndarray, sentinels: np.ndarray, final_sentinel: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the text with a sentinel for each removed span, and the spans after sentinels."""
    starts = noise & ~np.concatenate([[False], noise[:-1]])
    used = sentinels[: starts.sum()]
    source = tokens.copy()
    source[starts] = used
    targets = np.insert(tokens[noise], np.flatnonzero(starts[noise]), used)
    if final_sentinel:
        targets = np.append(targets, sentinels[len(used)])
    return source[~noise | starts], targets


def _partition(count: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Cuts `count` items into non-empty parts, every way equally likely: int [parts]."""
    cuts = np.sort(rng.choice(count - 1, size=parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=count)
