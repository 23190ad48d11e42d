"""Translations of the validation sources: the likeliest token each time."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.data import Tokenizer
from jaxformer.distributed.sharding import on_mesh
from jaxformer.functional.masks import KeyPadding
from jaxformer.functional.placement import place
from jaxformer.generation.decode.loop import SamplingParams, generate_tokens, init_state
from jaxformer.generation.decode.processors import History
from jaxformer.models import AbstractModel, Parameters
from jaxformer.nn.cache import CacheShape
from jaxformer.training.step import Batch, TrainProgram


class Translation(NamedTuple):
    """A source, its reference and what the model makes of it."""

    source: str
    reference: str
    text: str


def translate(
    program: TrainProgram,
    params: Parameters,
    batches: Iterable[Batch],
    pairs: Sequence[tuple[str, str]],
    tokenizer: Tokenizer,
) -> list[Translation]:
    """Translates with an encoder-decoder, each token the likeliest after those before it.

    Args:
        program: The training program, which knows the model and the mesh.
        params: Its parameters.
        batches: Rows of parallel text with "row", the number of each in `pairs` (-1: none).
        pairs: Sources and references.
        tokenizer: Turns tokens back into text.

    Returns:
        A translation for each row, in their order; cut where it fills the target's length.
    """
    end = tokenizer.end_of_text_id
    with on_mesh(program.mesh):
        decode = jax.jit(partial(_decode, program.abstract_model, end))
        results = [jax.device_get(decode(params, batch)) for batch in batches]
    found = []
    for rows, tokens in results:
        for row, written in zip(rows, tokens, strict=True):
            if row >= 0:
                length = np.argmax(written == end) if end in written else len(written)
                found.append(Translation(*pairs[row], tokenizer.decode(written[:length])))
    return found


def save(translations: Sequence[Translation], file: Path) -> None:
    """Writes lines of source, reference and translation with tabs between, and what they are."""
    lines = [("source", "reference", "translation"), *translations]
    text = "".join("\t".join(" ".join(part.split()) for part in line) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")


def shown(translations: Sequence[Translation], most: int = 5) -> str:
    """A few of them, spread over all, for people to read."""
    chosen = [translations[n * len(translations) // most] for n in range(most)]
    names = ("source", "reference", "translation")
    return "\n\n".join(
        "\n".join(f"{name:<13}{text}" for name, text in zip(names, item, strict=True))
        for item in dict.fromkeys(chosen)
    )


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
