"""Training steps of small models on one batch, on the virtual devices of a mesh."""

from dataclasses import replace

import jax
import numpy as np

from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.processes import placed
from jaxformer.optim import SGD, Constant
from jaxformer.training.step import TrainProgram

DESCENT = SGD(schedule=Constant(learning_rate=0.1, warmup_steps=0))


def program_of(model, mesh=(1, 1, 1), optimizer=DESCENT, loss=None, **train):
    """The program of a model on a mesh with these sizes: data, fsdp, tensor, sequence, expert."""
    return TrainProgram(model, optimizer, TrainConfig(**train), make_mesh(MeshConfig(*mesh)), loss)


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
