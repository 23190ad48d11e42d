"""The new tokens of a batch while they are generated."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.loop import AnyState, EncoderOutputs, SamplingParams
from jaxformer.generation.engine import Engine
from jaxformer.generation.prompts import Prompts

READ_EVERY = 16
"""The number of tokens after which the host reads those of a batch."""


class Part(NamedTuple):
    """The tokens that a row has got since the part before."""

    tokens: np.ndarray
    """int32 `[n]`."""
    log_probs: np.ndarray
    """float32 `[n]`: the model's log-probabilities."""


def stream_states(
    engine: Engine,
    sampling: SamplingParams,
    state: AnyState,
    every: int,
    stopped: Callable[[], np.ndarray] | None = None,
) -> Iterator[AnyState]:
    """Yields the state after every few steps, until all rows are finished.

    The device computes the next state while the caller reads the last one.

    Args:
        engine: The engine, speculative or not.
        sampling: How tokens are chosen.
        state: The state after prefill; its cache is donated.
        every: The number of steps.
        stopped: Tells, after each state, which rows bool `[B]` are finished for other reasons.

    Yields:
        The states.
    """
    state = engine.decode(sampling, state, every)
    while True:
        upcoming = engine.decode(sampling, state, every)
        yield state
        if not np.any(jax.device_get(state.active)):
            return
        state = upcoming
        if stopped is not None:
            state = replace(state, active=state.active & ~stopped())


def stream_tokens(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    keys: jax.Array,
    *,
    encoder_outputs: EncoderOutputs = (),
    every: int = 1,
    stopped: Callable[[], np.ndarray] | None = None,
) -> Iterator[list[Part]]:
    """Yields the new tokens of each row as the device generates them.

    Args:
        engine: The engine, speculative or not.
        prompts: B prompts.
        config: The options.
        keys: PRNG keys `[B]`.
        encoder_outputs: The encoder's output and its mask, for an encoder-decoder.
        every: The number of tokens after which they are read.
        stopped: Tells which rows bool `[B]` are finished for other reasons.

    Yields:
        A part for each row.

    Raises:
        ConfigError: The model has too few positions.
    """
    most = config.max_new_tokens
    start = engine.prefill(prompts, most, keys=keys, encoder_outputs=encoder_outputs)
    read = prompts.lengths
    for state in stream_states(engine, config.sampling, start, every, stopped):
        history, log_probs = jax.device_get((state.history, state.log_probs))
        yield [
            Part(history.tokens[row, old:new], log_probs[row, old:new])
            for row, (old, new) in enumerate(zip(read, history.lengths, strict=True))
        ]
        read = history.lengths


def stream_sliding(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    keys: jax.Array,
    *,
    encoder_outputs: EncoderOutputs = (),
    every: int = 1,
) -> Iterator[list[Part]]:
    """Yields new tokens as `stream_tokens` does, beyond the number of positions of the model.

    Whenever the positions are used up, the last half of the text becomes the prompt, from position
    0. The model and the penalties see that half only.

    Args:
        engine: The engine, speculative or not.
        prompts: B prompts.
        config: The options.
        keys: PRNG keys `[B]`.
        encoder_outputs: The encoder's output and its mask, for an encoder-decoder.
        every: The number of tokens after which they are read.

    Yields:
        A part for each row.

    Raises:
        ConfigError: The number of positions is not limited.
    """
    limit = engine.max_length
    if limit is None:
        raise ConfigError("slide = True: the model's positions have no limit; leave it out")
    rows = [prompts.tokens[n, :length] for n, length in enumerate(prompts.lengths)]
    active, done = np.arange(len(rows)), 0
    while len(active) and (left := config.max_new_tokens - done):
        windows = [_window(rows[n], limit, left) for n in active]
        step = min(left, limit - max(map(len, windows)))
        fewest = min(step, max(0, config.min_new_tokens - done))
        parts = stream_tokens(
            engine,
            Prompts.of_rows(windows)._replace(
                source=None if prompts.source is None else prompts.source[active]
            ),
            replace(config, max_new_tokens=step, min_new_tokens=fewest),
            jax.vmap(jax.random.fold_in, (0, None))(keys[active], done),
            encoder_outputs=jax.tree.map(partial(np.take, indices=active, axis=0), encoder_outputs),
            every=every,
        )
        for part in parts:
            found = dict(zip(active, part, strict=True))
            for n, (tokens, _) in found.items():
                rows[n] = np.concatenate([rows[n], tokens])
            yield [found.get(n, _NOTHING) for n in range(len(rows))]
        ended = np.array([rows[n][-1] in config.end_tokens for n in active])
        active, done = active[~ended], done + step


_NOTHING = Part(np.zeros(0, np.int32), np.zeros(0, np.float32))


def _window(row: np.ndarray, limit: int, left: int) -> np.ndarray:
    """The part of a row to read: all of it if the rest fits after it, else the last half."""
    return row if len(row) + left <= limit else row[-max(1, limit // 2) :]
