"""jaxformer's contenders of generate.py."""

from collections.abc import Callable

import jax
import numpy as np

from jaxformer.generation.decode.loop import SamplingParams
from jaxformer.generation.engine import Engine, num_bytes, row_keys
from jaxformer.generation.inputs import Prompts
from jaxformer.models import AbstractModel, DecoderConfig


def decode(
    shape: dict, batch: int, prompt: int, new: int, dtype: str, weights: str | None = None
) -> tuple[Callable[[], None], dict]:
    """Reads a prompt and adds tokens; `weights` is "int8" or None."""
    config = DecoderConfig(**shape, compute_dtype=dtype)
    abstract_model = AbstractModel(config.build)
    parameters = {
        name: jax.random.normal(jax.random.key(n), shape.shape, dtype) * 0.02
        for n, (name, shape) in enumerate(abstract_model.shapes.items())
    }
    engine = Engine(config, abstract_model, parameters, weights=weights)
    del parameters
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (batch, prompt))
    prompts = Prompts(tokens.astype(np.int32), np.full(batch, prompt, np.int32))
    keys, sampling = row_keys(0, np.arange(batch)), SamplingParams((), False, ())

    def run():
        state = engine.decode(sampling, engine.prefill(prompts, new, keys=keys), new)
        jax.block_until_ready(state.history.tokens)

    size = sum(
        num_bytes(x) for name, x in engine.weights.parameters.items() if "embedding" not in name
    )
    width = np.dtype(jax.numpy.dtype(dtype)).itemsize
    cache = (
        2
        * config.num_layers
        * config.kv_heads
        * config.head_width
        * width
        * (prompt + new / 2)
        * batch
    )
    return run, {"bytes_per_step": size + cache}


def prefill(
    shape: dict, batch: int, prompt: int, new: int, dtype: str, weights: str | None = None
) -> tuple[Callable[[], None], dict]:
    """Reads a prompt and adds one token."""
    del new
    return decode(shape, batch, prompt, 1, dtype, weights)
