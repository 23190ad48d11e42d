"""Scaled dot-product attention: one contract, several implementations."""

import warnings
from typing import Literal

import chex
import jax
from jax.sharding import PartitionSpec

from jaxformer.functional import (
    attention_blockwise,
    attention_cudnn,
    attention_reference,
    attention_splash,
)
from jaxformer.functional.attention_request import AttentionBias, Dropout, Request
from jaxformer.functional.masks import Mask
from jaxformer.functional.placement import place, platform, spec_of
from jaxformer.functional.position import Bias

Implementation = Literal["auto", "reference", "blockwise", "cudnn", "splash"]

_IMPLEMENTATIONS = {
    "reference": attention_reference,
    "blockwise": attention_blockwise,
    "cudnn": attention_cudnn,
    "splash": attention_splash,
}
# The kernels that "auto" asks first; blockwise can express everything.
_PREFERRED = {"gpu": ("cudnn",), "tpu": ("splash",)}


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Mask | None = None,
    bias: AttentionBias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = "auto",
    return_weights: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Scaled dot-product attention with grouped heads.

    .. math:: O = \mathrm{dropout}(\mathrm{softmax}(c(s\, Q K^\top) + \mathrm{bias}))\, V,
              \qquad c(x) = \mathrm{cap} \tanh(x / \mathrm{cap})

    over the keys that the mask allows; `c` is the identity without a soft-cap. A query that may
    attend to nothing gives zeros, with zero gradients. The softmax is computed in float32. Query
    head `n` reads key/value head `n // (N / K)`: K = N is multi-head, K = 1 multi-query attention.
    In an explicit mesh each device attends within its own batch rows and heads.

    Args:
      query: `[B, T, N, H]`.
      key: `[B, S, K, H]` with N a multiple of K.
      value: `[B, S, K, H']`.
      mask: a spec of `jaxformer.functional.masks`; None allows every pair.
      bias: added to the scaled logits: an array `[B or 1, N or 1, T, S]`, or a `Bias` that a
        positional scheme makes (never materialised by the blockwise implementation).
      scale: multiplies the logits; None is 1/sqrt(H).
      softcap: bounds the logits to +-softcap (Gemma 2), before the bias and the mask.
      dropout_rate: the probability in [0, 1) with which an attention probability is dropped.
        The dropped pairs are a function of the key and the (b, n, t, s) index alone.
      dropout_key: a PRNG key; None means no dropout.
      implementation: "reference" defines the semantics; "blockwise" needs O(T + S) memory;
        "cudnn" (GPU) and "splash" (TPU) are accelerator kernels, which fall back to "blockwise"
        with a warning where they cannot express the request; "auto" chooses.
      return_weights: also return the probabilities (after dropout), by the reference.

    Returns:
      `[B, T, N, H']` in the dtype of `query`; with `return_weights` also `[B, N, T, S]` float32.

    Raises:
      AssertionError: for arrays, a mask or a bias whose shapes do not fit together.
      ValueError: for an unknown implementation or a dropout rate outside [0, 1).

    References:
      Vaswani et al., Attention is all you need, 2017. Ainslie et al., GQA, 2023.
    """
    mask = Mask() if mask is None else mask
    _check_shapes(query, key, value, mask, bias)
    if not 0.0 <= dropout_rate < 1.0:
        raise ValueError(f"attention: dropout_rate must be in [0, 1), got {dropout_rate}")
    dropout = None
    if dropout_rate > 0.0 and dropout_key is not None:
        dropout = Dropout.create(dropout_key, dropout_rate, query.shape[0], query.shape[2])
    request = Request(
        mask=mask,
        bias=bias,
        dropout=dropout,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
    )
    if return_weights:
        return _per_device(attention_reference.attend_with_weights, 2, query, key, value, request)
    attend = _choose(implementation, query, key, value, request)
    return _per_device(attend, 1, query, key, value, request)


def _check_shapes(query, key, value, mask, bias):
    chex.assert_rank([query, key, value], 4)
    chex.assert_equal_shape_prefix([key, value], 3)
    chex.assert_equal(query.shape[0], key.shape[0])
    chex.assert_equal(query.shape[3], key.shape[3])
    chex.assert_is_divisible(query.shape[2], key.shape[2])
    batch, length, num_heads, _ = query.shape
    pairs = (length, key.shape[1])
    # A slice beyond an array's end is clamped without a word, so a wrong length is caught here.
    chex.assert_shape(_materialised(mask, *pairs), ({1, batch}, *pairs))
    if bias is not None:
        values = _materialised(bias) if isinstance(bias, Bias) else bias
        chex.assert_shape(values, ({1, batch}, {1, num_heads}, *pairs))


def _materialised(spec: Mask | Bias, *lengths: int) -> jax.ShapeDtypeStruct:
    """The shape of a mask's or a bias's values, without computing them or asking for a mesh."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), spec)
    return jax.eval_shape(lambda spec: spec.values(*lengths), shapes)


def _choose(implementation, query, key, value, request):
    if implementation == "auto":
        # One query per row (a decode step) has nothing to save by working in blocks.
        if query.shape[1] == 1:
            return attention_reference.attend
        for name in _PREFERRED.get(platform(), ()):
            if _IMPLEMENTATIONS[name].unsupported(query, key, value, request) is None:
                return _IMPLEMENTATIONS[name].attend
        return attention_blockwise.attend
    if implementation not in _IMPLEMENTATIONS:
        names = ", ".join(["auto", *_IMPLEMENTATIONS])
        raise ValueError(f"attention: unknown implementation {implementation!r}; one of {names}")
    chosen = _IMPLEMENTATIONS[implementation]
    reason = chosen.unsupported(query, key, value, request)
    if reason is None:
        return chosen.attend
    message = f"attention: {implementation} cannot run here ({reason}); using blockwise"
    warnings.warn(message, stacklevel=3)
    return attention_blockwise.attend


def _per_device(attend, num_outputs, query, key, value, request):
    """Runs `attend` on each device's own rows and heads where the arrays are sharded."""
    spec = spec_of(query)
    if spec is None:
        return attend(query, key, value, request)
    batch, _, heads, _ = spec
    of_query = PartitionSpec(batch, None, heads, None)
    of_key = PartitionSpec(batch, None, heads if key.shape[2] > 1 else None, None)
    of_request = request.partition_specs(query.shape[0], query.shape[2], batch, heads)
    in_specs = (of_query, of_key, of_key, of_request)
    out_specs = (of_query, PartitionSpec(batch, heads, None, None))[:num_outputs]
    arguments = jax.tree.map(place, (query, key, value, request), in_specs)
    return jax.shard_map(
        attend,
        in_specs=in_specs,
        out_specs=out_specs if num_outputs > 1 else out_specs[0],
        check_vma=False,
    )(*arguments)
