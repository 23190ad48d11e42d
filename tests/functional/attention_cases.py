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
from jaxformer.functional.attention.request import Dropout

BOTH = pytest.mark.parametrize("implementation", ["reference", "blockwise"])
BATCH = 2
# Half the time to compile, and arithmetic is what is tested here.
quick_jit = partial(
    jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0}
)


def arrays(length, num_keys, heads=(2, 2), widths=(4, 4), seed=0, dtype=np.float32):
    """Random query, key, value and output cotangent."""
    (num_heads, num_kv_heads), (width, value_width) = heads, widths
    random = np.random.default_rng(seed)
    shapes = [
        (BATCH, length, num_heads, width),
        (BATCH, num_keys, num_kv_heads, width),
        (BATCH, num_keys, num_kv_heads, value_width),
        (BATCH, length, num_heads, value_width),
    ]
    return [random.normal(size=shape).astype(dtype) for shape in shapes]


def random_mask(kind, length, num_keys, seed=0):
    """A mask of some kind, with padding, documents and prefixes at random places."""
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
        "right padding": lambda: KeyPadding(jnp.asarray(index < real)),
        "left padding": lambda: KeyPadding(jnp.asarray(index >= num_keys - real)),
        "segments": lambda: Segments(documents(length), documents(num_keys)),
        "blocks": lambda: block_sparse(max(length, num_keys), 8),
        "global keys": lambda: Band(before=3, after=4, query_offset=6) | KeyRange(0, 6),
        "dense": lambda: DenseMask(jnp.asarray(random.random((BATCH, length, num_keys)) < 0.3)),
        "dense one": lambda: DenseMask(jnp.asarray(random.random((1, length, num_keys)) < 0.01)),
    }[kind]()


KINDS = (
    "none",
    "causal",
    "shifted",
    "rows",
    "window",
    "window rows",
    "band",
    "prefix",
    "left padding",
    "right padding",
    "segments",
    "blocks",
    "global keys",
    "dense",
    "dense one",
)


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
    """The output and the gradients of query, key, value and the bias's array."""
    key = options.pop("dropout_key", None)
    static = (implementation, tuple(options.items()))
    inputs = tuple(map(jnp.asarray, inputs))
    return _value_and_gradients(static, inputs, jnp.asarray(cotangent), bias, mask, key)


@quick_jit
def _value_and_gradients(static, inputs, cotangent, bias, mask, key):
    implementation, options = static

    def output(inputs, array):
        whole = replace(bias, heads=array) if isinstance(bias, Bias) else array
        choices = {"mask": mask, "bias": whole, "dropout_key": key, **dict(options)}
        return attention(*inputs, implementation=implementation, **choices)

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
    """What `value_and_gradients` should give: the definition and its derivative, in float64."""
    query, key, value, cotangent = (np.asarray(x, np.float64) for x in (*inputs, cotangent))
    group = query.shape[2] // key.shape[2]
    keys_of_heads, values_of_heads = (np.repeat(x, group, axis=2) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = scale * np.einsum("btnh,bsnh->bnts", query, keys_of_heads)
    allowed, added, factors = (
        None if x is None else np.asarray(x)
        for x in written_out((logits.shape, dropout_rate), mask, bias, keys.get("dropout_key"))
    )
    slope = scale
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
        slope = scale * (1 - np.square(logits / softcap))
    if added is not None:
        logits = logits + added
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
    highest = np.max(logits, axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(highest), highest, 0.0))
    total = np.sum(weights, axis=-1, keepdims=True)
    weights = weights / np.where(total > 0, total, 1.0)  # a query that sees nothing gives zeros
    kept = weights if factors is None else weights * factors
    output = np.einsum("bnts,bsnh->btnh", kept, values_of_heads)

    of_weights = np.einsum("btnh,bsnh->bnts", cotangent, values_of_heads)
    of_weights = of_weights if factors is None else of_weights * factors
    mean = np.sum(weights * of_weights, axis=-1, keepdims=True)
    of_logits = weights * (of_weights - mean)
    of_query = np.einsum("bnts,bsnh->btnh", slope * of_logits, keys_of_heads)
    of_keys = np.einsum("bnts,btnh->bsnh", slope * of_logits, query)
    of_values = np.einsum("bnts,btnh->bsnh", kept, cotangent)
    of_key, of_value = (
        np.sum(x.reshape(*x.shape[:2], -1, group, x.shape[-1]), axis=3)
        for x in (of_keys, of_values)
    )
    of_bias = None
    if added is not None:
        spread = tuple(axis for axis, size in enumerate(added.shape) if size == 1)
        of_bias = np.sum(of_logits, axis=spread, keepdims=True)
    if isinstance(bias, Bias):
        of_bias = of_heads((), bias, of_bias)
    return output, ((of_query, of_key, of_value), of_bias)


def assert_trees_close(actual, expected, tolerance):
    """Largest difference relative to the largest entry, for every array of the tree."""
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        x, y = (np.asarray(a, np.float64) for a in (x, y))
        scale = max(1.0, np.max(np.abs(y), initial=0.0))
        difference = np.max(np.abs(x - y), initial=0.0)
        assert difference <= tolerance * scale, (x.shape, difference, scale)


@quick_jit
def forward(implementation, inputs, mask):
    return attention(*inputs, mask=mask, implementation=implementation)
