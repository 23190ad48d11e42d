"""Denoising, BART's objective: the encoder reads a corrupted text, which the decoder restores."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxformer.checks import POSITIVE, PROBABILITY, RATE, check_fields, check_types
from jaxformer.data.objectives.base import Seq2SeqObjective
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer

_SENTENCE_ENDS = (".", "!", "?", "\n")


@dataclass(frozen=True)
class Denoising(Seq2SeqObjective):
    """Predict the full text from a version with shuffled sentences, masked spans and gaps.

        inputs  = [CLS] infill(delete(permute(x))) </s>
        targets = [CLS] x </s>,   decoder_inputs = </s>, targets without the last

    Sentences end with ".", "!", "?" or a line break. Infilling puts one mask token in the place of
    a span of Poisson(mean_span) tokens, until a share of `mask_ratio` of the tokens is hidden; an
    empty span is a mask token where nothing is missing. The defaults are those of BART's training.

    References:
        Lewis et al. 2019, section 2.2, https://arxiv.org/abs/1910.13461
    """

    special_tokens: ClassVar[tuple[Role, ...]] = ("cls", "mask")

    mask_ratio: float = 0.3
    """The share of the tokens that infilling masks."""

    mean_span: float = 3.0
    """The mean length of the masked spans."""

    deletion: float = 0.0
    """The share of the tokens that are deleted without a mask."""

    permute_sentences: bool = True
    """Whether the sentences are shuffled."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, mask_ratio=PROBABILITY, mean_span=POSITIVE, deletion=RATE)

    def raw_length(self, sequence_length):
        return sequence_length - 2

    def lengths(self, sequence_length):
        return {"inputs": sequence_length, "decoder_inputs": sequence_length}

    def start_id(self, tokenizer):
        return tokenizer.end_of_text_id

    def corruption(self, tokenizer):
        end_id = tokenizer.end_of_text_id
        (first_id,), (mask_id,) = (tokenizer.special_ids(role) for role in ("cls", "mask"))
        sentence_ends = ends_of_sentences(tokenizer)

        def corrupted(tokens: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
            noisy = tokens
            if self.permute_sentences:
                noisy = permute_sentences(noisy, sentence_ends[noisy], rng)
            noisy = delete(noisy, self.deletion, rng)
            noisy = infill(noisy, self.mask_ratio, self.mean_span, mask_id, rng)
            return tuple(np.array([first_id, *part, end_id]) for part in (noisy, tokens))

        return corrupted


def ends_of_sentences(tokenizer: Tokenizer) -> np.ndarray:
    """Returns which ids end a sentence or a document: bool [V]."""
    ends = np.array(
        [piece is not None and piece.endswith(_SENTENCE_ENDS) for piece in tokenizer.pieces()]
    )
    ends[tokenizer.end_of_text_id] = True
    return ends


def permute_sentences(tokens: np.ndarray, ends: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the sentences in random order."""
    sentences = np.split(tokens, np.flatnonzero(ends[:-1]) + 1)
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


def delete(tokens: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the tokens [n] without round(share n) of them, but at least one."""
    count = min(round(share * len(tokens)), len(tokens) - 1)
    return np.delete(tokens, rng.choice(len(tokens), size=count, replace=False))


def infill(
    tokens: np.ndarray, ratio: float, mean_span: float, mask_id: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the tokens with one mask in place of each masked span.

    Span lengths are drawn until they hold round(ratio n) tokens, the last cut to fit; then the
    spans and the remaining tokens are laid out in an order drawn uniformly. Empty spans only add a
    mask; there are at most as many spans as hidden tokens, so the text never grows.
    """
    budget = round(ratio * len(tokens))
    lengths: list[int] = []
    while budget > sum(lengths):
        lengths.append(min(int(rng.poisson(mean_span)), budget - sum(lengths)))
    empty = [length for length in lengths if not length]
    spans = [length for length in lengths if length]
    spans += empty[: budget - len(spans)]
    # Items in random order: a span, or one token that stays.
    items = np.concatenate([np.array(spans, int), np.full(len(tokens) - budget, -1)])
    rng.shuffle(items)
    ends = np.cumsum(np.abs(items))
    return np.where(items < 0, tokens[ends - 1], mask_id)
