"""Coordination of processes: which one writes, and which rows each one feeds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from jaxformer.errors import ConfigError


def is_first() -> bool:
    """Whether this is the process that prints and writes."""
    return jax.process_index() == 0


def first_process_only(action: Callable[[], Any]) -> None:
    """Runs an action on the first process while the others wait."""
    failure = None
    if is_first():
        try:
            action()
        except Exception as error:
            failure = error
    if jax.process_count() > 1:
        failed = multihost_utils.broadcast_one_to_all(np.asarray(failure is not None))
        if failed and failure is None:
            raise ConfigError("the first process refused to start; see its error message")
    if failure is not None:
        raise failure


def of_first(value: Any) -> Any:
    """Broadcasts a number or an array of the first process to all processes."""
    if jax.process_count() == 1:
        return value
    return multihost_utils.broadcast_one_to_all(np.asarray(value))


def agreed(decision: bool) -> bool:
    """Broadcasts the decision of the first process to all processes."""
    return bool(of_first(decision))


def local_rows(sharding: NamedSharding, num_rows: int) -> np.ndarray:
    """Returns the rows of a global batch that the devices of this process need."""
    indices = sharding.addressable_devices_indices_map((num_rows,)).values()
    return np.unique(np.concatenate([np.arange(num_rows)[rows] for (rows,) in indices]))


def placed(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Puts an array that every process has on the mesh; each device gets its shard."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def device_batches(
    batches: Iterable[Mapping[str, np.ndarray]], sharding: NamedSharding, num_rows: int
) -> Iterator[dict[str, jax.Array]]:
    """Converts batches of NumPy arrays with this process's rows to global arrays on the mesh."""
    mine = local_rows(sharding, num_rows)

    def on_devices(array: np.ndarray) -> jax.Array:
        def part(index):
            wanted = np.arange(num_rows)[index[0]]
            return array[np.searchsorted(mine, wanted)]

        return jax.make_array_from_callback((num_rows, *array.shape[1:]), sharding, part)

    for batch in batches:
        yield {name: on_devices(array) for name, array in batch.items()}
