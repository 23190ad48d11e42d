"""The state that a run starts from."""

import logging
from collections.abc import Iterable
from dataclasses import replace

import jax.numpy as jnp

from jaxformer.config.experiment import Config
from jaxformer.data import Datasets
from jaxformer.distributed.processes import is_first
from jaxformer.io.staging import name_of
from jaxformer.training.step import TrainProgram, TrainState
from jaxformer.training.transfer.origin import check_same_tokens, origin_folder
from jaxformer.training.transfer.transfer import transfer

_log = logging.getLogger(__name__)


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
        print(report.in_words(name_of(origin)))
        _warn_of_frozen(report.new, program)
    ema = None if state.ema is None else {name: jnp.copy(params[name]) for name in state.ema}
    return replace(state, params=params, ema=ema)


def _warn_of_frozen(new: Iterable[str], program: TrainProgram) -> None:
    """Warns of parameters without a value of the other model's that low-rank training freezes."""
    if program.train.lora is None:
        return
    able = frozenset(program.abstract_model.base.learning) - frozenset(program.trained)
    frozen = [name for name in new if name in able]
    if frozen:
        _log.warning(
            "%s: new here and frozen, so random forever: name what shall learn besides the factors "
            'with --train.lora.trained, for example "heads.*" "pooler.*"',
            ", ".join(frozen),
        )
