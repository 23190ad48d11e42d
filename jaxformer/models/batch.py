"""Checks the arrays of a training batch while the step is traced."""

import jax
import jax.numpy as jnp

from jaxformer.errors import ArgumentError
from jaxformer.functional.assertions import assert_axes
from jaxformer.models.heads.base import Batch
from jaxformer.models.model import ModelConfig


def check_batch(config: ModelConfig, batch: Batch) -> None:
    """Checks the names, the shapes and the dtypes of the arrays of a batch.

    Args:
        config: The model's configuration, with its heads.
        batch: Arrays by name, batch-first; unused arrays are ignored.

    Raises:
        ArgumentError: An array is missing or has the wrong dtype; the message names it and its
            reader.
        AssertionError: The axes of an array do not match the model or the rest of the batch.
    """
    readers = dict.fromkeys(config.required, "the model")
    if "decoder_inputs" in readers:
        readers["decoder_inputs"] = "the decoder"
    for head in config.heads:
        readers |= dict.fromkeys(head.reads(1, 1), f"the head {head.name}")
    for name, reader in readers.items():
        if name not in batch:
            raise ArgumentError(
                f"batch: {name}, which {reader} reads, is missing; the batch contains "
                f"{', '.join(batch)}"
            )
    sides = [name for name in config.required if name != "images"]
    if sides:
        assert_axes(**{name: (batch[name], f"B {name}") for name in sides})
    lengths = {name: batch[name].shape[1] for name in sides} or {"inputs": 1}
    for name, expected in config.batch_spec(len(batch[config.required[0]]), lengths).items():
        if name in batch:
            _check_array(name, batch[name], expected, readers.get(name, "the model"))


def _check_array(name: str, array: jax.Array, expected: jax.ShapeDtypeStruct, reader: str) -> None:
    what = f"batch: {name}, which {reader} reads,"
    assert_axes(**{what: (array, " ".join(map(str, expected.shape)))})
    kinds = (
        (jnp.bool_, "true or false"),
        (jnp.integer, "integers"),
        (jnp.floating, "floating-point numbers"),
    )
    known, kind = next(pair for pair in kinds if jnp.issubdtype(expected.dtype, pair[0]))
    if not jnp.issubdtype(array.dtype, known):
        raise ArgumentError(f"{what} has dtype {array.dtype}: must be {kind}")
