"""A short text from the model in training: enough to see what it has learned, without a cache."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data import Tokenizer
from jaxformer.functional.sampling import greedy, sample, scale_temperature
from jaxformer.training.step import TrainProgram


def sample_text(
    program: TrainProgram,
    params: Any,
    tokenizer: Tokenizer,
    *,
    prompt: str,
    length: int,
    window: int,
    temperature: float,
    seed: int,
) -> str:
    """Continues a prompt, computing the whole window anew for every token.

    Args:
        program: The training program, which knows the model and the mesh.
        params: Its parameters.
        tokenizer: Turns text into tokens and back.
        prompt: The start of the text; empty for the start of a document.
        length: Tokens to add.
        window: T, the tokens the model looks at, at most; the prompt and the text must fit.
        temperature: 0 for the most likely token each time.
        seed: Of the random choices.

    Returns:
        The prompt and its continuation up to the end of the text.
    """
    start = np.concatenate([[tokenizer.end_of_text_id], tokenizer.encode(prompt)])[:window]
    stop = min(len(start) + length, window)
    # Every replica writes the same text: a batch has a row for each of them.
    rows = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
    tokens = np.zeros((rows, stop), np.int32)
    tokens[:, : len(start)] = start
    with jax.set_mesh(program.mesh):
        generate = jax.jit(_generate, static_argnums=(0, 4, 5))
        key = jax.random.key(seed)
        placed = jax.make_array_from_callback(
            tokens.shape, program.batch_sharding, lambda index: tokens[index]
        )
        written = generate(program.template, params, placed, key, len(start), temperature)
    row = np.asarray(written.addressable_shards[0].data)[0, 1:]
    ends = np.flatnonzero(row[len(start) - 1 :] == tokenizer.end_of_text_id)
    return tokenizer.decode(row[: len(start) - 1 + ends[0]] if len(ends) else row)


def _generate(template, params, tokens, key, start: int, temperature: float):
    model = template.module(params)
    places = jnp.arange(tokens.shape[1])[None, :]

    def add_token(i, tokens):
        hidden = jax.lax.dynamic_slice_in_dim(model.hidden(tokens), i - 1, 1, axis=1)
        logits = model.logits(hidden)
        if temperature == 0:
            token = greedy(logits)
        else:
            # The rows are replicas, so they share a key.
            keys = jnp.broadcast_to(jax.random.fold_in(key, i), logits.shape[:2])
            token = sample(keys, scale_temperature(logits, temperature))
        return jnp.where(places == i, token, tokens)

    return jax.lax.fori_loop(start, tokens.shape[1], add_token, tokens)
