"""Texts that a model generates for the validation sources."""

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.data import Tokenizer
from jaxformer.data.tasks.text_to_text import TextToTextExamples
from jaxformer.distributed.sharding import on_mesh
from jaxformer.functional.arrays import place
from jaxformer.functional.masks import KeyPadding
from jaxformer.generation.decode.loop import SamplingParams, generate_tokens, init_state
from jaxformer.generation.decode.processors import History
from jaxformer.models import AbstractModel, Parameters
from jaxformer.nn.cache import CacheShape
from jaxformer.training.evaluation.conclusion import GeneratedText
from jaxformer.training.step import Batch, TrainProgram


def write_texts(
    program: TrainProgram,
    params: Parameters,
    batches: Iterable[Batch],
    examples: TextToTextExamples,
    tokenizer: Tokenizer,
) -> list[GeneratedText]:
    """Generates a text for each source by greedy decoding."""
    end = tokenizer.end_of_text_id
    with on_mesh(program.mesh):
        decode = jax.jit(partial(_decode, program.abstract_model, end))
        results = [jax.device_get(decode(params, batch)) for batch in batches]
    found = []
    for rows, tokens in results:
        for row, written in zip(rows, tokens, strict=True):
            if row >= 0:
                length = np.argmax(written == end) if end in written else len(written)
                text = tokenizer.decode(written[:length])
                found.append(GeneratedText(*examples.pairs[row], text, examples.references[row]))
    return found


def _decode(abstract_model: AbstractModel, end: int, params: Parameters, batch: Batch):
    """Rows int `[B]` and tokens int `[B, T]`, `end` after the last; the same on every process."""
    model = abstract_model.module(params)
    model.decoder_transformer.stack.unstack()
    memory = model.encode(batch["inputs"], segments=batch["segments"])
    rows, length = batch["decoder_inputs"].shape
    start = place(batch["decoder_inputs"][:, :1], PartitionSpec())
    ones = jnp.ones(rows, jnp.int32)
    state = init_state(
        model,
        CacheShape(rows, capacity=length, chunk=1, storage=model.dtype.name),
        History(jnp.pad(start, ((0, 0), (0, length))), ones, ones, ones + length),
        keys=ones,  # Nothing is drawn.
        pending=1,
        encoder_outputs=(memory, KeyPadding(batch["segments"] > 0)),
    )
    history = generate_tokens(model, SamplingParams((), False, (end,)), state, length).history
    real = jnp.arange(1, 1 + length)[None, :] < history.lengths[:, None]
    tokens = jnp.where(real, history.tokens[:, 1:], end)
    return place(batch["row"], PartitionSpec()), tokens
