"""The new tokens of a batch: all at once, as a stream, or up to a stop string.

Every engine may be a speculative one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from tokenizers import Tokenizer

from jaxformer.errors import ConfigError
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.beam import Hypotheses
from jaxformer.generation.decode.loop import AnyState, EncoderOutputs, SamplingParams
from jaxformer.generation.engine import Engine, available_bytes, num_bytes, row_keys
from jaxformer.generation.inputs import Prompts, are_real
from jaxformer.generation.text_stream import TextStream

READ_EVERY = 16
"""The number of tokens per row after which the host reads them."""


@dataclass(frozen=True)
class NewTokens:
    """The new tokens of B rows, in arrays as wide as the longest row (N)."""

    tokens: np.ndarray
    """int32 `[B, N]`, 0 beyond a row's length."""
    lengths: np.ndarray
    """int32 `[B]`: the number of new tokens of each row."""
    log_probs: np.ndarray
    """float32 `[B, N]`: the model's log-probabilities, 0 beyond a row's length."""
    scores: np.ndarray | None = None
    """float32 `[N, B, V]`: the logits from which the tokens were chosen."""

    @classmethod
    def of_stream(cls, parts: Iterable[Sequence[tuple[np.ndarray, np.ndarray]]]) -> "NewTokens":
        """Collects a stream of each row's tokens and log-probabilities."""
        rows = [
            [np.concatenate(each) for each in zip(*row, strict=True)]
            for row in zip(*parts, strict=True)
        ]
        tokens, lengths, _ = Prompts.of_rows([row[0] for row in rows])
        log_probs = np.zeros(tokens.shape, np.float32)
        for n, (_, values) in enumerate(rows):
            log_probs[n, : len(values)] = values
        return cls(tokens, lengths, log_probs)

    def up_to(self, lengths: np.ndarray) -> "NewTokens":
        """Returns the first tokens of each row, at most as many as it has."""
        longest = int(lengths.max())
        real = are_real(lengths, longest)
        return NewTokens(
            np.where(real, self.tokens[:, :longest], 0),
            lengths,
            np.where(real, self.log_probs[:, :longest], 0.0),
            None if self.scores is None else self.scores[:longest],
        )


def new_tokens(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    keys: jax.Array,
    *,
    encoder_outputs: EncoderOutputs = (),
    keep_scores: bool = False,
) -> NewTokens:
    """Continues prompts greedily or by sampling, with PRNG keys `[B]`."""
    most = config.max_new_tokens
    options = {"encoder_outputs": encoder_outputs, "keep_scores": keep_scores}
    state = engine.prefill(prompts, most, keys=keys, **options)
    state = engine.decode(config.sampling, state, most)
    history, log_probs, scores = jax.device_get((state.history, state.log_probs, state.scores))
    lengths = history.lengths - history.prompt_lengths
    longest = int(lengths.max())
    positions = history.prompt_lengths[:, None] + np.arange(longest)[None, :]
    positions = np.where(are_real(lengths, longest), positions, 0)
    tokens, log_probs = (np.take_along_axis(x, positions, 1) for x in (history.tokens, log_probs))
    return NewTokens(tokens, lengths, log_probs, scores).up_to(lengths)


class Part(NamedTuple):
    """The tokens of a row since the part before."""

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
    """Yields the state after every few steps, until all rows are finished or `stopped`.

    The device computes the next state while the caller reads the last one.
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
    """Yields the new tokens of each row as the device generates them, after every few.

    `stopped` tells which rows bool `[B]` are finished for other reasons.
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
    0. The model and the penalties see only that half.
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


def continuations(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    tokenizer: Tokenizer | None,
    *,
    first: int = 0,
    slide: bool = False,
    encoder_outputs: EncoderOutputs = (),
    keep_scores: bool = False,
) -> NewTokens | Hypotheses:
    """Continues each prompt `num_return_sequences` times: to a stop string, or in a window.

    With several beams these are the best hypotheses. The tokenizer decodes the tokens if there are
    stop strings. A row's samples depend on its number, so `first` counts the prompts of earlier
    batches. `slide`: see `stream_sliding`.
    """
    if config.num_beams > 1:
        return engine.beam_search(prompts, config, encoder_outputs=encoder_outputs)
    count = config.num_return_sequences
    prompts, encoder_outputs = repeat_rows((prompts, encoder_outputs), count)
    keys = row_keys(config.seed, count * first + np.arange(len(prompts.lengths)))
    arguments = engine, prompts, config, keys
    if slide:
        stream = stream_sliding(*arguments, encoder_outputs=encoder_outputs, every=READ_EVERY)
        return NewTokens.of_stream(stream)
    options = {"encoder_outputs": encoder_outputs, "keep_scores": keep_scores}
    if config.stop_strings:
        return _stopped_tokens(*arguments, tokenizer, **options)
    return new_tokens(*arguments, **options)


def _stopped_tokens(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    keys: jax.Array,
    tokenizer: Tokenizer,
    *,
    encoder_outputs: EncoderOutputs = (),
    keep_scores: bool = False,
) -> NewTokens:
    """Like `new_tokens`, up to the token that completes a stop string; with scores, all steps
    run.
    """
    texts = [TextStream(tokenizer, config.stop_strings) for _ in prompts.lengths]
    arguments = engine, prompts, config, keys
    if keep_scores:
        found = new_tokens(*arguments, encoder_outputs=encoder_outputs, keep_scores=True)
    else:

        def parts():
            stopped = lambda: np.array([text.finished for text in texts])  # noqa: E731
            options = {"encoder_outputs": encoder_outputs, "every": READ_EVERY, "stopped": stopped}
            for rows in stream_tokens(*arguments, **options):
                for text, part in zip(texts, rows, strict=True):
                    text.push(part.tokens)
                yield rows

        found = NewTokens.of_stream(parts())
    rows = zip(found.tokens, found.lengths, strict=True)
    lengths = [_length(tokenizer, config.stop_strings, row[:length]) for row, length in rows]
    return found.up_to(np.array(lengths, np.int32))


def _length(tokenizer: Tokenizer, strings: Sequence[str], tokens: np.ndarray) -> int:
    """The number of tokens up to the one that completes a stop string; all if none does."""
    text, length = TextStream(tokenizer, strings), 0
    while length < len(tokens) and not text.finished:
        text.push(tokens[length : length + 1])
        length += 1
    # A run of bytes is decoded at its end, and may have been complete before.
    while text.finished and length > 1:
        text = TextStream(tokenizer, strings)
        text.push(tokens[: length - 1])
        text.flush()
        if text.stopped_by is None:
            break
        length -= 1
    return length


def repeat_rows(arrays: Any, count: int) -> Any:
    """Repeats each row of a tree of arrays `[B, ...]`, as `[B count, ...]`, if there is memory."""
    needed = count * num_bytes(arrays)
    available = available_bytes(jax.local_devices())
    if needed > available:
        raise ConfigError(
            f"num_return_sequences = {count}: the prompts alone need {needed / 1e9:,.1f} GB of "
            f"memory, and there are {available / 1e9:,.1f} GB: ask for fewer"
        )
    return jax.tree.map(partial(np.repeat, repeats=count, axis=0), arrays)
