"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

cuDNN supports full attention, causal attention, sliding windows and, from Hopper on, packed
documents natively, and skips masked blocks. Other masks are passed as a boolean array, which takes
O(T S) memory per batch row and skips no blocks. Derivatives other than the gradient are computed by
blockwise.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.backend import get_backend

from jaxformer.functional.activations import saveable
from jaxformer.functional.arrays import platform
from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.devices import has_whole_rows
from jaxformer.functional.attention.reference import Request
from jaxformer.functional.derivatives import with_gradient_of
from jaxformer.functional.masks import All, Band, Mask, Segments, causal, terms_of

_FEW_DOCUMENTS, _MANY_DOCUMENTS = 16, 64
"""Documents per row of the compiled kernels, each of which starts work for all of them."""


def unsupported(query, key, value, request: Request) -> str | None:
    """Returns why this kernel does not support the request, or None."""
    capability = _compute_capability()
    width = query.shape[-1]
    # From Hopper on, cuDNN supports heads of up to 256 channels.
    widest = 256 if capability >= (9, 0) else 128
    _, rest = _split(request.mask, query.shape[1], key.shape[1])
    odd = query.shape[1] % 2 or key.shape[1] % 2
    half = query.dtype in (jnp.bfloat16, jnp.float16)
    same = query.dtype == key.dtype == value.dtype
    whole = has_whole_rows(query, key, request)
    reasons = (
        (capability < (8, 0), "it needs an NVIDIA GPU of compute capability 8.0 or later"),
        (request.bias is not None, "it does not support a bias"),
        (request.distances is not None, "it does not support distances"),
        (request.softcap is not None, "it does not support a soft-cap"),
        (request.sinks is not None, "it does not support sinks"),
        (request.dropout is not None, "its dropout differs from that of the other implementations"),
        (not half, f"it needs bfloat16 or float16, not {query.dtype}"),
        (not same, "query, key and value must have the same dtype"),
        (
            width % 8 or width > widest,
            f"it needs a head dim that is a multiple of 8 and at most {widest}, not {width}",
        ),
        (value.shape[-1] != width, f"it needs values as wide as the keys, not {value.shape[-1]}"),
        (not whole, "the queries are sharded along time, and their heads cannot be"),
        (odd and terms_of(rest), "this mask needs even lengths"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, request: Request) -> jax.Array:
    """Computes `attention` with cuDNN."""
    named = partial(saveable, "attention_context")
    return with_gradient_of(_attend, blockwise.attend, named)(query, key, value, request)


def _attend(query, key, value, request):
    lengths = query.shape[1], key.shape[1]
    known, rest = _split(request.mask, *lengths)
    if not terms_of(rest):
        return _kernel(query, key, value, None, request.scale, known)
    if _documents(request.mask, *lengths)[1] is not None and _takes_documents(query):
        return _attend_to_documents(query, key, value, request)
    return _attend_by_array(query, key, value, request)


@jax.custom_vjp
def _attend_to_documents(query, key, value, request):
    """Runs the kernel for as many documents as the fullest row has."""
    index, kernels = _kernels_for(query, key, request)
    return jax.lax.switch(index, kernels, query, key, value, request)


def _keep_arguments(*arguments):
    return _attend_to_documents(*arguments), arguments


def _attend_again(arguments, cotangent):
    # All branches would allocate the residuals that one of them keeps for its gradient.
    def gradients(attend, query, key, value, request, cotangent):
        pull = jax.vjp(lambda *arrays: attend(*arrays, request), query, key, value)[1]
        return pull(cotangent)

    query, key, _, request = arguments
    index, kernels = _kernels_for(query, key, request)
    branches = [partial(gradients, attend) for attend in kernels]
    return *jax.lax.switch(index, branches, *arguments, cotangent), None


_attend_to_documents.defvjp(_keep_arguments, _attend_again)


def _kernels_for(query, key, request) -> tuple[jax.Array, list[Callable]]:
    """The kernels for few, many and any documents, and the index of the one for a request."""
    limits = _FEW_DOCUMENTS, _MANY_DOCUMENTS
    kernels = [partial(_attend_within_documents, most) for most in limits]
    _, documents = _documents(request.mask, query.shape[1], key.shape[1])
    index = jnp.sum(_most_consecutive(documents) > jnp.array(limits))
    return index, [*kernels, _attend_by_array]


def _attend_by_array(query, key, value, request):
    """Passes the parts of the mask that cuDNN cannot express as a boolean array."""
    lengths = query.shape[1], key.shape[1]
    known, rest = _split(request.mask, *lengths)
    given = rest.values(*lengths)[:, None]
    output_BTNH = _kernel(query, key, value, given, request.scale, known)
    # For a query without allowed keys, cuDNN returns a mean of the values.
    attends_BT = jnp.any(request.mask.values(*lengths), axis=-1)
    return _where(attends_BT, output_BTNH)


def _kernel(query, key, value, mask, scale, known):
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale, implementation="cudnn", **known
    )


