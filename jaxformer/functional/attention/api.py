"""Scaled dot-product attention: one function, several implementations."""

import importlib
import warnings
from typing import Literal, get_args

import jax

from jaxformer.checks import FINITE, POSITIVE, RATE, check_argument
from jaxformer.functional.activations import is_wanted
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_keys,
    check_choice,
    platform,
    static,
)
from jaxformer.functional.attention import blockwise, reference, ring
from jaxformer.functional.attention.devices import in_mesh, in_order, zigzag
from jaxformer.functional.attention.distances import DistanceTerms
from jaxformer.functional.attention.reference import Request
from jaxformer.functional.dropout import Dropout
from jaxformer.functional.masks import Mask
from jaxformer.functional.masks.arrays import dense_mask
from jaxformer.functional.positions.bias import Bias, DenseBias

Implementation = Literal["auto", "reference", "blockwise", "ring", "cudnn", "splash"]

# The kernels that "auto" tries first; blockwise supports every request.
_PREFERRED = {"gpu": ("cudnn",), "tpu": ("splash",)}


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Mask | jax.Array | None = None,
    bias: Bias | jax.Array | None = None,
    distances: DistanceTerms | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: Implementation = "auto",
    return_weights: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    r"""Scaled dot-product attention with grouped heads.

    .. math:: O = \mathrm{dropout}(\mathrm{softmax}(c(s\, (Q K^\top + R)) + \mathrm{bias}))\, V,
              \qquad c(x) = \mathrm{cap} \tanh(x / \mathrm{cap})

    over the keys that the mask allows; `c` is the identity without a soft-cap, and R is the
    contribution of `distances` (DeBERTa), 0 by default. The softmax is computed in float32; a sink
    adds `exp(sinks[n])` to its denominator. Query head `n` reads key/value head `n // (N / K)`: K =
    N is multi-head, K = 1 multi-query attention.
    A query whose keys are all masked gives zeros, with zero gradients; B, T and S may be 0. In an
    explicit mesh each device computes its batch rows, queries and heads, see `devices.in_mesh`.

    The activations "hook_attn_scores" (scaled, capped, biased, -inf where masked) and
    "hook_pattern" (the probabilities), `[B, N, T, S]`, are computed by the reference
    implementation, see `functional.activations`.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, S, K, H]` with N a multiple of K.
        value: `[B, S, K, H']`.
        mask: A mask spec such as `causal()`, or a bool array `[T, S]`, `[B or 1, T, S]` or
            `[B or 1, 1, T, S]`, True = attend. None allows every pair.
        bias: Added to the scaled logits: an array `[B or 1, N or 1, T, S]`, or the `Bias` of a
            positional scheme, which the blockwise implementation never materialises.
        distances: R: vectors for the distance between a query and a key, whose products with both
            are added to the scores.
        scale: s, the multiplier of the logits. None means 1/sqrt(H).
        softcap: Bounds the logits to +-softcap (Gemma 2), before bias and mask.
        sinks: `[N]`: for each head the logit of a key without a value, which every query may
            attend to (gpt-oss). None means no sinks.
        dropout_rate: The probability in [0, 1) with which an attention probability is dropped.
            The dropped pairs are a function of the key and the (b, n, t, s) index alone.
        dropout_key: A PRNG key. None means no dropout.
        implementation: "reference" defines the semantics; "blockwise" needs O(T + S) memory;
            "ring" is blockwise with keys that go around the devices along time, so that none holds
            those of whole rows; "cudnn" (GPU) and "splash" (TPU) are accelerator kernels. These
            three fall back to "blockwise" with a warning if they cannot express the request; "auto"
            chooses, but never the ring.
        return_weights: Also return the probabilities, after dropout, from the reference.

    Returns:
        `[B, T, N, H']` in the dtype of `query`; with `return_weights` also `[B, N, T, S]` float32.

    Raises:
        AssertionError: The arrays, the mask, the bias or the distances have shapes that do not fit
            together, or the wrong dtype.
        ArgumentError: The implementation is unknown, or a number is out of range.

    References:
        Vaswani et al., Attention Is All You Need (https://arxiv.org/abs/1706.03762);
        Ainslie et al., GQA (https://arxiv.org/abs/2305.13245);
        Xiao et al., Attention Sinks (https://arxiv.org/abs/2309.17453).
    """
    sizes = _check_arrays(query, key, value)
    if mask is None:
        mask = Mask()
    elif not isinstance(mask, Mask):
        mask = dense_mask(mask, sizes)
    # Slices beyond the end of an array are clamped silently, so check the length here.
    assert_axes(sizes, mask=(_materialised(mask, sizes["T"], sizes["S"]), "B/1 T S"))
    if bias is not None:
        values = _materialised(bias) if isinstance(bias, Bias) else bias
        assert_axes(sizes, bias=(values, "B/1 N/1 T S"))
        assert_floating(bias=values)
        bias = bias if isinstance(bias, Bias) else DenseBias(bias)
    if distances is not None:
        known = isinstance(distances, DistanceTerms)
        check_argument("distances", distances, known, "a DistanceTerms, or None")
        distances.check(sizes, "distances.keys", "distances.queries")
    if sinks is not None:
        assert_axes(sizes, sinks=(sinks, "N"))
        assert_floating(sinks=sinks)
    check_choice("implementation", implementation, get_args(Implementation))
    dropout_rate = static("dropout_rate", dropout_rate, RATE)
    dropout = None
    if dropout_rate > 0.0 and dropout_key is not None:
        assert_keys(dropout_key=dropout_key)
        dropout = Dropout.create(dropout_key, dropout_rate, query.shape[0], query.shape[2])
    request = Request(
        mask=mask,
        bias=bias,
        dropout=dropout,
        scale=query.shape[-1] ** -0.5 if scale is None else static("scale", scale, FINITE),
        softcap=None if softcap is None else static("softcap", softcap, POSITIVE),
        distances=distances,
        sinks=sinks,
    )
    if return_weights or is_wanted("hook_attn_scores", "hook_pattern"):
        found = reference.attend_with_weights(query, key, value, request, in_mesh)
        return found if return_weights else found[0]
    attend = _choose(implementation, query, key, value, request)
    if attend is ring.attend:
        return in_mesh(blockwise.attend, query, key, value, request, turns=attend)
    parts = zigzag if request.mask.grows and attend is not reference.attend else in_order
    return in_mesh(attend, query, key, value, request, parts)


