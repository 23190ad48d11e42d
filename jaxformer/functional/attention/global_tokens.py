"""Global tokens that summarize blocks of tokens, as in LongT5's transient-global attention."""

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    static,
)


def block_numbers(segments: jax.Array, size: int) -> jax.Array:
    """Returns the index of each token's block of `size` tokens.

    Blocks begin at multiples of `size`. Only blocks whose last token is real count; tokens after
    the last such block belong to it.

    Args:
        segments: int `[B, T]`, 0 for padding.
        size: Tokens of a block.

    Returns:
        int `[B, T]`; -1 at padding, and everywhere in a row without a block.

    References:
        Guo et al., LongT5 (https://arxiv.org/abs/2112.07916), section 3.2.2.
    """
    assert_axes(segments=(segments, "B T"))
    assert_integers(segments=segments)
    size = static("size", size, at_least(1))
    real = segments > 0
    index = jnp.arange(segments.shape[1])[None, :]
    last = jnp.sum(real & (index % size == size - 1), axis=1, keepdims=True) - 1
    return jnp.where(real, jnp.minimum(index // size, last), -1)


def block_sums(x: jax.Array, segments: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Sums the tokens of each block, see `block_numbers`.

    A block with tokens of several documents belongs to the last one, and only the tokens of that
    document are summed.

    Args:
        x: `[B, T, D]`.
        segments: int `[B, T]`: the document of each token; 0 for padding.
        size: Tokens of a block, at most T.

    Returns:
        The sums `[B, T // size, D]` in the dtype of `x`, and the document of each block, int
        `[B, T // size]`: 0 for those after the last block of a row. A block before that without any
        token has a sum of 0 and the row's last document.
    """
    sizes = assert_axes(x=(x, "B T D"))
    assert_axes(sizes, segments=(segments, "B T"))
    assert_floating(x=x)
    numbers = block_numbers(segments, size)
    count = x.shape[1] // size
    raw_numbers = (jnp.arange(x.shape[1]) // size)[None, :]
    at_home = numbers == raw_numbers
    stray = (numbers >= 0) & (numbers < raw_numbers)
    last = jnp.max(numbers, axis=1, keepdims=True)
    blocks = jnp.arange(count)[None, :]

    def in_blocks(array):
        return array[:, : count * size].reshape(array.shape[0], count, size, *array.shape[2:])

    owner = jnp.max(in_blocks(jnp.where(at_home, segments, 0)), axis=2)
    of_strays = jnp.max(jnp.where(stray, segments, 0), axis=1, keepdims=True)
    owner = jnp.maximum(owner, jnp.where(blocks == last, of_strays, 0))
    owner_of_last = jnp.max(jnp.where(blocks == last, owner, 0), axis=1, keepdims=True)
    counted = in_blocks(at_home) & (in_blocks(segments) == owner[:, :, None])
    stray &= segments == owner_of_last
    accumulator = jnp.promote_types(x.dtype, jnp.float32)
    total = jnp.sum(in_blocks(x), axis=2, where=counted[..., None], dtype=accumulator)
    strays = jnp.sum(x, axis=1, keepdims=True, where=stray[..., None], dtype=accumulator)
    total += jnp.where((blocks == last)[..., None], strays, 0.0)
    owner = jnp.where(owner > 0, owner, jnp.max(segments, axis=1, keepdims=True))
    return total.astype(x.dtype), jnp.where(blocks <= last, owner, 0)
