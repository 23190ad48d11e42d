"""Splash attention, JAX's own flash-attention kernel for TPUs.

The kernel skips blocks that a causal mask or a window excludes. Which these are follows from the
index of the first query, so that it may be known only at run time, as on a device that has a part
of each row. Padding and packed documents become segment ids, which cost no memory but skip no
blocks. Derivatives other than the gradient are computed by blockwise.
"""

from dataclasses import dataclass, replace
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask_info,
)

from jaxformer.functional.activations import saveable
from jaxformer.functional.arrays import device_kind, platform
from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.reference import LOWEST, Request
from jaxformer.functional.derivatives import with_gradient_of
from jaxformer.functional.masks import Band, KeyPadding, Mask, Segments, terms_of

# The kernel works on tiles of 128 lanes, so lengths are padded to a multiple of them.
_LANES = 128
# On chips with products of 256 x 256, blocks of 1024 are a third faster than those of 512
# (measured on a v6e: https://github.com/apple/axlearn/pull/958). They compute more pairs that a
# mask excludes, so they are for long rows and wide bands. The logits of at most 512 keys of a block
# are computed at a time.
_LARGE, _AT_ONCE = 1024, 512
_HAVE_LARGE = ("TPU v6 lite", "TPU v6e", "TPU7x")
# Segment ids of queries and keys that never match.
_NO_QUERY, _NO_KEY = -1, -2


def unsupported(query, key, value, request: Request) -> str | None:
    """Returns why this kernel does not support the request, or None."""
    if platform() != "tpu":
        return f"it needs a TPU, not a {platform()}"
    if request.bias is not None:
        return "it does not support a bias"
    if request.distances is not None:
        return "it does not support distances"
    if request.dropout is not None:
        return "it does not support dropout"
    if query.dtype not in (jnp.bfloat16, jnp.float32):
        return f"it needs bfloat16 or float32, not {query.dtype}"
    if not query.dtype == key.dtype == value.dtype:
        return "query, key and value must have the same dtype"
    if query.shape[-1] != value.shape[-1]:
        return f"it needs values as wide as the keys, not {value.shape[-1]}"
    return _unsupported_mask(request.mask, query.shape[1], key.shape[1])


def _unsupported_mask(mask: Mask, query_length: int, key_length: int) -> str | None:
    terms = terms_of(mask)
    for term in terms:
        if not isinstance(term, Band | KeyPadding | Segments):
            return f"it cannot express the mask {type(term).__name__}"
        if isinstance(term, Band) and jnp.ndim(term.query_offset):
            return "it needs the same query offset for all rows"
    if sum(isinstance(term, Segments) for term in terms) > 1:
        return "it supports only one set of segments"
    if sum(isinstance(term, Band) for term in terms) > 1:
        return "it supports only one query offset that is not known while tracing"
    return None


def attend(query: jax.Array, key: jax.Array, value: jax.Array, request: Request) -> jax.Array:
    """Computes `attention` with the splash kernel, interpreted without a TPU."""
    lengths = query.shape[1], key.shape[1]
    scaled = (query.astype(jnp.float32) * request.scale).astype(query.dtype)
    arrays = [_heads_first(x) for x in (scaled, key, value)]
    # In the kernel's layout, so that its residuals are stored only once.
    kernel, plain = (partial(each, lengths) for each in (_by_kernel, _by_blocks))
    attend_heads_first = with_gradient_of(kernel, plain, _named)
    output_BNTH = attend_heads_first(*arrays, replace(request, scale=1.0))
    return _heads_last(output_BNTH, lengths[0])


def _by_kernel(lengths, query_BNTH, key_BKSH, value_BKSH, request):
    batch, num_heads, *_ = query_BNTH.shape
    pairs = query_BNTH.shape[2], key_BKSH.shape[2]
    query_padding, key_padding = (whole - n for whole, n in zip(pairs, lengths, strict=True))
    kernel = _kernel(pairs, _band(request.mask), request.softcap, platform() != "tpu")
    ids = None
    if key_padding or any(not isinstance(term, Band) for term in terms_of(request.mask)):
        ids = splash_attention_kernel.SegmentIds(
            _pad(_query_ids(request.mask, batch, lengths[0]), query_padding, _NO_QUERY),
            _pad(_key_ids(request.mask, batch, lengths[1]), key_padding, _NO_KEY),
        )
    # LOWEST is far above the kernel's mask value, so that a fully masked query attends only to its
    # sink, and gets zeros and no gradient.
    sinks = jnp.full((num_heads,), LOWEST, jnp.float32) if request.sinks is None else request.sinks
    attend_row = jax.vmap(lambda *arrays: kernel(*arrays, sinks=sinks))
    return attend_row(query_BNTH, key_BKSH, value_BKSH, ids)


def _by_blocks(lengths, query_BNTH, key_BKSH, value_BKSH, request):
    query_length, key_length = lengths
    key, value = (_heads_last(x, key_length) for x in (key_BKSH, value_BKSH))
    return _heads_first(
        blockwise.attend(_heads_last(query_BNTH, query_length), key, value, request)
    )


def _heads_first(x_BTNH):
    return _pad(x_BTNH.transpose(0, 2, 1, 3), -x_BTNH.shape[1] % _LANES, axis=2)


def _heads_last(x_BNTH, length):
    return x_BNTH[:, :, :length].transpose(0, 2, 1, 3)


