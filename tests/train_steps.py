"""Training steps of small models on one batch, on the virtual devices of a mesh."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.processes import placed
from jaxformer.functional.arrays import on_mesh
from jaxformer.optim import SGD, Constant
from jaxformer.training.step import TrainProgram

DESCENT = SGD(schedule=Constant(learning_rate=0.1, warmup_steps=0))


def program_of(model, mesh=(1, 1, 1), optimizer=DESCENT, loss=None, **train):
    """The program of a model on a mesh with these sizes: data, fsdp, tensor, sequence, expert."""
    return TrainProgram(model, optimizer, TrainConfig(**train), make_mesh(MeshConfig(*mesh)), loss)


def packed_rows(rows=8, length=12, vocab_size=32):
    """Documents of several lengths in each row, padding at the end, weights that differ."""
    random = np.random.default_rng(0)
    segments = np.sort(random.integers(0, 4, (rows, length)), axis=1)[:, ::-1]
    segments = np.where(segments > 0, 4 - segments, 0)
    starts = np.array([[np.argmax(row == s) for s in row] for row in segments])
    tokens = random.integers(0, vocab_size, (2, rows, length)).astype(np.int32)
    return {
        "inputs": tokens[0],
        "targets": tokens[1],
        "weights": ((segments > 0) * random.integers(0, 3, (rows, length))).astype(np.float32),
        "segments": segments.astype(np.int32),
        "positions": (np.arange(length) - starts).astype(np.int32),
    }


def on_devices(program, params):
    """Copies of parameters, cut as the program's."""
    return {
        name: placed(np.asarray(x), program.param_shardings[name]) for name, x in params.items()
    }


def stepped(program, batch, params=None, steps=1):
    """The state after steps from these parameters, or new ones, and the metrics of each step."""
    state, history = program.init(0), []
    if params is not None:
        state = replace(state, params=on_devices(program, params))
    batch = jax.device_put(batch, program.batch_sharding)
    for _ in range(steps):
        state, metrics = program.train_step(state, batch)
        history.append(jax.tree.map(float, metrics))
    return state, history


def gradients(program, batch, params=None):
    """The gradients of a step from these parameters, or new ones, with the sums of its losses."""
    params = program.init(0).params if params is None else on_devices(program, params)
    batch = jax.device_put(batch, program.batch_sharding)

    def of_step(params, batch, key):
        return program._gradients(params, {}, batch, key, jnp.zeros((), int))

    with on_mesh(program.mesh):
        return jax.device_get(jax.jit(of_step)(params, batch, jax.random.key(1)))


def assert_same_gradients(actual, expected):
    """Asserts that what `gradients` found is the same but for rounding."""
    # A gradient that is zero but for rounding has no scale.
    top = max(float(np.abs(y).max()) for y in jax.tree.leaves(expected[0]))
    named = jax.tree.leaves_with_path(expected)
    for (path, y), x in zip(named, jax.tree.leaves(actual), strict=True):
        limit = 1e-5 * max(np.abs(y).max(), 1e-3 * top)
        np.testing.assert_allclose(x, y, rtol=0, atol=limit, err_msg=str(path))
