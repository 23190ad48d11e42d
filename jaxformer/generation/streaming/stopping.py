"""New tokens up to those that complete a stop string."""

from collections.abc import Sequence

import jax
import numpy as np
from tokenizers import Tokenizer

from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import Engine, NewTokens, new_tokens
from jaxformer.generation.prompts import Prompts
from jaxformer.generation.streaming.text_stream import TextStream
from jaxformer.generation.streaming.token_stream import READ_EVERY, stream_tokens


def stopped_tokens(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    keys: jax.Array,
    tokenizer: Tokenizer,
    *,
    encoder_outputs: EncoderOutputs = (),
    keep_scores: bool = False,
) -> NewTokens:
    """Continues prompts as `new_tokens` does, to the token that completes a stop string.

    Args:
        engine: The engine, speculative or not.
        prompts: The prompts.
        config: The options, with `stop_strings`.
        keys: PRNG keys `[B]`.
        tokenizer: Decodes the tokens.
        encoder_outputs: The encoder's output and its mask, for an encoder-decoder.
        keep_scores: Whether to keep the logits of every step; then all steps are computed.

    Returns:
        The new tokens.

    Raises:
        ConfigError: The model has too few positions.
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
