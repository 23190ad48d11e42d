"""The state that a run starts from."""

from dataclasses import replace

import jax.numpy as jnp

from jaxformer.config.experiment import Config
from jaxformer.data import Datasets
from jaxformer.distributed.processes import is_first
from jaxformer.training.step import TrainProgram, TrainState
from jaxformer.training.transfer.origin import check_same_tokens, origin_folder
from jaxformer.training.transfer.transfer import transfer


def initial_state(config: Config, data: Datasets, program: TrainProgram) -> TrainState:
    """The state of step 0, with another run's parameters if the experiment says so.

    Args:
        config: The experiment.
        data: Its data, whose tokenizer is compared with the other run's.
        program: The training program.

    Returns:
        The state, on the program's mesh.

    Raises:
        ConfigError: The other model does not fit, or has another tokenizer.
    """
    state = program.init(config.train.seed)
    if config.init_from is None:
        return state
    origin = origin_folder(config.init_from)
    params, report = transfer(state.params, origin, config.model, config.init_layers)
    if data.tokenizer is not None:
        check_same_tokens(data.tokenizer, origin)
    if is_first():
        print(report.in_words(origin))
    ema = None if state.ema is None else {name: jnp.copy(params[name]) for name in state.ema}
    return replace(state, params=params, ema=ema)
