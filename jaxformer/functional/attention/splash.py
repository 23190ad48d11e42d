"""Splash attention, JAX's own flash-attention kernel for TPUs.

The kernel skips blocks that a causal mask or a window excludes. Padding and packed documents become
segment ids, which cost no memory but skip no blocks. Derivatives other than the gradient are
computed by blockwise.
"""

from dataclasses import replace
from functools import lru_cache, partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
    splash_attention_mask_info,
)

from jaxformer.functional.activations import saveable
from jaxformer.functional.arrays import platform
from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.reference import LOWEST, Request
from jaxformer.functional.derivatives import with_gradient_of
from jaxformer.functional.masks import Band, KeyPadding, Mask, Segments, terms_of

# The kernel works on tiles of 128 lanes, so lengths are padded to a multiple of them.
_LANES = 128
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
    for term in terms_of(mask):
        if not isinstance(term, Band | KeyPadding | Segments):
            return f"it cannot express the mask {type(term).__name__}"
        if isinstance(term, Band) and not isinstance(term.query_offset, int):
            return "it needs a query offset that is known while tracing"
    if sum(isinstance(term, Segments) for term in terms_of(mask)) > 1:
        return "it supports only one set of segments"
    low, high = _band(mask, query_length, key_length)
    if low > high:
        return "it cannot express a mask that excludes every pair"
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
    band = _band(request.mask, *pairs)
    kernel = _kernel(pairs, band, request.softcap, platform() != "tpu")
    ids = None
    if key_padding or any(not isinstance(term, Band) for term in terms_of(request.mask)):
        ids = splash_attention_kernel.SegmentIds(
            _pad(_query_ids(request.mask, batch, lengths[0]), query_padding, _NO_QUERY),
            _pad(_key_ids(request.mask, batch, lengths[1]), key_padding, _NO_KEY),
        )
    # LOWEST is far above the kernel's mask value, so that a fully masked query attends to its sink
    # alone, and gets zeros and no gradient.
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


# JAX checks for each block whether any pair and whether all pairs are allowed. If all pairs of a
# block agree, a single element answers both: 131,072 tokens have 1.7e10 pairs.


class _LocalMask(splash_attention_mask.LocalMask):
    def __getitem__(self, block):
        queries, keys = block
        before, after = self.window_size
        lowest = keys.start - (queries.stop - 1)
        highest = keys.stop - 1 - queries.start
        if highest < -before or after < lowest:
            return np.zeros((1, 1), bool)
        if -before <= lowest and highest <= after:
            return np.ones((1, 1), bool)
        return super().__getitem__(block)


class _FullMask(splash_attention_mask.FullMask):
    def __getitem__(self, block):
        return np.ones((1, 1), bool)


@lru_cache
def _kernel(pairs, band, softcap, interpret):
    low, high = band
    mask = _LocalMask(pairs, (-low, high), 0)
    if band == _band(Mask(), *pairs):
        mask = _FullMask(pairs)
    masks = splash_attention_mask.MultiHeadMask([mask])  # shared by all heads
    query_block, key_block = (_block_size(length) for length in pairs)
    # `make_splash_mha` does the same but puts these arrays on a device, which ahead-of-time
    # compilation does not have.
    blocks = (query_block, key_block)
    by_query, in_band = splash_attention_mask_info.process_mask(masks, blocks)
    by_key, _ = splash_attention_mask_info.process_mask_dkv(masks, blocks)
    return splash_attention_kernel.SplashAttentionKernel(
        by_query,
        by_query,
        by_key,
        block_sizes=splash_attention_kernel.BlockSizes(
            block_q=query_block,
            block_kv=key_block,
            block_q_dkv=query_block,
            block_kv_dkv=key_block,
            block_q_dq=query_block,
            block_kv_dq=key_block,
        ),
        is_mqa=False,
        save_residuals=False,
        mask_value=splash_attention_kernel.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=softcap,
        residual_checkpoint_name=None,
        mask_function=in_band,
        interpret=interpret,
    )


def _block_size(length: int) -> int:
    return next(size for size in (512, 384, 256, 128) if length % size == 0)


def _band(mask: Mask, query_length: int, key_length: int) -> tuple[int, int]:
    """Returns the lowest and highest `key - query` that the mask allows."""
    low, high = 1 - query_length, key_length - 1
    for term in terms_of(mask):
        if isinstance(term, Band):
            if term.before is not None:
                low = max(low, term.query_offset - term.before)
            if term.after is not None:
                high = min(high, term.query_offset + term.after)
    return low, high


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
