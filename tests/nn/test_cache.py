import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.nn.cache import CacheArray, CacheShape, Chunk, KeyValueCache, reorder_rows

ROWS, HEADS, WIDTH = 3, 2, 4
write = jax.jit(lambda cache, key, value, chunk: cache.write(key, value, chunk))


def numbered(chunk, length):
    """Keys that say which token they are of, `[B, T, K, H]`."""
    places = np.asarray(chunk.positions(length), np.float32)
    return jnp.asarray(np.broadcast_to(places[..., None, None], (ROWS, length, HEADS, WIDTH)))


@given(data=st.data())
def test_one_token_of_each_row_is_in_one_slot(data):
    capacity = 7
    cache = KeyValueCache.empty(CacheShape(ROWS, 50, 1, "float32"), capacity, HEADS, WIDTH)
    shift = np.array(data.draw(st.lists(st.integers(0, 6), min_size=ROWS, max_size=ROWS)))
    steps = data.draw(st.integers(1, 12))
    ends = data.draw(st.lists(st.integers(0, steps), min_size=ROWS, max_size=ROWS))
    ends[0] = steps
    start = shift.max() - shift
    for step in range(steps):
        count = (step < np.array(ends)).astype(np.int32)
        chunk = Chunk(jnp.asarray(start), jnp.asarray(count), jnp.asarray(shift))
        cache = write(cache, numbered(chunk, 1), -numbered(chunk, 1), chunk)
        start = start + count
    key, value = (np.asarray(x)[..., 0, 0] for x in cache.read(jnp.float32))
    held = np.asarray(chunk.slot_positions(capacity))
    for row in range(ROWS):
        if ends[row] == steps:
            new = held[row] >= shift.max() - shift[row]
            np.testing.assert_array_equal(key[row][new], held[row][new])
            np.testing.assert_array_equal(value[row][new], -held[row][new])
            assert new.sum() == min(steps, capacity)


@given(data=st.data())
def test_a_ring_holds_the_last_tokens_of_each_row(data):
    capacity, length = 7, 4
    cache = KeyValueCache.empty(CacheShape(ROWS, 50, length, "float32"), capacity, HEADS, WIDTH)
    start = np.zeros(ROWS, np.int32)
    for _ in range(data.draw(st.integers(1, 6))):
        count = np.array(data.draw(st.lists(st.integers(0, length), min_size=ROWS, max_size=ROWS)))
        chunk = Chunk(jnp.asarray(start), jnp.asarray(count, jnp.int32))
        cache = write(cache, numbered(chunk, length), -numbered(chunk, length), chunk)
        start = start + count
    key, value = (np.asarray(x)[..., 0, 0] for x in cache.read(jnp.float32))
    held = np.asarray(chunk.slot_positions(capacity))
    for row in range(ROWS):
        there = held[row] >= 0
        assert sorted(held[row][there]) == list(range(max(0, start[row] - capacity), start[row]))
        np.testing.assert_array_equal(key[row][there], held[row][there])
        np.testing.assert_array_equal(value[row][there], -held[row][there])


def test_a_window_bounds_the_memory():
    shape = CacheShape(batch_size=1, capacity=1000, chunk=16, storage="float32")
    assert [shape.slots(window) for window in (None, 2000, 32)] == [1000, 1000, 47]


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
def test_what_is_kept_is_as_near_as_its_type_allows(storage):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, HEADS, 5, 16)), jnp.float32)
    kept = CacheArray.of(x, storage)
    assert kept.storage == storage
    largest = np.abs(np.asarray(x)).max(axis=-1, keepdims=True)
    bound = {"float32": 0.0, "bfloat16": 2.0**-8, "int8": 0.5 / 127 + 1e-7}[storage] * largest
    assert np.all(np.abs(np.asarray(kept.read(jnp.float32) - x)) <= bound)


def test_int8_keeps_zeros_and_writes_its_scales():
    shape = CacheShape(ROWS, 5, 2, "int8")
    cache = KeyValueCache.empty(shape, 5, HEADS, WIDTH)
    assert not np.any(cache.read(jnp.float32)[0])
    chunk = Chunk(jnp.array([0, 1, 3]), jnp.array([2, 1, 0]))
    cache = write(cache, 100 + numbered(chunk, 2), numbered(chunk, 2), chunk)
    key = np.asarray(cache.read(jnp.float32)[0])[..., 0, 0]
    np.testing.assert_allclose(key[0], [100, 101, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(key[1], [0, 101, 0, 0, 0], rtol=1e-6)
    assert not key[2].any()


def test_rows_are_picked_within_their_group():
    x = np.arange(12).reshape(6, 2)
    picked = reorder_rows(jnp.asarray(x), jnp.array([[2, 2, 0, 1], [0, 1, 1, 1]]))
    np.testing.assert_array_equal(picked, x[[2, 2, 0, 1, 3, 4, 4, 4]])