def _attend_within_documents(most, query, key, value, request):
    """Passes the offsets and lengths of the documents of each row, of up to `most` documents."""
    # `jax.nn` has no public argument for them.
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    known, documents = _documents(request.mask, query.shape[1], key.shape[1])
    if jax.__version_info__ < (0, 12):
        # It expects offsets of keys for as many heads as the queries have.
        groups = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
    # The kernel neither reads nor writes padding, whose results and gradients are undefined.
    real_BT = documents.query > 0
    query, key, value = (_where(real_BT, x) for x in (query, key, value))
    offsets, lengths = _extents(documents.query, most)
    window = known.get("local_window_size")
    output_BTNH = dot_product_attention(
        query,
        key,
        value,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=offsets,
        kv_offsets=offsets,
        scale=request.scale,
        mask_type=MaskType.CAUSAL if known["is_causal"] else MaskType.NO_MASK,
        sliding_window_length=None if window is None else window[0] + 1,
    )
    return _where(real_BT, output_BTNH)


def _where(rows_BT: jax.Array, x_BTNH: jax.Array) -> jax.Array:
    """Zeros, with zero gradients, outside of the given rows."""
    return jnp.where(rows_BT[:, :, None, None], x_BTNH, jnp.zeros((), x_BTNH.dtype))


def _takes_documents(query: jax.Array) -> bool:
    """Whether cuDNN takes offsets of documents: its int32 offsets count numbers, not tokens."""
    return _compute_capability() >= (9, 0) and query.size < 1 << 31


def _documents(mask: Mask, query_length: int, key_length: int) -> tuple[dict, Segments | None]:
    """Splits a mask of packed documents, if it is one, into keyword arguments and the documents."""
    terms = terms_of(mask)
    found = [term for term in terms if isinstance(term, Segments)]
    others = All(tuple(term for term in terms if not isinstance(term, Segments)))
    known, rest = _split(others, query_length, key_length)
    if len(found) != 1 or terms_of(rest) or found[0].query.shape != found[0].key.shape:
        return {}, None
    return known, found[0]


def _starts(ids_BT: jax.Array) -> jax.Array:
    before = jnp.pad(ids_BT[:, :-1], ((0, 0), (1, 0)))
    return (ids_BT != before) & (ids_BT > 0)


def _most_consecutive(documents: Segments) -> jax.Array:
    """The largest number of documents of a row; too many unless they are consecutive in q and k."""
    ids_BT = documents.query
    starts_BT = _starts(ids_BT)
    before = jnp.pad(jax.lax.cummax(ids_BT, axis=1)[:, :-1], ((0, 0), (1, 0)))
    ascending = jnp.all(~starts_BT | (ids_BT > before))
    most = jnp.max(jnp.sum(starts_BT, axis=1))
    return jnp.where(ascending & jnp.all(ids_BT == documents.key), most, _MANY_DOCUMENTS + 1)


def _extents(ids_BT: jax.Array, most: int) -> tuple[jax.Array, jax.Array]:
    """The offsets `[B, most + 1]` and the lengths `[B, most]` of documents; -1 for missing ones."""
    starts_BT = _starts(ids_BT)
    order_BT = jnp.where(ids_BT > 0, jnp.cumsum(starts_BT, axis=1) - 1, -1)
    is_of_BTM = order_BT[:, :, None] == jnp.arange(most + 1)[None, None]
    lengths = jnp.sum(is_of_BTM, axis=1, dtype=jnp.int32)
    offsets = jnp.argmax(is_of_BTM, axis=1).astype(jnp.int32)
    exists = lengths > 0
    return jnp.where(exists, offsets, -1), jnp.where(exists, lengths, -1)[:, :most]


def _compute_capability() -> tuple[int, int]:
    """Returns the compute capability of the GPU traced for; (0, 0) without an NVIDIA GPU."""
    if platform() != "gpu" or "cuda" not in get_backend().platform_version:
        return 0, 0
    major, minor = jax.local_devices()[0].compute_capability.split(".")
    return int(major), int(minor)


def _split(mask: Mask, query_length: int, key_length: int) -> tuple[dict, Mask]:
    """Splits a mask into keyword arguments for cuDNN and the remaining mask."""
    terms = terms_of(mask)
    band = next((term for term in terms if _is_causal(term)), None)
    if len(terms) == 1 and band is not None and query_length <= key_length:
        # Without `is_causal`, jax 0.10 ignores the right end of the window.
        window = None if band.before is None else (band.before, 0)
        return {"is_causal": True, "local_window_size": window}, Mask()
    rest = tuple(term for term in terms if not (_is_causal(term) and term == causal()))
    return {"is_causal": band is not None}, All(rest)


def _is_causal(term: Mask) -> bool:
    """Whether a mask is a band that ends with the query, whose offset is statically 0."""
    if not isinstance(term, Band) or not isinstance(term.query_offset, int):
        return False
    return term.query_offset == 0 and term.after == 0
