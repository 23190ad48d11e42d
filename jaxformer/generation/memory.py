"""How much memory there is for what a model keeps of the texts it generates."""

import os
from collections.abc import Sequence
from typing import Any

import jax


def available_bytes(devices: Sequence[jax.Device]) -> int:
    """The memory of all these devices together, whatever is in use; a CPU's is the host's."""
    own = next(device for device in devices if device.process_index == jax.process_index())
    found = (own.memory_stats() or {}).get("bytes_limit")
    if found is not None:
        return found * len(devices)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * jax.process_count()


def num_bytes(arrays: Any) -> int:
    """The bytes of a tree of arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