def _check_arrays(query, key, value) -> dict[str, int]:
    """Checks shapes and dtypes; returns the sizes of the axes by their letters."""
    sizes = assert_axes(query=(query, "B T N H"), key=(key, "B S K H"))
    assert_axes(sizes, value=(value, "B S K _"))
    assert_floating(query=query, key=key, value=value)
    heads, kv_heads = sizes["N"], sizes["K"]
    if 0 in (heads, kv_heads, sizes["H"], value.shape[3]):
        raise AssertionError(
            f"query has shape {query.shape}, key {key.shape}, value {value.shape}: there must be "
            "at least one head of positive width"
        )
    if heads % kv_heads:
        raise AssertionError(
            f"query has N = {heads} heads, key K = {kv_heads}: N must be a multiple of K"
        )
    return sizes


def _materialised(spec: Mask | Bias, *lengths: int) -> jax.ShapeDtypeStruct:
    """Returns the shape of a mask's or bias's values without computing them."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), spec)
    return jax.eval_shape(lambda spec: spec.values(*lengths), shapes)


def _choose(implementation, query, key, value, request):
    """Selects an implementation for a request and returns its `attend` function."""
    is_auto = implementation == "auto"
    # A decode step has one query per row, so blocks would not help.
    is_step = is_auto and query.shape[1] == 1
    if implementation == "reference" or is_step or 0 in (query.size, key.size):
        return reference.attend
    if implementation == "blockwise":
        return blockwise.attend
    for name in _PREFERRED.get(platform(), ()) if is_auto else (implementation,):
        # Imported on first use, since the TPU kernel imports all of Pallas.
        chosen = importlib.import_module(f"jaxformer.functional.attention.{name}")
        reason = chosen.unsupported(query, key, value, request)
        if reason is None:
            return chosen.attend
        if not is_auto:
            message = f"attention: {name} cannot run here ({reason}); using blockwise"
            warnings.warn(message, stacklevel=3)
    return blockwise.attend
