"""The Attention module against attention written out in float64, and what its fields do."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64 import double, filled, normalised, projected, stream
from tiny_models import close, tiny

from jaxformer.functional import (
    ALiBi,
    DenseMask,
    KeyPadding,
    Mask,
    NoPosition,
    RMSNorm,
    RoPE,
    causal,
)
from jaxformer.nn import (
    Attention,
    Context,
    CrossAttention,
    DotProductCrossAttention,
    SelfAttention,
)

T, S = 5, 8
POSITIONS = jnp.array([[0, 1, 2, 3, 4], [7, 9, 10, 11, 15]])
KEY_POSITIONS = jnp.array([[*range(S)], [*range(4, 4 + S)]])
THETA = 100.0
BIASED = {"self_attention.bias": True, "self_attention.output_bias": True}


def made(position=NoPosition(), **changes):  # noqa: B008
    build = partial(Attention, config=tiny(**changes), position=position)
    return filled(jax.eval_shape(build, jax.random.key(0)))


def turned(x, positions):
    """RoPE in the half layout as multiplication by complex numbers."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions)[..., None, None] / THETA ** (np.arange(half) / half)
    rotated = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([rotated.real, rotated.imag], -1)


def written_out(module, x, kv, allowed, *, scale, rotate=False, softcap=None, bias=0.0):
    """Attention one query head at a time; `allowed` is bool `[B, T, S]`."""
    query, key = projected(module.query, x), projected(module.key, kv)
    value = projected(module.value, kv)
    if module.query_norm is not None:
        query, key = normalised(query, module.query_norm), normalised(key, module.key_norm)
    if rotate:
        query, key = turned(query, POSITIONS), turned(key, KEY_POSITIONS)
    heads = []
    for n in range(query.shape[2]):
        shared = n // (query.shape[2] // key.shape[2])
        scores = query[:, :, n] @ key[:, :, shared].swapaxes(1, 2) * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores + (bias if np.isscalar(bias) else bias[:, n])) * allowed
        sink = 0.0 if module.sinks is None else np.exp(double(module.sinks)[n])
        weights /= weights.sum(-1, keepdims=True) + sink
        heads.append(weights @ value[:, :, shared])
    return projected(module.output, np.stack(heads, axis=2))


ALLOWED = np.random.default_rng(5).random((2, T, S)) < 0.7
ALLOWED[:, :, 2] = True
CASES = {
    "grouped": {},
    "multi-query": {"num_kv_heads": 1},
    "multi-head": {"num_kv_heads": 6},
    "biases": BIASED,
    "scale": {"self_attention.scale": 0.9},
    "softcap": {"self_attention.softcap": 0.8},
    "norms": {"self_attention.query_key_norm": RMSNorm(eps=1e-2)},
    "joint norms": {
        "self_attention.query_key_norm": RMSNorm(eps=1e-2),
        "self_attention.query_key_norm_over": "all_heads",
    },
    "blockwise": {"attention": "blockwise", "self_attention.softcap": 0.8},
    "sinks": {"self_attention.sinks": True},
    "blockwise sinks": {"attention": "blockwise", "self_attention.sinks": True},
    "widths": {"head_dim": 6, "value_dim": 10},
    "blockwise widths": {"attention": "blockwise", "head_dim": 6, "value_dim": 10},
}


@pytest.mark.first("*-grouped")
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.quick("*-grouped", "True-*")
def test_to_encoder_outputs_of_another_length(changes, rotate):
    module = made(RoPE(theta=THETA) if rotate else NoPosition(), **changes)
    x, kv = stream(T), stream(S, seed=2)
    actual = module(
        x,
        kv=kv,
        mask=DenseMask(jnp.asarray(ALLOWED)),
        positions=POSITIONS,
        kv_positions=KEY_POSITIONS,
    )
    expected = written_out(
        module,
        x,
        kv,
        ALLOWED,
        scale=changes.get("self_attention.scale", changes.get("head_dim", 4) ** -0.5),
        softcap=changes.get("self_attention.softcap"),
        rotate=rotate,
    )
    close(actual, expected)


def test_the_bias_of_a_positional_scheme_is_added():
    module, x, kv = made(), stream(T), stream(S, seed=2)
    bias = ALiBi().bias(POSITIONS, KEY_POSITIONS, num_heads=6)
    actual = module(x, kv=kv, mask=Mask(), positions=POSITIONS, bias=bias)
    everything = np.ones((2, T, S))
    values = np.asarray(bias.values(), np.float64)
    expected = written_out(module, x, kv, everything, scale=0.5, bias=values)
    close(actual, expected)


@pytest.mark.parametrize("window", [1, 3, T, None])
def test_a_window_is_the_latest_keys_among_those_the_context_allows(window):
    config = tiny(position=NoPosition(), **{"self_attention.output_bias": True})
    sublayer = filled(SelfAttention(jax.random.key(0), config, config.position, window))
    valid = jnp.array([[True, True, True, True, False], [False, True, True, True, True]])
    context = Context(positions=POSITIONS, mask=causal() & KeyPadding(valid))
    row, column = np.mgrid[:T, :T]
    allowed = (column <= row) & (column > row - (window or T)) & np.asarray(valid)[:, None]
    seen = allowed.any(-1)
    expected = written_out(
        sublayer.attention, stream(T), stream(T), allowed + ~seen[..., None], scale=0.5
    )
    # A query that sees nothing attends to nothing: what is left is the output's bias.
    expected[~seen] = double(sublayer.attention.output.bias)
    actual = sublayer(stream(T), context, None)
    close(actual, expected)


def test_cross_attention_reads_encoder_outputs_where_its_mask_allows():
    config = tiny(cross_attention=DotProductCrossAttention(), encoder_dim=12)
    sublayer = filled(CrossAttention(jax.random.key(0), config))
    x, encoder_outputs = stream(T), stream(S, seed=2, width=12)
    valid = jnp.arange(S)[None] < jnp.array([[S], [3]])
    # The mask of self-attention (causal here) has no part in it.
    context = Context(
        POSITIONS, causal(), encoder_outputs=encoder_outputs, encoder_mask=KeyPadding(valid)
    )
    actual = sublayer(x, context, None)
    allowed = np.broadcast_to(np.asarray(valid)[:, None], (2, T, S))
    expected = written_out(sublayer.attention, x, encoder_outputs, allowed, scale=0.5)
    close(actual, expected)
    # Without positions the order of the encoder outputs has no effect.
    order = np.random.default_rng(0).permutation(S)
    shuffled = replace(
        context, encoder_outputs=encoder_outputs[:, order], encoder_mask=KeyPadding(valid[:, order])
    )
    close(sublayer(x, shuffled, None), actual)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_result_has_the_dtype_of_the_stream(dtype):
    module = made(RoPE(theta=THETA), **{"self_attention.query_key_norm": RMSNorm()})
    x = stream(T).astype(dtype)
    assert module(x, mask=causal(), positions=POSITIONS).dtype == dtype
