"""jaxformer's own training step, and the product that shows the machine's peak."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from shapes import random_tokens

from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.models import DecoderConfig, ModelConfig
from jaxformer.models.float8 import Float8
from jaxformer.optim import AdamW, Constant
from jaxformer.training.step import TrainProgram


def step(shape: dict, batch: int, length: int, options: dict) -> Callable[[], None]:
    """Prepares a step.

    Args:
        shape: The model.
        batch: Rows.
        length: Tokens of a row.
        options: Fields of DecoderConfig; loss_chunk and compiler_options of TrainConfig; documents,
            the number of documents in a packed row; float8, whether products are in float8.
    """
    documents = options.pop("documents", None)
    train = TrainConfig(
        loss_chunk=options.pop("loss_chunk", None),
        compiler_options=options.pop("compiler_options", ()),
        float8=Float8() if options.pop("float8", False) else None,
    )
    model = DecoderConfig(**shape, **options)
    tokens = random_tokens(shape, batch, length)
    arrays = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.ones((batch, length), np.float32),
    }
    if documents is not None:
        arrays["segments"], arrays["positions"] = packed(batch, length, documents)
    return training_step(model, train, arrays, 1e-3)


def packed(batch: int, length: int, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of documents of random lengths, and the positions in them, `[batch, length]`."""
    random = np.random.default_rng(0)
    cuts = [np.sort(random.choice(length - 1, documents - 1, replace=False)) for _ in range(batch)]
    segments = np.stack([np.searchsorted(cut, np.arange(length)) for cut in cuts])
    starts = np.stack([np.append(0, cut + 1)[row] for cut, row in zip(cuts, segments, strict=True)])
    return (segments + 1).astype(np.int32), (np.arange(length) - starts).astype(np.int32)


def training_step(
    model: ModelConfig, train: TrainConfig, arrays: dict[str, np.ndarray], learning_rate: float
) -> Callable[[], None]:
    """Prepares a step on one batch, on all devices.

    Args:
        model: The model to train.
        train: The options of training.
        arrays: The batch.
        learning_rate: AdamW's.
    """
    optimizer = AdamW(schedule=Constant(learning_rate=learning_rate))
    program = TrainProgram(model, optimizer, train, make_mesh(MeshConfig()))
    arrays = {name: jax.device_put(x, program.batch_sharding) for name, x in arrays.items()}
    state = program.init(0)

    def run():
        nonlocal state
        state, _ = program.train_step(state, arrays)
        jax.block_until_ready(state.params)

    return run


def product(dtype: str) -> tuple[Callable[[], None], dict]:
    """Forty products in `dtype` accumulated in float32, in a loop without allocations."""
    rows, inner, outer = (4096, 512, 1408) if jax.default_backend() == "cpu" else (8192,) * 3
    # Random numbers: a GPU multiplies zeros and ones faster, because it may clock higher.
    shapes = ((rows, inner), (inner, outer), (outer, inner))
    draws = [jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes)]
    x, up, down = (draw.astype(dtype) / draw.shape[0] ** 0.5 for draw in draws)

    def multiply(a, b):
        c = jax.lax.dot(a, b, preferred_element_type=jnp.float32).astype(dtype)
        # Otherwise XLA removes the rounding, and with it the bfloat16 product.
        return jax.lax.optimization_barrier(c)

    @jax.jit
    def products(x):
        return jax.lax.fori_loop(0, 20, lambda _, x: multiply(multiply(x, up), down), x)

    return lambda: jax.block_until_ready(products(x)), {"flops": 80 * rows * inner * outer}
