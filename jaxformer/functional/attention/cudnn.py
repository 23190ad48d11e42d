"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

cuDNN supports full attention, causal attention and sliding windows natively, and skips masked
blocks. Other masks are passed as a boolean array, which takes O(T S) memory per batch row and skips
no blocks. Derivatives other than the gradient are computed by blockwise.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.backend import get_backend

from jaxformer.functional.activations import saveable
from jaxformer.functional.arrays import platform
from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.reference import Request
from jaxformer.functional.derivatives import with_gradient_of
from jaxformer.functional.masks import All, Band, Mask, causal, terms_of


def unsupported(query, key, value, request: Request) -> str | None:
    """Returns why this kernel does not support the request, or None."""
    capability = _compute_capability()
    width = query.shape[-1]
    # From Hopper on, cuDNN supports heads of up to 256 channels.
    widest = 256 if capability >= (9, 0) else 128
    _, rest = _split(request.mask, query.shape[1], key.shape[1])
    odd = query.shape[1] % 2 or key.shape[1] % 2
    reasons = {
        "it needs an NVIDIA GPU of compute capability 8.0 or later": capability < (8, 0),
        "it does not support a bias": request.bias is not None,
        "it does not support distances": request.distances is not None,
        "it does not support a soft-cap": request.softcap is not None,
        "it does not support sinks": request.sinks is not None,
        "its dropout differs from that of the other implementations": request.dropout is not None,
        f"it needs bfloat16 or float16, not {query.dtype}": query.dtype
        not in (jnp.bfloat16, jnp.float16),
        "query, key and value must have the same dtype": not query.dtype
        == key.dtype
        == value.dtype,
        f"it needs a head dim that is a multiple of 8 and at most {widest}, not {width}": width % 8
        or width > widest,
        f"it needs values as wide as the keys, not {value.shape[-1]}": value.shape[-1] != width,
        "this mask needs even lengths": odd and terms_of(rest),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, request: Request) -> jax.Array:
    """Computes `attention` with cuDNN."""
    pairs = (query.shape[1], key.shape[1])
    known, rest = _split(request.mask, *pairs)
    given = rest.values(*pairs)[:, None] if terms_of(rest) else None

    def fused(query, key, value, given, _):
        return jax.nn.dot_product_attention(
            query, key, value, mask=given, scale=request.scale, implementation="cudnn", **known
        )

    def plain(query, key, value, _, request):
        return blockwise.attend(query, key, value, request)

    named = partial(saveable, "attention_context")
    output_BTNH = with_gradient_of(fused, plain, named)(query, key, value, given, request)
    if given is None:
        return output_BTNH
    # For a query without allowed keys, cuDNN returns a mean of the values.
    attends_BT = jnp.any(request.mask.values(*pairs), axis=-1)
    return jnp.where(attends_BT[:, :, None, None], output_BTNH, jnp.zeros((), output_BTNH.dtype))


def _compute_capability() -> tuple[int, int]:
    """Returns the compute capability of the GPU traced for; (0, 0) without an NVIDIA GPU."""
    if platform() != "gpu" or "cuda" not in get_backend().platform_version:
        return 0, 0
    major, minor = jax.local_devices()[0].compute_capability.split(".")
    return int(major), int(minor)


def _split(mask: Mask, query_length: int, key_length: int) -> tuple[dict, Mask]:
    """Splits a mask into keyword arguments for cuDNN and the remaining mask."""
    terms = terms_of(mask)
    if terms and all(map(_is_band, terms)) and query_length <= key_length:
        before = min((term.before for term in terms if term.before is not None), default=None)
        after = min((term.after for term in terms if term.after is not None), default=None)
        if after == 0:
            # Without `is_causal`, jax 0.10 ignores the right end of the window.
            window = None if before is None else (before, 0)
            return {"is_causal": True, "local_window_size": window}, Mask()
    rest = tuple(term for term in terms if not (_is_band(term) and term == causal()))
    return {"is_causal": len(rest) < len(terms)}, All(rest)


def _is_band(term: Mask) -> bool:
    """Whether a mask is a band whose offset is statically 0."""
    return isinstance(term, Band) and isinstance(term.query_offset, int) and term.query_offset == 0
