"""jaxformer's training steps of families.py."""

from collections.abc import Callable
from dataclasses import replace

import jax
from family_shapes import corrupted_batch, masked_batch

from jaxformer.models import MaskedLanguageModel
from jaxformer.sharding import MeshConfig, make_mesh
from jaxformer.training.config import TrainConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Constant
from jaxformer.training.step import TrainProgram
from jaxformer.zoo import SYSTEMS


def bert(batch: int, length: int, options: dict) -> Callable[[], None]:
    """BERT base, masked tokens."""
    model = SYSTEMS["bert-base"].config
    heads = (MaskedLanguageModel(),)
    model = replace(model, pooler=None, heads=heads, dropout=0.0, attention_dropout=0.0, **options)
    return _step(model, masked_batch(batch, length))


def t5(batch: int, length: int, options: dict) -> Callable[[], None]:
    """T5 small, corrupted spans."""
    return _step(replace(SYSTEMS["t5-small"].config, **options), corrupted_batch(batch, length))


def _step(model, arrays: dict) -> Callable[[], None]:
    optimizer = AdamW(schedule=Constant(learning_rate=1e-4))
    program = TrainProgram(model, optimizer, TrainConfig(), make_mesh(MeshConfig()))
    arrays = {name: jax.device_put(x, program.batch_sharding) for name, x in arrays.items()}
    state = program.init(0)

    def run():
        nonlocal state
        state, _ = program.train_step(state, arrays)
        jax.block_until_ready(state.params)

    return run
