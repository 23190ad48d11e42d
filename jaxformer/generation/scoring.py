"""Log-probabilities of given continuations, for evaluation by likelihood and multiple choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.distributed.sharding import on_rows, row_multiple
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.arrays import whole_rows
from jaxformer.functional.sampling.next_token import greedy, token_log_probabilities
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import Engine, engine_for
from jaxformer.generation.inputs import Inputs, Prompts, bucket, prepare_inputs, token_ids
from jaxformer.pretrained.dialogues import conversations_in, prompts_of
from jaxformer.pretrained.model import Pretrained, check_pretrained

_LEAST_LENGTH, _LEAST_SCORED = 16, 4

Continuations = Sequence[Sequence[Sequence[int]]]
"""For each prompt several continuations, each with its tokens."""


@dataclass(frozen=True)
class Score:
    """The score of one continuation."""

    token_log_probs: np.ndarray
    """float32 `[n]`: the log-probability of each token, given the prompt and the tokens before."""
    is_greedy: bool
    """Whether greedy decoding gives this continuation."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens (n), at least 1."""
        return len(self.token_log_probs)

    @property
    def log_prob(self) -> float:
        """The log-probability of the continuation: the sum over its tokens."""
        return float(np.sum(self.token_log_probs, dtype=np.float64))

    @property
    def mean_log_prob(self) -> float:
        """The mean log-probability of its tokens."""
        return self.log_prob / self.num_tokens


def best_of(scores: Sequence[Score], by: Literal["sum", "mean"]) -> int:
    r"""The index of the best continuation of a prompt, the first in case of ties.

    .. math:: \arg\max_c \sum_j \log p(c_j) \quad\text{or}\quad
        \arg\max_c \frac{1}{n_c} \sum_j \log p(c_j)
    """
    if by not in ("sum", "mean"):
        raise ConfigError(f'by = {by!r}: must be "sum" or "mean"')
    if not scores:
        raise DataError("scores: a prompt without continuations has no best one")
    return int(np.argmax([s.log_prob if by == "sum" else s.mean_log_prob for s in scores]))


def score(
    pretrained: Pretrained, inputs: Inputs, continuations: Continuations
) -> list[list[Score]]:
    """Log-probabilities of continuations, for evaluation by likelihood and multiple choice.

    Args:
        pretrained: The model.
        inputs: The prompts, as for `generate`.
        continuations: For each prompt a list of continuations, each a list of token ids (without
            special tokens, unless they are to be scored).

    Returns:
        For each prompt the scores of its continuations; `best_of` chooses.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: The model does not predict the next token.
        DataError: A text is longer than the model's positions; a prompt or continuation is empty,
            or contains a token that is not in the vocabulary.
    """
    check_pretrained("pretrained", pretrained)
    if (chats := conversations_in(inputs)) is not None:
        inputs = prompts_of(pretrained, chats)
    _, prompts, encoder_outputs = prepare_inputs(pretrained, inputs)
    scorer = Scorer(engine_for(pretrained))
    return scorer(prompts, continuations, encoder_outputs=encoder_outputs)


