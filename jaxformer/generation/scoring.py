"""How probable given continuations are: what evaluations by likelihood and multiple choice ask."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.distributed.sharding import on_rows, row_multiple
from jaxformer.errors import ConfigError, DataError, check_argument
from jaxformer.functional.sampling.next_token import greedy, token_log_probabilities
from jaxformer.generation.decode.advance import Generative
from jaxformer.generation.decode.state import EncoderOutputs
from jaxformer.generation.engine import Engine
from jaxformer.generation.prompts import Batch, bucket, token_ids
from jaxformer.models import EncoderDecoder

_LEAST_LENGTH, _LEAST_SCORED = 16, 4

Continuations = Sequence[Sequence[Sequence[int]]]
"""For each prompt several continuations, each with its tokens."""


@dataclass(frozen=True)
class Score:
    """What a model says of one continuation."""

    token_log_probs: np.ndarray
    """float32 `[n]`: the log-probability of each of its tokens, after the prompt and those before
    it."""
    is_greedy: bool
    """Whether each is the most probable one: whether greedy decoding would say just that."""

    @property
    def num_tokens(self) -> int:
        """n, at least 1."""
        return len(self.token_log_probs)

    @property
    def log_prob(self) -> float:
        """The log-probability of the continuation: the sum of those of its tokens."""
        return float(np.sum(self.token_log_probs, dtype=np.float64))

    @property
    def mean_log_prob(self) -> float:
        """That sum divided by the number of tokens."""
        return self.log_prob / self.num_tokens


def best_of(scores: Sequence[Score], by: Literal["sum", "mean"]) -> int:
    r"""The number of the best continuation of a prompt, the first of several.

    .. math:: \arg\max_c \sum_j \log p(c_j) \quad\text{or}\quad
        \arg\max_c \frac{1}{n_c} \sum_j \log p(c_j)

    Args:
        scores: Of its continuations.
        by: "sum" (their probability, which is against long ones) or "mean" (per token).

    Raises:
        ConfigError: `by` is neither.
        DataError: There is no continuation.

    References:
        Brown et al., Language Models are Few-Shot Learners (https://arxiv.org/abs/2005.14165),
        section 2.4.
    """
    if by not in ("sum", "mean"):
        raise ConfigError(f'by = {by!r}: must be "sum" or "mean"')
    if not scores:
        raise DataError("scores: a prompt without continuations has no best one")
    return int(np.argmax([s.log_prob if by == "sum" else s.mean_log_prob for s in scores]))


class Scorer:
    """A generator's model, and the programs that score continuations with it.

    Each continuation is read once, after its prompt, in a pass over several of about the same
    length. What it is given depends on these two alone (but for rounding). Programs are compiled
    for powers of two: of the rows of a pass, of their tokens and of those that are scored.
    """

    def __init__(self, generator: Engine, rows: int = 16):
        """Compiles nothing yet.

        Args:
            generator: The model with its weights.
            rows: The most continuations that are read in one pass.

        Raises:
            ConfigError: `rows` is below 1.
        """
        self.generator, self.rows = generator, rows
        check_fields(self, rows=at_least(1))
        # A full pass stretches the positions of all its rows as the longest of them needs it.
        self._apart = generator.programs.changes_at(np.zeros(1, np.int32)) is not None
        self._score = jax.jit(self._scored)

    def __call__(
        self, prompts: Batch, continuations: Continuations, *, sources: EncoderOutputs = ()
    ) -> list[list[Score]]:
        """Scores the continuations of each prompt.

        Args:
            prompts: The rows; of an encoder-decoder, what its decoder begins with.
            continuations: Their tokens, without special ones that are not to be scored.
            sources: What the decoder reads besides, see `Engine.start`.

        Returns:
            For each prompt the scores of its continuations.

        Raises:
            DataError: A continuation is empty, has a token that is not in the vocabulary, or is
                longer than the model's positions allow; or there is not one list for every prompt.
        """
        _check(self.generator, prompts, continuations)
        asked = [
            _Asked(row, number, prompts.tokens[row, : prompts.lengths[row]], np.asarray(tokens))
            for row, several in enumerate(continuations)
            for number, tokens in enumerate(several)
        ]
        asked.sort(key=lambda one: -one.length)
        size = self._rows_of_a_pass(len(asked))
        step = 1 if self._apart else size
        found = {}
        for first in range(0, len(asked), step):
            part = asked[first : first + step]
            scores = self._pass(part + part[:1] * (size - len(part)), sources)
            found |= {one[:2]: score for one, score in zip(part, scores, strict=False)}
        return [
            [found[row, number] for number in range(len(several))]
            for row, several in enumerate(continuations)
        ]

    def _rows_of_a_pass(self, total: int) -> int:
        return max(row_multiple(self.generator.mesh), min(self.rows, bucket(total, 1)))

    def _pass(self, asked: list["_Asked"], sources: EncoderOutputs) -> list[Score]:
        lengths = np.array([one.length for one in asked], np.int32)
        starts = np.array([len(one.given) - 1 for one in asked], np.int32)
        tokens = np.zeros((len(asked), bucket(int(lengths.max()), _LEAST_LENGTH)), np.int32)
        scored = bucket(max(len(one.tokens) for one in asked), _LEAST_SCORED)
        targets = np.zeros((len(asked), scored), np.int32)
        for row, one in enumerate(asked):
            tokens[row, : lengths[row]] = np.concatenate([one.given, one.tokens[:-1]])
            targets[row, : len(one.tokens)] = one.tokens
        rows = [one.row for one in asked]
        sources = jax.tree.map(partial(np.take, indices=rows, axis=0), sources)
        with self.generator.on_mesh():
            found = self._score(
                self.generator.parameters, tokens, lengths, starts, targets, sources
            )
        log_probs, is_best = jax.device_get(found)
        return [
            Score(log_probs[row, : len(one.tokens)], bool(is_best[row, : len(one.tokens)].all()))
            for row, one in enumerate(asked)
        ]

    def _scored(self, parameters, tokens, lengths, starts, targets, sources):
        model, length = self.generator.programs.module(parameters), tokens.shape[1]
        tokens, targets = on_rows((tokens, targets))
        positions = None
        if self._apart:
            positions = jnp.minimum(jnp.arange(length)[None, :], lengths[:, None] - 1)
        hidden = _hidden(model, tokens, positions, sources)
        # The state before each token that is scored; any state beyond the last of them.
        places = starts[:, None] + jnp.arange(targets.shape[1])[None, :]
        places = on_rows(jnp.minimum(places, length - 1))
        logits = model.logits(jnp.take_along_axis(hidden, places[..., None], axis=1))
        return token_log_probabilities(logits, targets), greedy(logits) == targets


class _Asked(NamedTuple):
    """A continuation, and where it belongs."""

    row: int
    number: int
    given: np.ndarray
    """The prompt's tokens."""
    tokens: np.ndarray
    """Those of the continuation."""

    @property
    def length(self) -> int:
        """How many tokens are read: all but the last."""
        return len(self.given) + len(self.tokens) - 1


def _hidden(model: Generative, tokens, positions, sources: EncoderOutputs) -> jax.Array:
    if not isinstance(model, EncoderDecoder):
        return model.hidden(tokens, positions=positions)
    memory, mask = (*sources, None)[:2]
    return model.decode(tokens, memory, memory_mask=mask, positions=positions)


def _check(generator: Engine, prompts: Batch, continuations: Continuations) -> None:
    expected = "for each prompt a list of continuations, each a list of token ids"
    is_list = isinstance(continuations, Sequence | np.ndarray) and not isinstance(
        continuations, str
    )
    check_argument("continuations", continuations, is_list, expected)
    if len(continuations) != len(prompts.lengths):
        raise DataError(
            f"continuations: there are {len(continuations)} lists, expected one for each of the "
            f"{len(prompts.lengths)} prompts"
        )
    for row, several in enumerate(continuations):
        if isinstance(several, str) or not isinstance(several, Sequence | np.ndarray):
            raise DataError(
                f"continuations: row {row} holds a {type(several).__name__}: must be a list of "
                "continuations, each a list of token ids"
            )
        for number, tokens in enumerate(several):
            name = f"continuations: continuation {number} of row {row}"
            _check_tokens(name, token_ids(name, tokens), generator.config.vocab_size)
            length = int(prompts.lengths[row]) + len(tokens) - 1
            if generator.max_length is not None and length > generator.max_length:
                raise DataError(
                    f"{name} needs {length} places with its prompt of {prompts.lengths[row]} "
                    f"tokens, and the model has {generator.max_length}: shorten one of them"
                )


def _check_tokens(name: str, tokens: np.ndarray, vocab_size: int) -> None:
    if not tokens.size:
        raise DataError(f"{name} is empty: it needs one token at least")
    unknown = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if unknown.size:
        raise DataError(
            f"{name}: token {unknown[0]} is not in the vocabulary, expected 0 to {vocab_size - 1}"
        )
