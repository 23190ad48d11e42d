"""New tokens of a batch while they are made."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.continuation import method_of
from jaxformer.generation.decode.state import EncoderOutputs
from jaxformer.generation.engine import Engine
from jaxformer.generation.prompts import Batch, batch_of_rows

READ_EVERY = 16
"""Tokens of a batch after which the host looks at them."""


class Part(NamedTuple):
    """What a row got since the last time."""

    tokens: np.ndarray
    """int32 `[n]`."""
    log_probs: np.ndarray
    """float32 `[n]`, in the model's own distribution."""


def token_stream(
    generator: Engine,
    prompts: Batch,
    decoding: GenerationConfig,
    keys: jax.Array,
    *,
    sources: EncoderOutputs = (),
    every: int = 1,
    stopped: Callable[[], np.ndarray] | None = None,
) -> Iterator[list[Part]]:
    """Yields what each row gets, as the device makes it.

    Args:
        generator: The model.
        prompts: B rows.
        decoding: How tokens are chosen.
        keys: Random keys `[B]`.
        sources: What the decoder reads besides.
        every: Tokens after which they are read.
        stopped: Tells which rows bool `[B]` are over for other reasons; they get no more.

    Raises:
        ConfigError: The model has too few positions.
    """
    start = generator.start(prompts, decoding.max_new_tokens, keys=keys, sources=sources)
    told = prompts.lengths
    for state in generator.stream(method_of(decoding), start, every, stopped):
        history, log_probs = jax.device_get((state.history, state.log_probs))
        yield [
            Part(history.tokens[row, old:new], log_probs[row, old:new])
            for row, (old, new) in enumerate(zip(told, history.lengths, strict=True))
        ]
        told = history.lengths


def sliding_stream(
    generator: Engine,
    prompts: Batch,
    decoding: GenerationConfig,
    keys: jax.Array,
    *,
    sources: EncoderOutputs = (),
    every: int = 1,
) -> Iterator[list[Part]]:
    """As `token_stream`, where the model's positions may be too few for prompt and new tokens.

    Whenever they are used up, the last half of what there is is read anew, as a prompt from
    position 0. Penalties see that half, and so does the model.

    Raises:
        ConfigError: The model's positions have no limit, so that nothing has to slide.
    """
    limit = generator.max_length
    if limit is None:
        raise ConfigError("slide = True: the model's positions have no limit; leave it out")
    rows = [prompts.tokens[n, :length] for n, length in enumerate(prompts.lengths)]
    active, done = np.arange(len(rows)), 0
    while len(active) and (left := decoding.max_new_tokens - done):
        windows = [_window(rows[n], limit, left) for n in active]
        step = min(left, limit - max(map(len, windows)))
        fewest = min(step, max(0, decoding.min_new_tokens - done))
        parts = token_stream(
            generator,
            batch_of_rows(windows),
            replace(decoding, max_new_tokens=step, min_new_tokens=fewest),
            jax.vmap(jax.random.fold_in, (0, None))(keys[active], done),
            sources=jax.tree.map(partial(np.take, indices=active, axis=0), sources),
            every=every,
        )
        for part in parts:
            found = dict(zip(active, part, strict=True))
            for n, (tokens, _) in found.items():
                rows[n] = np.concatenate([rows[n], tokens])
            yield [found.get(n, _NOTHING) for n in range(len(rows))]
        ended = np.array([rows[n][-1] in decoding.end_tokens for n in active])
        active, done = active[~ended], done + step


_NOTHING = Part(np.zeros(0, np.int32), np.zeros(0, np.float32))


def _window(row: np.ndarray, limit: int, left: int) -> np.ndarray:
    """What of a row is read: all of it if all that is left fits after it, else the last half."""
    return row if len(row) + left <= limit else row[-max(1, limit // 2) :]
