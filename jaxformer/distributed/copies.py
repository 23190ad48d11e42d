"""Sums over the copies of a model: each copy adds up its own rows, and all of them meet once."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxformer.functional.arrays import rows_of_copies

COPIES = "data"
"""The mesh axis along which the copies of a model lie."""


def summed_over_copies(function: Callable, arguments: Sequence[Any], cut: int) -> Any:
    r"""What `function` sums over rows, with one reduction over the copies of the model at its end.

    .. math:: f(x) = \sum_{c} f(x_c)

    where :math:`x_c` are the rows of copy c. Left to the compiler, a loop inside `function` would
    reduce over the copies in every turn.

    Args:
        function: A sum over rows, of arrays and pytrees of them.
        arguments: Its arguments.
        cut: The place of the argument whose arrays have rows: `[parts, rows, ...]`.

    Returns:
        `function(*arguments)`, up to the order of the sums.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # Where "fsdp" cuts rows too, the chunked loss adds up unreduced arrays, which JAX (0.10) does
    # not do inside `jax.shard_map`.
    if mesh.empty or mesh.shape[COPIES] == 1 or mesh.shape["fsdp"] > 1:
        return function(*arguments)

    def of_copy(*arguments):
        with rows_of_copies(COPIES):
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
