"""jaxformer's own training step, and the product that shows the machine's peak."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from shapes import random_tokens

from jaxformer.models.config import DecoderConfig
from jaxformer.sharding import MeshConfig, make_mesh
from jaxformer.training.config import TrainConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Constant
from jaxformer.training.step import TrainProgram


def step(shape: dict, batch: int, length: int, options: dict) -> Callable[[], None]:
    """Prepares a step; `options` are of DecoderConfig, but `loss_chunk`."""
    loss_chunk = options.pop("loss_chunk", None)
    model = DecoderConfig(**shape, **options)
    optimizer = AdamW(schedule=Constant(learning_rate=1e-3))
    train = TrainConfig(loss_chunk=loss_chunk)
    program = TrainProgram(model, optimizer, train, make_mesh(MeshConfig()))
    tokens = random_tokens(shape, batch, length)
    arrays = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.ones((batch, length), np.float32),
    }
    arrays = {name: jax.device_put(x, program.batch_sharding) for name, x in arrays.items()}
    state = program.init(0)

    def run():
        nonlocal state
        state, _ = program.train_step(state, arrays)
        jax.block_until_ready(state.params)

    return run


def product(dtype: str) -> tuple[Callable[[], None], dict]:
    """Twenty products in `dtype` accumulated in float32, of a size that reaches the peak."""
    rows, inner, columns = (4096, 512, 1408) if jax.default_backend() == "cpu" else (8192,) * 3
    a, b = jnp.ones((rows, inner), dtype), jnp.ones((inner, columns), dtype)
    multiply = jax.jit(lambda a, b: jax.lax.dot(a, b, preferred_element_type=jnp.float32))

    def run():
        for _ in range(20):
            jax.block_until_ready(multiply(a, b))

    return run, {"flops": 20 * 2 * rows * inner * columns}
