"""Generates texts for the validation sources."""

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.data import Tokenizer
from jaxformer.data.tasks.text_to_text import WritingExamples
from jaxformer.functional.arrays import on_mesh, place
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.generation.decode.loop import (
    SamplingParams,
    generate_token,
    generate_tokens,
    init_state,
)
from jaxformer.generation.decode.processors import History
from jaxformer.models import AbstractModel, Parameters
from jaxformer.nn.cache import CacheShape
from jaxformer.training.evaluation.conclusion import GeneratedText
from jaxformer.training.step import Batch, TrainProgram


def generate_texts(
    program: TrainProgram,
    params: Parameters,
    batches: Iterable[Batch],
    examples: WritingExamples,
    tokenizer: Tokenizer,
) -> list[GeneratedText]:
    """Generates a text for each source by greedy decoding."""
    end = tokenizer.end_of_text_id
    with on_mesh(program.mesh):
        decode = jax.jit(partial(_decode, program.abstract_model, end, examples.given))
        results = [jax.device_get(decode(params, batch)) for batch in batches]
    found = []
    for rows, tokens in results:
        for row, written in zip(rows, tokens, strict=True):
            if row >= 0:
                length = np.argmax(written == end) if end in written else len(written)
                text = tokenizer.decode(written[:length])
                found.append(GeneratedText(*examples.pairs[row], text, examples.references[row]))
    return found


def _decode(abstract_model: AbstractModel, end: int, given: int, params: Parameters, batch: Batch):
    """Returns rows int `[B]` and tokens int `[B, T]`, padded with `end`, on every process."""
    model = abstract_model.module(params)
    model.decoder_transformer.stack.unstack()
    mask = Mask()
    if "segments" in batch:
        mask = KeyPadding(batch["segments"] > 0)
        memory = model.encode(batch["inputs"], segments=batch["segments"])
    else:
        memory = model.encode(batch[model.source])
    rows, length = batch["decoder_inputs"].shape
    start = place(batch["decoder_inputs"][:, :given], PartitionSpec())
    ones = jnp.ones(rows, jnp.int32)
    first, room = given * ones, length + 1 - given
    sampling = SamplingParams((), False, (end,))
    state = init_state(
        model,
        CacheShape(rows, capacity=length, chunk=given, storage=model.dtype.name),
        History(jnp.pad(start, ((0, 0), (0, room))), first, first, ones + length),
        keys=ones,  # Greedy decoding ignores the key.
        pending=given,
        encoder_outputs=(memory, mask),
    )
    if given > 1:  # the first step reads all of them
        state, room = generate_token(model, sampling, state), room - 1
    history = generate_tokens(model, sampling, state, room).history
    real = jnp.arange(given, 1 + length)[None, :] < history.lengths[:, None]
    tokens = jnp.where(real, history.tokens[:, given:], end)
    return place(batch["row"], PartitionSpec()), tokens
