"""Inputs of attention in all their kinds, and what it should make of them."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import (
    ALiBi,
    Band,
    Bias,
    DenseMask,
    KeyPadding,
    KeyRange,
    Mask,
    Prefix,
    Segments,
    T5Bias,
    attention,
    block_sparse,
    causal,
    sliding_window,
)
from jaxformer.functional.dropout import Dropout

BOTH = pytest.mark.parametrize("implementation", ["reference", "blockwise"])
BATCH = 2
# Half the time to compile, and arithmetic is what is tested here.
quick_jit = partial(
    jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0}
)


def arrays(length, num_keys, heads=(2, 2), widths=(4, 4), seed=0, dtype=np.float32, batch=BATCH):
    """Random query, key, value and output cotangent."""
    (num_heads, num_kv_heads), (width, value_width) = heads, widths
    random = np.random.default_rng(seed)
    shapes = [
        (batch, length, num_heads, width),
        (batch, num_keys, num_kv_heads, width),
        (batch, num_keys, num_kv_heads, value_width),
        (batch, length, num_heads, value_width),
    ]
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def random_mask(kind, length, num_keys, seed=0):
    """A mask of some kind, with padding, documents and prefixes at random places."""
    return _masks(length, num_keys, seed)[kind]()


def _masks(length, num_keys, seed):
    random = np.random.default_rng(seed)
    real = random.integers(1, num_keys + 1, (BATCH, 1))
    index = np.arange(num_keys)

    def documents(size):
        ends = np.sort(random.integers(0, max(length, num_keys), (BATCH, 3)))
        ids = 1 + np.sum(np.arange(size)[None, :, None] >= ends[:, None], axis=-1)
        return jnp.asarray(np.where(ids > 3, 0, ids))

    offsets = jnp.asarray(random.integers(-3, num_keys, BATCH))
    return {
        "none": lambda: Mask(),
        "causal": lambda: causal(),
        "shifted": lambda: causal(num_keys - length),
        "rows": lambda: causal(offsets),
        "window": lambda: sliding_window(9, 5),
        "window rows": lambda: sliding_window(50, offsets),
        "band": lambda: Band(before=3, after=20),
        "prefix": lambda: Prefix(jnp.asarray(real[:, 0])),
        "left padding": lambda: KeyPadding(jnp.asarray(index >= num_keys - real)),
        "right padding": lambda: KeyPadding(jnp.asarray(index < real)),
        "segments": lambda: Segments(documents(length), documents(num_keys)),
        "blocks": lambda: block_sparse(max(length, num_keys), 8),
        "global keys": lambda: Band(before=3, after=4, query_offset=6) | KeyRange(0, 6),
        "dense": lambda: DenseMask(jnp.asarray(random.random((BATCH, length, num_keys)) < 0.3)),
        "dense one": lambda: DenseMask(jnp.asarray(random.random((1, length, num_keys)) < 0.01)),
    }


KINDS = tuple(_masks(1, 1, 0))


def make_bias(kind, length, num_keys, num_heads, shape=None):
    random = np.random.default_rng(1)
    # Positions that restart, as those of packed documents.
    positions = [jnp.asarray(np.arange(size)[None] % 60) for size in (length, num_keys)]
    if kind is None:
        return None
    if kind == "array":
        shape = (BATCH, num_heads) if shape is None else shape
        return jnp.asarray(random.normal(size=(*shape, length, num_keys)))
    if kind == "alibi":
        return ALiBi().bias(*positions, num_heads=num_heads)
    table = jnp.asarray(random.normal(size=(8, num_heads)), jnp.float32)
    scheme = T5Bias(num_buckets=8, max_distance=20, bidirectional=True)
    return scheme.bias(*positions, num_heads=num_heads, table=table)


def value_and_gradients(implementation, inputs, cotangent, bias=None, mask=None, **options):
    """The output and the gradients of query, key, value and perhaps sinks, and the bias's array."""
    key = options.pop("dropout_key", None)
    static = (implementation, tuple(options.items()))
    inputs = tuple(map(jnp.asarray, inputs))
    return _value_and_gradients(static, inputs, jnp.asarray(cotangent), bias, mask, key)


