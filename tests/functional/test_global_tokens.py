"""Tokens that stand for blocks of others, against their definition in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import T5Bias, T5GlobalBias, block_numbers, block_sums, t5_bias

pytestmark = pytest.mark.more

ROWS, LENGTH, WIDTH = 3, 17, 5
STATES = np.random.default_rng(0).normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)


def blocks_of(real, size):
    """The number of each token's block, as the paper has it, token by token."""
    numbers = np.full(real.shape, -1)
    for row, places in enumerate(map(np.flatnonzero, real)):
        complete = sum(place % size == size - 1 for place in places)
        for place in places:
            # Orphans, which are in no complete block, belong to the last one.
            numbers[row, place] = min(place // size, complete - 1)
    return numbers


@st.composite
def padded_rows(draw):
    """Real tokens in the middle of each row."""
    starts = draw(st.lists(st.integers(0, LENGTH), min_size=ROWS, max_size=ROWS))
    counts = draw(st.lists(st.integers(0, LENGTH), min_size=ROWS, max_size=ROWS))
    places = np.arange(LENGTH)
    starts, counts = np.array(starts)[:, None], np.array(counts)[:, None]
    return (places >= starts) & (places < starts + counts)


sums_of = jax.jit(block_sums, static_argnums=2)


@given(real=padded_rows(), size=st.sampled_from([1, 4, 5, 17]))
def test_blocks_and_their_sums_follow_the_definition(real, size):
    segments, numbers = jnp.asarray(real.astype(int)), blocks_of(real, size)
    np.testing.assert_array_equal(block_numbers(segments, size), numbers)
    sums, documents = sums_of(jnp.asarray(STATES), segments, size)
    count = LENGTH // size
    assert sums.shape == (ROWS, count, WIDTH)
    for row in range(ROWS):
        for block in range(count):
            expected = STATES[row, numbers[row] == block].sum(0)
            np.testing.assert_allclose(sums[row, block], expected, atol=1e-5)
    np.testing.assert_array_equal(documents, np.arange(count)[None] <= numbers.max(1)[:, None])


def test_a_block_has_tokens_of_one_document():
    documents = np.repeat([1, 2, 3, 0], [6, 3, 6, 2])[None]

    def sums(x):
        return block_sums(x, jnp.asarray(documents), 4)[0]

    owners = np.asarray(block_sums(jnp.asarray(STATES[:1]), jnp.asarray(documents), 4)[1][0])
    np.testing.assert_array_equal(owners, [1, 2, 3, 0])
    moved = np.abs(jax.jit(jax.jacrev(sums))(jnp.asarray(STATES[:1]))).max((0, 2, 3, 5))
    reached = moved > 0
    assert not np.any(reached & (owners[:, None] != documents))
    # The last two tokens of document 3 come after the last complete block.
    np.testing.assert_array_equal(np.flatnonzero(reached[2]), [9, 10, 11, 12, 13, 14])
    np.testing.assert_array_equal(np.flatnonzero(reached[1]), [6, 7])


def test_the_bias_of_global_keys_is_that_of_the_distance_of_blocks():
    scheme = T5GlobalBias(num_buckets=8, max_distance=9, bidirectional=True)
    tables = jax.random.normal(jax.random.key(0), (2, 8, 3))
    positions, size = jnp.arange(LENGTH)[None], 4
    bias = scheme.bias(positions, positions, num_heads=3, table=tables.reshape(16, 3))
    options = {"bidirectional": True, "max_distance": 9}
    of_tokens = t5_bias(tables[0], positions, positions, **options)
    np.testing.assert_array_equal(bias.values(), of_tokens)
    numbers = jnp.asarray(blocks_of(np.ones((ROWS, LENGTH), bool), size))
    both = scheme.with_global_keys(bias, numbers, LENGTH // size, size)
    of_blocks = t5_bias(tables[1], numbers, jnp.arange(4)[None], **options)
    expected = jnp.concatenate([of_blocks, jnp.repeat(of_tokens, ROWS, axis=0)], axis=-1)
    np.testing.assert_array_equal(both.values(), expected)
    part = both.block(3, 5, 2, 6).values()
    np.testing.assert_array_equal(part, expected[:, :, 3:8, 2:8])


def test_other_schemes_place_a_block_where_it_begins():
    scheme = T5Bias(num_buckets=8, max_distance=9, bidirectional=True)
    table = jax.random.normal(jax.random.key(0), (8, 3))
    positions = jnp.arange(LENGTH)[None] + 2
    bias = scheme.bias(positions, positions, num_heads=3, table=table)
    whole = scheme.with_global_keys(bias, jnp.zeros((1, LENGTH), int), 4, 4).values()
    np.testing.assert_array_equal(whole[..., :4], bias.values()[..., [0, 4, 8, 12]])
    np.testing.assert_array_equal(whole[..., 4:], bias.values())


def test_the_tables_of_blocks_are_shared():
    with pytest.raises(ValueError, match="shared = False"):
        T5GlobalBias(bidirectional=True, shared=False)