def _named(x):
    # The kernel's residuals include a few integers that describe its mask.
    is_made = jnp.issubdtype(x.dtype, jnp.floating)
    return saveable("attention_context", x) if is_made else x


@dataclass(frozen=True)
class _IsBetween:
    """Whether `low <= key - query <= high`; None is unlimited. Hashable, for a kernel's cache."""

    low: int | None
    high: int | None

    def __call__(self, query_ids, key_ids):
        distance = key_ids - query_ids
        allowed = True if self.low is None else distance >= self.low
        return allowed if self.high is None else (distance <= self.high) & allowed


def _kernel(pairs, band: Band, softcap, interpret):
    large = device_kind() in _HAVE_LARGE and _is_wide(pairs, band)
    query_block, key_block = blocks = tuple(_block_size(length, large) for length in pairs)
    at_once = min(key_block, _AT_ONCE)
    low = None if band.before is None else -band.before
    high = band.after
    is_between = None if low is None and high is None else _IsBetween(low, high)
    query_ids = None if is_between is None else jnp.arange(pairs[0]) + band.query_offset
    by_query = _visits(pairs, blocks, band.query_offset, low, high)
    # A query is as far from a key as the key is from it, in the other direction.
    opposite = (None if x is None else -x for x in (high, low))
    by_key = _visits(pairs[::-1], blocks[::-1], -band.query_offset, *opposite)
    by_query = splash_attention_mask_info.MaskInfo(
        by_query[0][None], None, by_query[1][None], None, query_ids
    )
    by_key = splash_attention_mask_info.MaskInfo(
        by_key[0].T[None], None, by_key[1].T[None], None, query_ids
    )
    return splash_attention_kernel.SplashAttentionKernel(
        by_query,
        by_query,
        by_key,
        block_sizes=splash_attention_kernel.BlockSizes(
            block_q=query_block,
            block_kv=key_block,
            block_kv_compute=at_once,
            block_q_dkv=query_block,
            block_kv_dkv=key_block,
            block_kv_dkv_compute=at_once,
            block_q_dq=query_block,
            block_kv_dq=key_block,
        ),
        is_mqa=False,
        save_residuals=False,
        mask_value=splash_attention_kernel.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=softcap,
        residual_checkpoint_name=None,
        mask_function=is_between,
        interpret=interpret,
    )


def _visits(lengths, blocks, offset, low: int | None, high: int | None) -> tuple:
    """Returns which blocks of columns each block of rows visits, and whether it computes there.

    Row i, whose index among the columns is `i + offset`, reads columns from `i + offset + low` to
    `i + offset + high`. A visit that computes nothing names the first block of the next row, which
    is then loaded meanwhile.
    """
    (num_rows, num_columns), (row_block, column_block) = lengths, blocks
    count = num_columns // column_block
    array = np if isinstance(offset, int) else jnp
    start = array.arange(0, num_rows, row_block) + offset
    first, last = array.zeros_like(start), array.full_like(start, count - 1)
    if low is not None:
        first = array.maximum((start + low) // column_block, 0)
    if high is not None:
        last = array.minimum((start + row_block - 1 + high) // column_block, last)
    visits = count
    if array is np:
        visits = max(1, int(np.max(last - first)) + 1)
    elif low is not None and high is not None:
        visits = min(count, (row_block - 1 + high - low) // column_block + 2)
    block = first[:, None] + array.arange(visits)[None]
    computes = block <= last[:, None]
    following = array.minimum(array.roll(first, -1), count - 1)
    block = array.where(computes, block, following[:, None])
    # These are in a TPU's memory for scalars, which is small.
    smallest = next(x for x in (jnp.int8, jnp.int16, jnp.int32) if count <= jnp.iinfo(x).max)
    return jnp.asarray(block, smallest), jnp.asarray(computes, jnp.int8)


def _block_size(length: int, large: bool) -> int:
    sizes = (_LARGE,) if large else ()
    return next(size for size in (*sizes, 512, 384, 256, 128) if length % size == 0)


def _is_wide(pairs, band: Band) -> bool:
    """Whether rows are long, and bands wide, relative to a large block."""
    sides = (band.before, band.after)
    width = max(pairs) if None in sides else sum(sides)
    return min(pairs) >= 4 * _LARGE and width >= 2 * _LARGE


def _band(mask: Mask) -> Band:
    """Returns the band of a mask; the one of all pairs if it has none."""
    return next((term for term in terms_of(mask) if isinstance(term, Band)), Band())


def _query_ids(mask: Mask, batch: int, length: int) -> jax.Array:
    for term in terms_of(mask):
        if isinstance(term, Segments):
            ids = jnp.where(term.query > 0, term.query, _NO_QUERY)
            return jnp.broadcast_to(ids.astype(jnp.int32), (batch, length))
    return jnp.ones((batch, length), jnp.int32)


def _key_ids(mask: Mask, batch: int, length: int) -> jax.Array:
    def excluded(ids, term):
        if isinstance(term, KeyPadding):
            return jnp.where(term.valid, ids, _NO_KEY)
        if isinstance(term, Segments):
            return jnp.where((term.key > 0) & (ids > 0), term.key, _NO_KEY)
        return ids

    ids = reduce(excluded, terms_of(mask), jnp.ones((batch, length), jnp.int32))
    return ids.astype(jnp.int32)


def _pad(x: jax.Array, padding: int, value: int = 0, axis: int = 1) -> jax.Array:
    widths = [(0, padding if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)
