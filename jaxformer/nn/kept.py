"""What a stack keeps of each block for the backward pass, in closed form."""

from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxformer.errors import check_argument
from jaxformer.functional.saveable import Saveable
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.remat import RematNames


class Kept(NamedTuple):
    """An activation of one block that waits for the backward pass."""

    name: Saveable
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    """The logical axis of each dimension; None: no mesh axis cuts it."""
    dtype: jnp.dtype
    place: Literal["device", "host"]

    @property
    def num_bytes(self) -> int:
        """Of the whole array, on all devices together."""
        size = self.dtype.itemsize
        for dimension in self.shape:
            size *= dimension
        return size


def kept_activations(
    config: TransformerConfig, rows: int, length: int, source: int | None = None
) -> tuple[Kept, ...]:
    """What one block keeps of a batch, where everything else is computed again.

    An upper bound: JAX drops what the backward pass does not read, such as "mlp_output" where a
    plain sum follows it.

    Args:
        config: The stack, whose `remat` is "full" or a `RematNames`.
        rows: Rows of the batch (B).
        length: Tokens of a row (T).
        source: Tokens of the encoder outputs (S) where blocks have cross-attention.

    Returns:
        The activations, the block's input first.

    Raises:
        ArgumentError: `config.remat` is "none" or "dots": what these keep is the compiler's matter.
    """
    remat = config.remat
    by_name = remat == "full" or isinstance(remat, RematNames)
    check_argument("config.remat", remat, by_name, "'full' or a RematNames")
    names = RematNames() if remat == "full" else remat
    wanted = ("block_input", *(name for name in (*names.save, *names.offload)))
    of_names = _by_name(config, rows, length, source)
    return tuple(
        Kept(name, shape, axes, dtype, "host" if name in names.offload else "device")
        for name in dict.fromkeys(wanted)
        for shape, axes, dtype in of_names[name]
    )


def _by_name(config, rows, length, source) -> dict[Saveable, list[tuple]]:
    """The shape, logical axes and dtype of what bears each name."""
    dtype, heads, kv_heads = config.dtype, config.num_heads, config.kv_heads
    head, value = config.head_width, config.value_width

    def states(width, axis=None):
        return (rows, length, width), ("batch", None, axis), dtype

    def of_heads(tokens, count, axis, width):
        return (rows, tokens, count, width), ("batch", None, axis, None), dtype

    found = {name: [states(config.model_dim)] for name in ("block_input", "mlp_input")}
    found["mlp_output"] = [states(config.model_dim)]
    found["mlp_hidden"] = [states(config.mlp_dim, "mlp")] * (2 if config.gated else 1)
    logs = (rows, heads, length), ("batch", "heads", None), jnp.dtype(jnp.float32)
    found |= {"query_key_value": [], "attention_context": [], "attention_output": []}
    for tokens in (length,) if source is None else (length, source):
        found["query_key_value"] += [
            of_heads(length, heads, "heads", head),
            of_heads(tokens, kv_heads, "kv_heads", head),
            of_heads(tokens, kv_heads, "kv_heads", value),
        ]
        found["attention_context"] += [of_heads(length, heads, "heads", value), logs]
        found["attention_output"].append(states(config.model_dim))
    return found
