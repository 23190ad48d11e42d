"""Queries, keys and values that are sharded along time."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    BATCH,
    arrays,
    assert_trees_close,
    make_bias,
    random_mask,
    value_and_gradients,
)
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer.functional import (
    Bias,
    DistanceTerms,
    Mask,
    Segments,
    attention,
    causal,
    sliding_window,
)
from jaxformer.functional.attention import blockwise, ring
from jaxformer.functional.attention.reference import Request

P = PartitionSpec
LENGTH = 32

QUICK = (
    # parts, implementation, mask, bias, query and key heads, dropout
    (2, "blockwise", "segments", "t5", (3, 1), 0.2),
    (4, "blockwise", "prefix", "alibi", (6, 2), 0.0),
    (8, "blockwise", "window", None, (4, 4), 0.0),
    (4, "reference", "rows", "array", (6, 2), 0.2),
    (2, "blockwise", "segments", "array", (4, 2), 0.2),  # whole rows of half the heads
    (4, "blockwise", "segments", "t5", (8, 2), 0.2),  # ... of a fourth, with copies of keys
    (2, "reference", "rows", "alibi", (4, 1), 0.2),
    (4, "ring", "segments", "t5", (4, 2), 0.2),
    (2, "ring", "window", "alibi", (4, 4), 0.0),
)
MORE = tuple(
    (parts, implementation, mask, bias, heads, 0.2)
    for implementation in ("blockwise", "reference", "ring")
    for parts, heads in ((2, (4, 4)), (2, (3, 1)), (4, (4, 2)), (8, (4, 1)))
    for mask in ("none", "causal", "prefix", "window", "right padding", "segments", "blocks")
    for bias in (None, "alibi", "t5")
) + tuple(
    (4, "blockwise", mask, "array", (4, 2), 0.0)
    for mask in ("shifted", "rows", "band", "left padding", "global keys", "dense", "dense one")
)


def mesh(parts, rows=1, heads=1):
    names = ("data", "sequence", "tensor")
    return jax.make_mesh((rows, parts, heads), names, axis_types=(AxisType.Explicit,) * 3)


def put(x, *spec):
    return jax.device_put(x, NamedSharding(jax.sharding.get_mesh(), P(*spec)))


def assert_equals_one_device(case, num_keys=LENGTH, beside=False):
    """Compares outputs and gradients with those of a mesh, perhaps cut along rows and heads too."""
    parts, implementation, mask_kind, bias_kind, num_heads, rate = case
    *inputs, cotangent = arrays(LENGTH, num_keys, num_heads)
    mask = random_mask(mask_kind, LENGTH, num_keys)
    bias = make_bias(bias_kind, LENGTH, num_keys, num_heads[0])
    options = {"mask": mask, "dropout_rate": rate, "dropout_key": jax.random.key(3)}
    expected = value_and_gradients(implementation, inputs, cotangent, bias, **options)
    rows, heads = ("data", "tensor") if beside else (None, None)
    with jax.set_mesh(mesh(parts, BATCH, 2) if beside else mesh(parts)):
        key_time = None if num_keys % parts else "sequence"
        times = ("sequence", key_time, key_time, "sequence")
        *inputs, cotangent = (
            put(x, rows, time, heads if x.shape[2] > 1 else None, None)
            for x, time in zip((*inputs, cotangent), times, strict=True)
        )
        if isinstance(bias, Bias) and heads is not None:
            bias = replace(bias, heads=put(bias.heads, *[None] * (bias.heads.ndim - 1), heads))
        actual = value_and_gradients(implementation, inputs, cotangent, bias, **options)
    assert_trees_close(actual, expected, 1e-5)
    assert actual[0].sharding.spec == P(rows, "sequence", heads, None)
    for x, gradient in zip(inputs, actual[1][0], strict=True):
        assert gradient.sharding == x.sharding


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_each_device_has_its_queries_and_all_keys(case):
    assert_equals_one_device(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_every_mask_and_bias(case):
    assert_equals_one_device(case)


@pytest.mark.parametrize("num_heads", [(6, 2), (8, 4), (8, 2)], ids=["keys", "heads", "copies"])
@pytest.mark.quick("heads")
def test_beside_axes_of_rows_and_heads(num_heads):
    assert_equals_one_device((2, "blockwise", "segments", "t5", num_heads, 0.2), beside=True)


@pytest.mark.parametrize("implementation", ["blockwise", "ring"])
def test_cross_attention_to_keys_that_the_axis_does_not_divide(implementation):
    assert_equals_one_device((4, implementation, "right padding", None, (4, 2), 0.0), num_keys=13)


@pytest.mark.more
@pytest.mark.parametrize("num_keys", [20, 24])  # An odd and an even number for each device.
def test_cross_attention_around_a_ring(num_keys):
    assert_equals_one_device((4, "ring", "right padding", None, (4, 2), 0.0), num_keys=num_keys)


@pytest.mark.slow
def test_a_ring_beside_axes_of_rows_and_heads():
    assert_equals_one_device((2, "ring", "segments", "t5", (8, 4), 0.2), beside=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.quick("float32")
def test_a_ring_has_the_sinks_and_the_precision_of_one_device(dtype):
    *inputs, cotangent = (x.astype(dtype) for x in arrays(LENGTH, LENGTH, (4, 2)))
    sinks = jnp.linspace(-1.0, 2.0, 4)
    expected = value_and_gradients("reference", (*inputs, sinks), cotangent, mask=causal())
    with jax.set_mesh(mesh(4)):
        *inputs, cotangent = (put(x, None, "sequence", None, None) for x in (*inputs, cotangent))
        found = value_and_gradients("ring", (*inputs, sinks), cotangent, mask=causal())
    rounding = 1e-5 if dtype == jnp.float32 else 2e-2
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        np.testing.assert_allclose(x, y, atol=rounding * np.abs(y).max())


@pytest.mark.slow
def test_forward_mode_and_second_derivatives_of_a_ring():
    *inputs, cotangent = arrays(16, 16, (2, 1))

    def curved(implementation):
        def loss(inputs):
            output = attention(*inputs, mask=causal(), implementation=implementation)
            return jnp.sum(output * cotangent)

        def moved(inputs, along):
            return jax.jvp(jax.grad(loss), (inputs,), (along,))[1]

        def twice(inputs, along):
            gradient = jax.grad(loss)

            def total(x):
                return sum(jnp.sum(a * b) for a, b in zip(gradient(x), along, strict=True))

            return jax.grad(total)(inputs)

        return jax.jit(lambda x: (moved(x, x), twice(x, x)))

    expected = curved("reference")(inputs)
    with jax.set_mesh(mesh(2)):
        cotangent = put(cotangent, None, "sequence", None, None)
        placed = [put(x, None, "sequence", None, None) for x in inputs]
        found = curved("ring")(placed)
    assert_trees_close(found, expected, 1e-5)


def test_distances():
    *inputs, _ = arrays(LENGTH, LENGTH, (4, 2))
    random = np.random.default_rng(5)
    vectors = [
        jnp.asarray(random.normal(size=(2 * LENGTH - 1, heads, 4)), jnp.float32) for heads in (2, 4)
    ]

    @jax.jit
    def run(inputs, vectors):
        terms = DistanceTerms(*vectors, num_queries=LENGTH)
        return attention(*inputs, distances=terms, implementation="blockwise")

    expected = run(inputs, vectors)
    with jax.set_mesh(mesh(4)):
        inputs = [put(x, None, "sequence", None, None) for x in inputs]
        np.testing.assert_allclose(run(inputs, vectors), expected, atol=1e-5)


def test_the_probabilities_are_those_of_one_device():
    *inputs, _ = arrays(LENGTH, LENGTH, (4, 2))

    @jax.jit
    def weights(inputs, key):
        options = {"dropout_rate": 0.2, "dropout_key": key, "return_weights": True}
        return attention(*inputs, mask=causal(), **options)[1]

    expected = weights(inputs, jax.random.key(3))
    with jax.set_mesh(mesh(4)):
        inputs = [put(x, None, "sequence", None, None) for x in inputs]
        np.testing.assert_allclose(weights(inputs, jax.random.key(3)), expected, atol=1e-6)


EXCHANGES = {
    "enough heads": ("blockwise", (8, 4), causal(), {"all-to-all"}),
    "enough copies": ("blockwise", (8, 2), causal(), {"all-to-all"}),
    "early and late": (
        *("blockwise", (6, 2), causal()),
        {"all-gather", "reduce-scatter", "collective-permute"},
    ),
    "window": ("blockwise", (6, 2), sliding_window(9), {"all-gather", "reduce-scatter"}),
    "all pairs": ("blockwise", (6, 2), None, {"all-gather", "reduce-scatter"}),
    "ring": ("ring", (4, 4), causal(), {"collective-permute"}),
}


@pytest.mark.parametrize(
    ("implementation", "num_heads", "mask", "expected"), EXCHANGES.values(), ids=EXCHANGES
)
def test_what_devices_exchange(implementation, num_heads, mask, expected):
    """Heads for time; or keys, which are gathered, or go around a ring and are never whole."""
    *inputs, cotangent = arrays(LENGTH, LENGTH, num_heads)

    @jax.jit
    def gradients(inputs, cotangent):
        def output(*inputs):
            return attention(*inputs, mask=mask, implementation=implementation)

        return jax.vjp(output, *inputs)[1](cotangent)

    with jax.set_mesh(jax.make_mesh((4,), ("sequence",), axis_types=(AxisType.Explicit,))):
        placed = [put(x, None, "sequence", None, None) for x in (*inputs, cotangent)]
        text = gradients.lower(tuple(placed[:3]), placed[3]).compile().as_text()
    found = re.findall(r" (all-[a-z-]+|reduce-scatter|collective-permute)\(", text)
    assert set(found) == expected, found
    assert found.count("reduce-scatter") <= 2


@pytest.mark.more
@pytest.mark.parametrize("kind", ["causal", "none"])
@pytest.mark.quick("none")
def test_every_device_of_a_ring_computes_as_many_pairs_in_each_turn(kind):
    length, size = 64, 4
    request = Request(causal() if kind == "causal" else Mask(), None, None, 1.0, None)
    half = jnp.zeros((2, 1, 1, 1, length // (2 * size), 4))
    layout = ring.Layout(half.shape[-2], half.shape[-2], 1, blockwise.Blocks(8, 8))

    def count(number):
        pairs = ring._pairs(half, half, request, number[0], layout, "sequence")
        return sum(jnp.sum(pair.mask.values(8, 8)) for _, pair in pairs)[None]

    with jax.set_mesh(mesh(size)):
        specs = {"in_specs": P(None), "out_specs": P("sequence"), "check_vma": False}
        work = [jax.shard_map(count, **specs)(jnp.array([turn])) for turn in range(size)]
    for turn in np.asarray(work):
        assert turn.max() <= 1.05 * turn.mean()
    assert np.sum(work) == (length * (length + 1) // 2 if kind == "causal" else length**2)


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "heads"), [("causal", 3), ("window", 3), ("none", 3), ("documents", 8)]
)
def test_every_device_reads_as_many_keys(monkeypatch, kind, heads, parts):
    def count(query, key, value, request):
        del value
        keys = jnp.sum(request.mask.values(query.shape[1], key.shape[1]), axis=-1)
        device = jax.lax.axis_index("sequence")
        found = jnp.stack([jnp.broadcast_to(device, keys.shape), keys], -1)[:, :, None]
        return jnp.broadcast_to(found, (*query.shape[:3], 2)).astype(query.dtype)

    monkeypatch.setattr(blockwise, "attend", count)
    *inputs, _ = arrays(256, 256, (heads, 1))
    segments = np.repeat([[1, 2, 3], [1, 2, 3]], [200, 40, 16], axis=1)
    masks = {"causal": causal(), "window": sliding_window(9), "none": Mask()}
    mask = masks.get(kind, causal() & Segments(segments, segments))
    with jax.set_mesh(mesh(parts)):
        placed = [put(x, None, "sequence", None, None) for x in inputs]
        found = jax.jit(lambda *x: attention(*x, mask=mask, implementation="blockwise"))(*placed)
    device, keys = np.moveaxis(np.asarray(found).astype(int), -1, 0)
    work = np.bincount(device.ravel(), keys.ravel(), parts)
    assert work.max() <= 1.05 * work.mean()
    expected = np.asarray(mask.values(256, 256)).sum(-1)[..., None]
    np.testing.assert_array_equal(keys, np.broadcast_to(expected, keys.shape))


def test_memory_falls_with_the_number_of_devices():
    length, batch = 512, 1
    inputs = [jax.ShapeDtypeStruct((batch, length, heads, 16), jnp.float32) for heads in (8, 1, 1)]

    def bytes_per_device(parts):
        with jax.set_mesh(mesh(parts)):
            cut = NamedSharding(jax.sharding.get_mesh(), P(None, "sequence", None, None))
            placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut) for x in inputs]

            def loss(*inputs):
                return attention(*inputs, mask=causal(), implementation="reference").sum()

            compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*placed).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_per_device(8) < 1.5 / 8 * bytes_per_device(1)