@quick_jit
def _value_and_gradients(static, inputs, cotangent, bias, mask, key):
    implementation, options = static

    def output(inputs, array):
        whole = replace(bias, heads=array) if isinstance(bias, Bias) else array
        query, key_, value, *sinks = inputs
        choices = {"mask": mask, "bias": whole, "dropout_key": key, **dict(options)}
        choices |= dict(zip(["sinks"], sinks, strict=False))
        return attention(query, key_, value, implementation=implementation, **choices)

    array = bias.heads if isinstance(bias, Bias) else bias
    value, pull = jax.vjp(output, inputs, array)
    return value, pull(cotangent)


@quick_jit
def written_out(static, mask, bias, key):
    """The pairs that a mask allows, a bias's values and dropout's factors, as arrays."""
    (batch, num_heads, length, num_keys), rate = static
    allowed = None if mask is None else mask.values(length, num_keys)[:, None]
    values = bias.values() if isinstance(bias, Bias) else bias
    if not rate:
        return allowed, values, None
    drop = Dropout.create(key, rate, batch, num_heads)
    return allowed, values, drop.factors(0, length, 0, num_keys)


@quick_jit
def of_heads(static, bias, of_values):
    """The gradient of a bias's heads, given that of its values."""
    _, pull = jax.vjp(lambda heads: replace(bias, heads=heads).values(), bias.heads)
    return pull(of_values.astype(jnp.float32))[0]


def exact(
    inputs, cotangent, mask=None, bias=None, scale=None, softcap=None, dropout_rate=0.0, **keys
):
    """What `value_and_gradients` should give, as the definition says, by NumPy in float64."""
    inputs = [np.asarray(x, np.float64) for x in (*inputs, cotangent)]
    query, key, value, *sinks, cotangent = inputs
    batch, length, num_heads, width = query.shape
    num_keys, num_kv_heads = key.shape[1:3]
    keys_of, values_of = (np.repeat(x, num_heads // num_kv_heads, axis=2) for x in (key, value))
    scale = width**-0.5 if scale is None else scale
    logits = scale * np.einsum("btnh,bsnh->bnts", query, keys_of)
    static = ((batch, num_heads, length, num_keys), dropout_rate)
    allowed, added, factors = written_out(static, mask, bias, keys.get("dropout_key"))
    capped, slope = logits, 1.0
    if softcap is not None:
        capped = softcap * np.tanh(logits / softcap)
        slope = 1 - (capped / softcap) ** 2
    if added is not None:
        capped = capped + np.asarray(added, np.float64)
    if allowed is not None:
        capped = np.where(allowed, capped, -np.inf)
    highest = np.max(capped, axis=-1, keepdims=True)
    weights = np.exp(capped - np.where(np.isfinite(highest), highest, 0.0))
    total = np.sum(weights, axis=-1, keepdims=True)
    if sinks:
        of_sink = np.exp(sinks[0][:, None, None] - np.where(np.isfinite(highest), highest, 0.0))
        total += of_sink
        of_sink = of_sink / total
    weights /= np.where(total == 0, 1.0, total)
    kept = 1.0 if factors is None else np.asarray(factors, np.float64)
    output = np.einsum("bnts,bsnh->btnh", weights * kept, values_of)

    of_weights = np.einsum("btnh,bsnh->bnts", cotangent, values_of) * kept
    mean = np.sum(of_weights * weights, axis=-1, keepdims=True)
    of_logits = weights * (of_weights - mean)
    of_scores = scale * slope * of_logits
    of_query = np.einsum("bnts,bsnh->btnh", of_scores, keys_of)
    of_key, of_value = (
        np.einsum("bnts,btnh->bsnh", pairs, x).reshape(
            batch, num_keys, num_kv_heads, -1, x.shape[3]
        )
        for pairs, x in ((of_scores, query), (weights * kept, cotangent))
    )
    of_bias = None
    if added is not None:
        single = tuple(axis for axis, size in enumerate(added.shape) if size == 1)
        of_bias = np.sum(of_logits, axis=single, keepdims=True)
    if isinstance(bias, Bias):
        of_bias = of_heads((), bias, of_bias)
    of_sinks = [-np.sum(of_sink * mean, axis=(0, 2, 3))] if sinks else []
    return output, ((of_query, of_key.sum(3), of_value.sum(3), *of_sinks), of_bias)


def assert_trees_close(actual, expected, tolerance):
    """Largest difference relative to the largest entry, for every array of the tree."""
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        x, y = (np.asarray(a, np.float64) for a in (x, y))
        scale = max(1.0, np.max(np.abs(y), initial=0.0))
        difference = np.max(np.abs(x - y), initial=0.0)
        assert difference <= tolerance * scale, (x.shape, difference, scale)
