"""Generation as a pure function of arrays, for programs that compile it themselves."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from jaxformer.generation.decode.processors import History, Processor
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.families import family_of
from jaxformer.hub.tasks.classes import Arrays
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.model import Model
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
    processors: tuple[Processor, ...] = (),
) -> dict[str, jax.Array]:
    """Continues prompts int `[B, T]`, whose mask is 1 at real tokens, 0 at padding on either side.

    The source int `[B, R]` has the tokens that an encoder has read, -1 at padding. The processors
    are applied after those of the options.

    Returns:
        "sequences" `[B n, T + N]` with n = num_return_sequences and N = max_new_tokens: the prompts
        as given and the new tokens, padded on the right; with beams also their "scores" `[B n]`.
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
        search = BeamSearch.of(config)
        search = replace(search, processors=search.processors + processors)
        found = beam_search(model, search, history, cache)
        count = config.num_return_sequences
        tokens, lengths, scores = (x[:, :count].reshape(-1, *x.shape[2:]) for x in found)
        new = _padded(tokens[:, :most], lengths, config.padding)
        ids = jnp.repeat(ids, count, axis=0)
        return {"sequences": jnp.concatenate([ids, new], axis=1), "scores": scores}
    sampling = replace(config.sampling, processors=config.sampling.processors + processors)
    state = generate_token(model, sampling, state)
    history = generate_tokens(model, sampling, state, most - 1).history
    positions = history.prompt_lengths[:, None] + jnp.arange(most)[None, :]
    tokens = jnp.take_along_axis(history.tokens, positions, axis=1)
    new = _padded(tokens, history.lengths - history.prompt_lengths, config.padding)
    return {"sequences": jnp.concatenate([ids, new], axis=1)}


def generate_for(
    model: GenerativeModel,
    checkpoint: HFCheckpoint,
    inputs: Arrays,
    config: GenerationConfig,
    key: jax.Array,
    *,
    encoder: Model,
    start: int | None = None,
    processors: tuple[Processor, ...] = (),
) -> dict[str, jax.Array]:
    """Like `generate_rows`, for inputs by the names of transformers.

    `encoder` is the same model, possibly in another layout, that runs the encoder. `start` is the
    token that starts an answer without "decoder_input_ids".
    """
    encoder_outputs, source, part = (), None, ""
    if checkpoint.config.is_encoder_decoder:
        encoder_outputs = family_of(checkpoint.config).encode(encoder, checkpoint, inputs)
        part = "decoder_"
        if (ids := inputs.get("input_ids")) is not None:
            source = jnp.where(inputs.get("attention_mask", jnp.ones_like(ids)) > 0, ids, -1)
    ids = inputs.get(f"{part}input_ids")
    if ids is None:
        ids = config.opening(encoder, encoder_outputs, start)
    config = config.for_width(ids.shape[1])
    mask = inputs.get(f"{part}attention_mask", jnp.ones_like(ids))
    options = {"encoder_outputs": encoder_outputs, "source": source, "processors": processors}
    return generate_rows(model, ids, mask, config, key, **options)


@dataclass(frozen=True)
class AlignedProcessor:
    """A processor of transformers: a function of tokens, scores and the number of tokens.

    Its rows of tokens end in the same column, and have padding on the left.
    """

    function: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    """Maps int `[B, S]`, float32 `[B, V]` and an int to scores `[B, V]`."""
    padding: int
    """The token that pads rows."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        """Returns the scores."""
        length = jnp.max(history.lengths)
        columns = jnp.arange(history.tokens.shape[1])[None, :]
        places = columns - (length - history.lengths)[:, None]
        tokens = jnp.take_along_axis(history.tokens, jnp.maximum(places, 0), axis=1)
        real = (places >= 0) & (columns < length)
        scores = self.function(jnp.where(real, tokens, self.padding), logits, length)
        return scores.astype(jnp.float32)


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
