"""What is added to a batch of prompts, from the first token to the last."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.generation.batch import Batch
from jaxformer.generation.generator import Generator, Sources
from jaxformer.generation.loop import Method
from jaxformer.generation.options import Decoding


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


def method_of(decoding: Decoding) -> Method:
    """How tokens are chosen where there are no beams."""
    return Method(decoding.processors(), decoding.draws, decoding.end_tokens)


def continuations(
    generator: Generator,
    prompts: Batch,
    decoding: Decoding,
    keys: jax.Array,
    *,
    sources: Sources = (),
    keep_scores: bool = False,
) -> Continuations:
    """Adds tokens to prompts, greedily or by drawing.

    Args:
      generator: the model.
      prompts: the rows.
      decoding: how.
      keys: random keys `[B]`.
      sources: what the decoder reads besides.
      keep_scores: whether to keep the logits of every step.

    Raises:
      ConfigError: the model has too few positions.
    """
    most = decoding.max_new_tokens
    state = generator.start(prompts, most, keys=keys, sources=sources, keep_scores=keep_scores)
    state = generator.run(method_of(decoding), state, most)
    history, log_probs, scores = jax.device_get((state.history, state.log_probs, state.scores))
    lengths = history.lengths - history.prompt_lengths
    longest = int(lengths.max())
    places = history.prompt_lengths[:, None] + np.arange(longest)[None, :]
    real = np.arange(longest)[None, :] < lengths[:, None]
    places = np.where(real, places, 0)
    tokens, log_probs = (np.take_along_axis(x, places, 1) for x in (history.tokens, log_probs))
    return Continuations(
        np.where(real, tokens, 0),
        lengths,
        np.where(real, log_probs, 0.0),
        None if scores is None else scores[:longest],
    )


def sliding_continuations(
    generator: Generator,
    prompts: Batch,
    decoding: Decoding,
    keys: jax.Array,
    *,
    sources: Sources = (),
) -> Continuations:
    """As `continuations`, where the model's positions may be too few for prompt and new tokens.

    Whenever they are used up, the last half of what there is is read anew, as a prompt from
    position 0. Penalties see that half, and so does the model.

    Raises:
      ConfigError: the model's positions have no limit, so that nothing has to slide.
    """
    limit = generator.max_length
    if limit is None:
        raise ConfigError("slide = True: the model's positions have no limit; leave it out")
    rows = [prompts.tokens[n, :length] for n, length in enumerate(prompts.lengths)]
    added = [_nothing() for _ in rows]
    left, active, turn = decoding.max_new_tokens, np.arange(len(rows)), 0
    while len(active) and left:
        windows = [_window(rows[n], limit, left) for n in active]
        longest = max(map(len, windows))
        step = min(left, limit - longest)
        part = continuations(
            generator,
            _batch(windows),
            replace(
                decoding,
                max_new_tokens=step,
                min_new_tokens=min(step, max(0, decoding.min_new_tokens - turn)),
            ),
            jax.vmap(jax.random.fold_in, (0, None))(keys[active], turn),
            sources=jax.tree.map(partial(np.take, indices=active, axis=0), sources),
        )
        for place, n in enumerate(active):
            kept = slice(None, part.lengths[place])
            new = part.tokens[place, kept], part.log_probs[place, kept]
            added[n] = tuple(np.concatenate(pair) for pair in zip(added[n], new, strict=True))
            rows[n] = np.concatenate([rows[n], new[0]])
        ended = [rows[n][-1] in decoding.end_tokens for n in active]
        left, turn, active = left - step, turn + step, active[~np.asarray(ended)]
    tokens = _batch([pair[0] for pair in added])
    log_probs = np.zeros(tokens.tokens.shape, np.float32)
    for n, (_, values) in enumerate(added):
        log_probs[n, : len(values)] = values
    return Continuations(tokens.tokens, tokens.lengths, log_probs)


def _nothing() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(0, np.int32), np.zeros(0, np.float32)


def _window(row: np.ndarray, limit: int, left: int) -> np.ndarray:
    """What of a row is read: all of it if all that is left fits after it, else the last half."""
    return row if len(row) + left <= limit else row[-max(1, limit // 2) :]


def _batch(rows: list[np.ndarray]) -> Batch:
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = row
    return Batch(tokens, lengths)
