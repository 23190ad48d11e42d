"""States as they come, while the device is at those that follow."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import numpy as np

from jaxformer.generation.decode.state import AnyState


def states_from(
    run: Callable[[AnyState], AnyState],
    state: AnyState,
    stopped: Callable[[], np.ndarray] | None = None,
) -> Iterator[AnyState]:
    """Yields the state after each run, until all rows are over.

    Args:
        run: Adds a few tokens to every row that is not over.
        state: Where the rows stand; its cache is used up.
        stopped: Tells, each time, which rows bool `[B]` are over for other reasons; None: none are.
    """
    state = run(state)
    while True:
        upcoming = run(state)
        yield state
        if not np.any(jax.device_get(state.active)):
            return
        state = upcoming
        if stopped is not None:
            state = replace(state, active=state.active & ~stopped())
