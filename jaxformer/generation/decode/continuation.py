"""What is added to a batch of prompts, from the first token to the last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.loop import Method
from jaxformer.generation.decode.state import EncoderOutputs
from jaxformer.generation.engine import Engine
from jaxformer.generation.prompts import Batch, are_real, batch_of_rows


@dataclass(frozen=True)
class Continuations:
    """New tokens of B rows, in arrays as wide as the longest of them, N."""

    tokens: np.ndarray
    """int32 `[B, N]`, 0 beyond a row's length."""
    lengths: np.ndarray
    """int32 `[B]`: how many tokens each row got."""
    log_probs: np.ndarray
    """float32 `[B, N]`: of each in the model's own distribution, 0 beyond a row's length."""
    scores: np.ndarray | None = None
    """float32 `[N, B, V]`: the logits from which they were chosen."""


def method_of(decoding: GenerationConfig) -> Method:
    """How tokens are chosen where there are no beams."""
    return Method(decoding.processors(), decoding.draws, decoding.end_tokens)


def continuations(
    generator: Engine,
    prompts: Batch,
    decoding: GenerationConfig,
    keys: jax.Array,
    *,
    sources: EncoderOutputs = (),
    keep_scores: bool = False,
) -> Continuations:
    """Adds tokens to prompts, greedily or by drawing.

    Args:
        generator: The model.
        prompts: The rows.
        decoding: How.
        keys: Random keys `[B]`.
        sources: What the decoder reads besides.
        keep_scores: Whether to keep the logits of every step.

    Raises:
        ConfigError: The model has too few positions.
    """
    most = decoding.max_new_tokens
    state = generator.start(prompts, most, keys=keys, sources=sources, keep_scores=keep_scores)
    state = generator.run(method_of(decoding), state, most)
    history, log_probs, scores = jax.device_get((state.history, state.log_probs, state.scores))
    lengths = history.lengths - history.prompt_lengths
    longest = int(lengths.max())
    places = history.prompt_lengths[:, None] + np.arange(longest)[None, :]
    real = are_real(lengths, longest)
    places = np.where(real, places, 0)
    tokens, log_probs = (np.take_along_axis(x, places, 1) for x in (history.tokens, log_probs))
    return Continuations(
        np.where(real, tokens, 0),
        lengths,
        np.where(real, log_probs, 0.0),
        None if scores is None else scores[:longest],
    )


def collected(parts: Iterable[Sequence[tuple[np.ndarray, np.ndarray]]]) -> Continuations:
    """What a stream of tokens and log-probabilities of each row amounts to."""
    rows = [
        [np.concatenate(each) for each in zip(*row, strict=True)]
        for row in zip(*parts, strict=True)
    ]
    tokens = batch_of_rows([row[0] for row in rows])
    log_probs = np.zeros(tokens.tokens.shape, np.float32)
    for n, (_, values) in enumerate(rows):
        log_probs[n, : len(values)] = values
    return Continuations(tokens.tokens, tokens.lengths, log_probs)
