"""Sums over model replicas: each replica sums its rows, followed by a single reduction."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxformer.distributed.sharding import row_multiple
from jaxformer.functional.arrays import replica_rows

COPIES = "data"
"""The mesh axis of model replicas."""


def sum_over_replicas(function: Callable, arguments: Sequence[Any], cut: int) -> Any:
    r"""Computes a function that sums over rows, with one final reduction over model replicas.

    .. math:: f(x) = \sum_{c} f(x_c)

    where :math:`x_c` are the rows of replica c, in the arrays `[parts, rows, ...]` of the argument
    at the index `cut`. Otherwise the compiler would reduce over replicas in every iteration of a
    loop inside `function`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # If other axes shard rows too, the chunked loss adds unreduced arrays, which JAX (0.10) does
    # not support inside `jax.shard_map`.
    if mesh.empty or mesh.shape[COPIES] == 1 or row_multiple(mesh) > mesh.shape[COPIES]:
        return function(*arguments)

    def of_copy(*arguments):
        with replica_rows(COPIES):
            return jax.lax.psum(function(*arguments), COPIES)

    specs = [PartitionSpec()] * len(arguments)
    specs[cut] = PartitionSpec(None, COPIES)
    return jax.shard_map(
        of_copy,
        in_specs=tuple(specs),
        out_specs=PartitionSpec(),
        axis_names={COPIES},
        check_vma=False,
    )(*arguments)