class Scorer:
    """Scores continuations with the model of an engine.

    A pass reads several continuations of about the same length, each after its prompt. A score
    depends only on the prompt and the continuation (except for rounding). Programs are compiled for
    powers of two: of the rows of a pass, of their tokens and of the tokens that are scored.
    """

    def __init__(self, engine: Engine, rows: int = 16):
        """Keeps the engine; programs are compiled later."""
        self.engine, self.rows = engine, rows
        # Positions that depend on the length use that of the longest row, so rows are read
        # separately.
        self._apart = engine.changes_at(np.zeros(1, np.int32)) is not None
        self._score = jax.jit(self._scored)

    def __call__(
        self,
        prompts: Prompts,
        continuations: Continuations,
        *,
        encoder_outputs: EncoderOutputs = (),
    ) -> list[list[Score]]:
        """Scores the continuations of each prompt."""
        _check(self.engine, prompts, continuations)
        requests = [
            _Request(row, number, prompts.tokens[row, : prompts.lengths[row]], np.asarray(tokens))
            for row, several in enumerate(continuations)
            for number, tokens in enumerate(several)
        ]
        requests.sort(key=lambda each: -each.length)
        size = max(row_multiple(self.engine.mesh), min(self.rows, bucket(len(requests), 1)))
        step = 1 if self._apart else size
        found = {}
        for first in range(0, len(requests), step):
            part = requests[first : first + step]
            scores = self._pass(part + part[:1] * (size - len(part)), encoder_outputs)
            found |= {each[:2]: score for each, score in zip(part, scores, strict=False)}
        return [
            [found[row, number] for number in range(len(several))]
            for row, several in enumerate(continuations)
        ]

    def _pass(self, requests: list["_Request"], encoder_outputs: EncoderOutputs) -> list[Score]:
        lengths = np.array([each.length for each in requests], np.int32)
        starts = np.array([len(each.prompt) - 1 for each in requests], np.int32)
        tokens = np.zeros((len(requests), bucket(int(lengths.max()), _LEAST_LENGTH)), np.int32)
        scored = bucket(max(len(each.tokens) for each in requests), _LEAST_SCORED)
        targets = np.zeros((len(requests), scored), np.int32)
        for row, each in enumerate(requests):
            tokens[row, : lengths[row]] = np.concatenate([each.prompt, each.tokens[:-1]])
            targets[row, : len(each.tokens)] = each.tokens
        rows = [each.row for each in requests]
        encoder_outputs = jax.tree.map(partial(np.take, indices=rows, axis=0), encoder_outputs)
        with self.engine.on_mesh():
            found = self._score(
                self.engine.weights, tokens, lengths, starts, targets, encoder_outputs
            )
        log_probs, is_best = jax.device_get(found)
        return [
            Score(log_probs[row, : len(each.tokens)], bool(is_best[row, : len(each.tokens)].all()))
            for row, each in enumerate(requests)
        ]

    def _scored(self, weights, tokens, lengths, starts, targets, encoder_outputs):
        model = self.engine.module(weights)
        length = tokens.shape[1]
        tokens, targets = on_rows((tokens, targets))
        positions = None
        if self._apart:
            positions = jnp.minimum(jnp.arange(length)[None, :], lengths[:, None] - 1)
        if encoder_outputs:
            outputs, mask = (*encoder_outputs, None)[:2]
            hidden_BTD = model.decode(tokens, outputs, encoder_mask=mask, positions=positions)
        else:
            hidden_BTD = model.hidden(tokens, positions=positions)
        # The state before each token that is scored; unspecified beyond the last of them.
        read = starts[:, None] + jnp.arange(targets.shape[1])[None, :]
        read = on_rows(jnp.minimum(read, length - 1))
        hidden_BnD = jnp.take_along_axis(whole_rows(hidden_BTD), read[..., None], axis=1)
        logits_BnV = model.logits(hidden_BnD)
        return token_log_probabilities(logits_BnV, targets), greedy(logits_BnV) == targets


class _Request(NamedTuple):
    """A continuation to score, with the number of its row and its own number."""

    row: int
    number: int
    prompt: np.ndarray
    """The prompt's tokens."""
    tokens: np.ndarray
    """The continuation's tokens."""

    @property
    def length(self) -> int:
        """The number of tokens to read: all but the last."""
        return len(self.prompt) + len(self.tokens) - 1


def _check(engine: Engine, prompts: Prompts, continuations: Continuations) -> None:
    expected = "for each prompt a list of continuations, each a list of token ids"
    check_argument("continuations", continuations, _is_list(continuations), expected)
    if len(continuations) != len(prompts.lengths):
        raise DataError(
            f"continuations: there are {len(continuations)} lists, expected one for each of the "
            f"{len(prompts.lengths)} prompts"
        )
    for row, several in enumerate(continuations):
        if not _is_list(several):
            raise DataError(
                f"continuations: row {row} holds a {type(several).__name__}: must be a list of "
                "continuations, each a list of token ids"
            )
        for number, tokens in enumerate(several):
            name = f"continuations: continuation {number} of row {row}"
            ids, most = token_ids(name, tokens), engine.config.vocab_size - 1
            if not ids.size:
                raise DataError(f"{name} is empty: it needs at least one token")
            if (unknown := ids[(ids < 0) | (ids > most)]).size:
                raise DataError(
                    f"{name}: token {unknown[0]} is not in the vocabulary, expected 0 to {most}"
                )
            length = int(prompts.lengths[row]) + len(tokens) - 1
            if engine.max_length is not None and length > engine.max_length:
                raise DataError(
                    f"{name} needs {length} positions with its prompt of {prompts.lengths[row]} "
                    f"tokens, and the model has {engine.max_length}: shorten one of them"
                )


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
