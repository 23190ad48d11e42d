"""All that a training run carries from one step to the next."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from jaxformer.models.parameters import Parameters


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("step", "params", "opt_state", "rng", "ema", "skipped", "skipped_in_a_row"),
    meta_fields=(),
)
@dataclass(frozen=True)
class TrainState:
    """A plain pytree: what a checkpoint holds and what resuming restores."""

    step: jax.Array
    """int32: batches consumed. The data order is a function of the seed and this number."""
    params: Parameters
    """float32 parameters by dotted path."""
    opt_state: Any
    """The optimizer's own state."""
    rng: jax.Array
    """The key from which every step's dropout key is derived."""
    ema: Parameters | None
    """The moving average of the parameters, where the run keeps one."""
    skipped: jax.Array
    """int32: updates skipped so far because the loss or the gradient was not finite."""
    skipped_in_a_row: jax.Array
    """int32: how many of them came just now, one after the other."""

    @property
    def best_params(self) -> Parameters:
        """The parameters to evaluate: the averaged ones, where the run keeps them."""
        return self.params if self.ema is None else self.ema
