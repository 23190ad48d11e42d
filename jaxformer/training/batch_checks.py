"""What the training program reads of a batch, checked by name while it is traced."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxformer.errors import ArgumentError
from jaxformer.functional.assertions import assert_axes
from jaxformer.models.batch import batch_shapes
from jaxformer.models.build import ModelConfig
from jaxformer.models.config import EncoderDecoderConfig, VisionConfig


def check_batch(model: ModelConfig, batch: Mapping[str, jax.Array]) -> None:
    """Checks the names, the shapes and the dtypes of the arrays of a batch.

    Args:
        model: The model's configuration, with its heads.
        batch: Arrays by name, rows first; others than the model reads are left alone.

    Raises:
        ArgumentError: An array is missing, or holds no integers where it must; names it and who
            reads it.
        AssertionError: An array has other axes than the model and the rest of the batch ask for.
    """
    own = "images" if isinstance(model, VisionConfig) else "inputs"
    _check_there(own, "the model", batch)
    readers = _readers(model)
    for name, reader in readers.items():
        _check_there(name, reader, batch)
    sides = [name for name in ("inputs", "decoder_inputs") if name in batch]
    if own == "inputs":
        assert_axes(**{name: (batch[name], f"B {name}") for name in sides})
    lengths = {name: batch[name].shape[1] for name in sides} or {"inputs": 1}
    for name, expected in batch_shapes(model, len(batch[own]), lengths).items():
        if name in batch:
            _check_array(name, batch[name], expected, readers.get(name, "the model"))


def _readers(model: ModelConfig) -> dict[str, str]:
    """Who cannot do without an array, by the array's name."""
    readers = {"decoder_inputs": "the decoder"} if isinstance(model, EncoderDecoderConfig) else {}
    for head in model.heads:
        readers |= dict.fromkeys(head.reads(1, 1), f"the head {head.name}")
    return readers


def _check_there(name: str, reader: str, batch: Mapping[str, jax.Array]) -> None:
    if name not in batch:
        raise ArgumentError(
            f"batch: {name}, which {reader} reads, is missing; there are {', '.join(batch)}"
        )


def _check_array(name: str, array: jax.Array, expected: jax.ShapeDtypeStruct, reader: str) -> None:
    what = f"batch: {name}, which {reader} reads,"
    assert_axes(**{what: (array, " ".join(map(str, expected.shape)))})
    whole = jnp.issubdtype(expected.dtype, jnp.integer)
    if not jnp.issubdtype(array.dtype, jnp.integer if whole else jnp.floating):
        kind = "integers" if whole else "floating-point numbers"
        raise ArgumentError(f"{what} has dtype {array.dtype}: must be {kind}")
