"""Generation as a pure function of arrays, for programs that compile it themselves."""

import jax
import jax.numpy as jnp

from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.beam import BeamSearch, beam_search
from jaxformer.generation.decode.loop import (
    EncoderOutputs,
    generate_token,
    generate_tokens,
    init_state,
    prefill,
)
from jaxformer.generation.decode.processors import History
from jaxformer.models.decoder import GenerativeModel
from jaxformer.nn.cache import CacheShape


def generate_rows(
    model: GenerativeModel,
    ids: jax.Array,
    mask: jax.Array,
    config: GenerationConfig,
    key: jax.Array,
    *,
    encoder_outputs: EncoderOutputs = (),
    source: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """Continues prompts.

    Args:
        model: The model.
        ids: int `[B, T]`: the prompts.
        mask: `[B, T]`, 1 at real tokens, 0 at padding on either side.
        config: The options, with `max_new_tokens` (N).
        key: The key for sampling.
        encoder_outputs: The encoder's output and its mask, for an encoder-decoder.
        source: int `[B, R]`: the tokens that an encoder has read, -1 at padding.

    Returns:
        "sequences" `[B n, T + N]` with n = num_return_sequences: the prompts as given and the new
        tokens, padded on the right; with beams also their "scores" `[B n]`.
    """
    several = 1 if config.num_beams > 1 else config.num_return_sequences
    ids, mask, source, encoder_outputs = jax.tree.map(
        lambda x: jnp.repeat(x, several, axis=0), (ids, mask, source, encoder_outputs)
    )
    width, most = ids.shape[1], config.max_new_tokens
    history = _history(ids, mask, most, source)
    size = width + most
    shape = CacheShape(len(ids), capacity=size, chunk=size, storage=str(jnp.dtype(model.dtype)))
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(len(ids)))
    options = {"keys": keys, "pending": width, "encoder_outputs": encoder_outputs}
    state = init_state(model, shape, history, **options)
    if config.num_beams > 1:
        cache = prefill(model, history, state.cache, 0, width)
        found = beam_search(model, BeamSearch.of(config), history, cache)
        count = config.num_return_sequences
        tokens, lengths, scores = (x[:, :count].reshape(-1, *x.shape[2:]) for x in found)
        new = _padded(tokens[:, :most], lengths, config.padding)
        ids = jnp.repeat(ids, count, axis=0)
        return {"sequences": jnp.concatenate([ids, new], axis=1), "scores": scores}
    state = generate_token(model, config.sampling, state)
    history = generate_tokens(model, config.sampling, state, most - 1).history
    positions = history.prompt_lengths[:, None] + jnp.arange(most)[None, :]
    tokens = jnp.take_along_axis(history.tokens, positions, axis=1)
    new = _padded(tokens, history.lengths - history.prompt_lengths, config.padding)
    return {"sequences": jnp.concatenate([ids, new], axis=1)}


def _history(ids: jax.Array, mask: jax.Array, most: int, source: jax.Array | None) -> History:
    """The prompts, each from the left of its row, with room for new tokens."""
    order = jnp.argsort(mask <= 0, axis=1, stable=True)
    tokens = jnp.take_along_axis(ids, order, axis=1)
    lengths = jnp.sum(mask > 0, axis=1, dtype=jnp.int32)
    tokens = jnp.pad(tokens, ((0, 0), (0, most)))
    return History(tokens, lengths, lengths, lengths + most, source)


def _padded(tokens: jax.Array, lengths: jax.Array, padding: int) -> jax.Array:
    real = jnp.arange(tokens.shape[1])[None, :] < lengths[:, None]
    return jnp.where(real, tokens, padding)
