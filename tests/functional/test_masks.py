import operator
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import (
    All,
    Band,
    BlockBand,
    DenseMask,
    KeyPadding,
    KeyRange,
    Mask,
    Prefix,
    QueryRange,
    Segments,
    block_sparse,
    causal,
    sliding_window,
)
from jaxformer.functional.masks import PositionMask, terms_of

BATCH, T, S = 2, 7, 11
rows = np.arange(BATCH)[:, None, None]
query = np.arange(T)[None, :, None]
key = np.arange(S)[None, None, :]

_random = np.random.default_rng(0)
VALID = _random.random((BATCH, S)) < 0.6
DENSE = _random.random((BATCH, T, S)) < 0.3
QUERY_SEGMENTS = np.array([[1, 1, 2, 2, 2, 3, 0], [1, 2, 2, 0, 0, 0, 0]])
KEY_SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0, 0], [1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 0]])
OFFSETS = np.array([3, -2])
QUERY_PLACES = np.array([[8, 9, 10, 11, 12, 13, 14], [2, 3, 4, 5, 6, 7, 8]])
# Rings of 11 slots after 15 and 7 tokens; a negative place is an empty slot.
KEY_PLACES = np.array([[11, 12, 13, 14, 4, 5, 6, 7, 8, 9, 10], [*range(7), -4, -3, -2, -1]])
LENGTHS = np.array([4, 9])

# Each spec beside its definition, in numpy.
SPECS = {
    "none": (Mask(), np.ones((1, T, S), bool)),
    "causal": (causal(), key <= query),
    "causal+4": (causal(4), key <= query + 4),
    "causal-3": (causal(-3), key <= query - 3),
    "causal+rows": (causal(jnp.asarray(OFFSETS)), key <= query + OFFSETS[rows]),
    "window": (sliding_window(3), (key <= query) & (key > query - 3)),
    "window+2": (sliding_window(3, 2), (key <= query + 2) & (key > query + 2 - 3)),
    "window+rows": (
        sliding_window(2, jnp.asarray(OFFSETS)),
        (key <= query + OFFSETS[rows]) & (key > query + OFFSETS[rows] - 2),
    ),
    "band": (Band(before=1, after=2), (key >= query - 1) & (key <= query + 2)),
    "ahead": (Band(after=None, before=0), key >= query),
    "prefix": (Prefix(jnp.asarray(LENGTHS)), (key <= query) | (key < LENGTHS[rows])),
    "prefix+1": (Prefix(jnp.asarray(LENGTHS), 1), (key <= query + 1) | (key < LENGTHS[rows])),
    "padding": (KeyPadding(jnp.asarray(VALID)), np.repeat(VALID[:, None], T, 1)),
    "segments": (
        Segments(jnp.asarray(QUERY_SEGMENTS), jnp.asarray(KEY_SEGMENTS)),
        (QUERY_SEGMENTS[:, :, None] == KEY_SEGMENTS[:, None]) & (KEY_SEGMENTS > 0)[:, None],
    ),
    "places": (
        PositionMask(jnp.asarray(QUERY_PLACES), jnp.asarray(KEY_PLACES)),
        (KEY_PLACES[:, None] <= QUERY_PLACES[:, :, None]) & (KEY_PLACES >= 0)[:, None],
    ),
    "places+window": (
        PositionMask(jnp.asarray(QUERY_PLACES), jnp.asarray(KEY_PLACES), 2),
        (KEY_PLACES[:, None] <= QUERY_PLACES[:, :, None])
        & (KEY_PLACES[:, None] > QUERY_PLACES[:, :, None] - 3)
        & (KEY_PLACES >= 0)[:, None],
    ),
    "dense": (DenseMask(jnp.asarray(DENSE)), DENSE),
    "blocks": (BlockBand(2), abs(key // 2 - query // 2) <= 1),
    "blocks+3": (
        BlockBand(3, before=0, after=2, query_offset=1, key_offset=2),
        ((key + 2) // 3 >= (query + 1) // 3) & ((key + 2) // 3 <= (query + 1) // 3 + 2),
    ),
    "keys": (KeyRange(2, 5), (key >= 2) & (key < 5) & (query >= 0)),
    "queries": (QueryRange(1, 3), (query >= 1) & (query < 3) & (key >= 0)),
    "window or padding": (
        sliding_window(2) | KeyPadding(jnp.asarray(VALID)),
        ((key <= query) & (key > query - 2)) | VALID[:, None],
    ),
    "ends": (
        (Band(1, 1) | KeyRange(0, 2) | QueryRange(5, 7)) & causal(4),
        ((abs(key - query) <= 1) | (key < 2) | (query >= 5)) & (key <= query + 4),
    ),
    "block sparse": (
        block_sparse(S, 2),
        (abs(key // 2 - query // 2) <= 1) | (key < 2) | (key >= 10) | (query < 2) | (query >= 10),
    ),
}


def values(mask, *lengths):
    return np.asarray(jax.jit(lambda mask: mask.values(*lengths))(mask))


def assert_same(actual, expected):
    np.testing.assert_array_equal(*np.broadcast_arrays(actual, expected))


@pytest.mark.parametrize("name", SPECS)
def test_values_follow_the_definition(name):
    mask, expected = SPECS[name]
    actual = values(mask, T, S)
    assert actual.shape[0] in (1, BATCH)
    assert actual.dtype == bool
    assert_same(actual, expected)


several = st.lists(st.sampled_from(sorted(SPECS)), min_size=1, max_size=3)
JOINS = {"and": operator.and_, "or": operator.or_}


def joined(names, join):
    """The intersection or the union of specs, and that of their definitions."""
    masks, expected = zip(*(SPECS[name] for name in names), strict=True)
    return reduce(JOINS[join], masks), reduce(JOINS[join], expected)


@given(names=several, join=st.sampled_from(sorted(JOINS)))
def test_and_is_the_intersection_and_or_the_union(names, join):
    mask, expected = joined(names, join)
    assert_same(values(mask & Mask(), T, S), expected)


@given(names=several, join=st.sampled_from(sorted(JOINS)), query_start=st.integers(0, T - 3))
def test_no_query_attends_outside_the_key_bounds_or_blocks(names, join, query_start):
    @jax.jit
    def part_of(mask, query_start):
        block = mask.block(query_start, 3, 0, S)
        return block.values(3, S), block.key_blocks(3, S, 4), block.key_bounds(3, S)

    allowed, blocks, (low, high) = part_of(joined(names, join)[0], query_start)
    assert blocks.shape == (3,)
    assert 0 <= low <= S
    assert high <= S
    index = np.arange(S)
    outside = ~np.repeat(np.asarray(blocks), 4)[:S] | (index < low) | (index >= high)
    assert not np.any(np.asarray(allowed)[:, :, outside])


@pytest.mark.parametrize("length", [5, 24, 61])
def test_block_sparse_attention_skips_most_keys(length):
    size = 4
    mask, count = block_sparse(length, size), -(-length // size)
    allowed = np.asarray(mask.values(length, length)[0])
    assert (allowed == allowed.T).all()
    for query in range(count):
        block = mask.block(size * query, size, 0, length)
        visited = set(np.flatnonzero(block.key_blocks(size, length, size)))
        beside = {query - 1, query, query + 1} & set(range(count))
        whole = query in (0, count - 1)
        assert visited == (set(range(count)) if whole else beside | {0, count - 1})


def test_and_keeps_a_flat_list_of_terms():
    one, two, three = causal(), KeyPadding(jnp.ones((1, 3), bool)), Prefix(jnp.ones(1, int))
    assert terms_of((one & two) & (Mask() & three)) == (one, two, three)
    assert terms_of(Mask() & Mask()) == ()
    assert terms_of(one) == (one,)


def test_bands_with_fixed_offsets_become_one():
    assert causal() & Band(before=2) == sliding_window(3)
    assert Band(4, 3) & sliding_window(3, 2) & Band(5, 1, -1) == Band(0, 0)
    traced = causal(jnp.array(3))
    assert terms_of(causal(2) & traced & causal()) == (causal(), traced)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("window", [(0, 4, 0, 5), (2, 3, 6, 5), (6, 1, 0, 11)])
def test_block_is_a_window_of_the_values(name, window):
    mask, expected = SPECS[name]
    expected = np.broadcast_to(expected, (BATCH, T, S))
    query_start, query_size, key_start, key_size = window

    @jax.jit
    def block(mask, query_start, key_start):
        return mask.block(query_start, query_size, key_start, key_size).values(query_size, key_size)

    part = expected[:, query_start:][:, :query_size, key_start:][:, :, :key_size]
    assert_same(block(mask, query_start, key_start), part)


@pytest.mark.parametrize("name", SPECS)
def test_padded_leaves_the_real_pairs_alone(name):
    mask, expected = SPECS[name]
    padded = jax.jit(lambda mask: mask.padded(3, 5).values(T + 3, S + 5))(mask)
    assert_same(padded[:, :T, :S], expected)


@pytest.mark.parametrize(
    ("mask", "grain"),
    [
        (Mask(), 1000),
        (Band(), 1000),
        (KeyPadding(jnp.ones((1, 1000), bool)), 1000),
        (causal(), 250),
        (Band(before=0), 250),
        (Prefix(jnp.asarray([9])), 250),
        (sliding_window(64), 32),
        (Band(before=3, after=2000), 500),
        (causal() & sliding_window(64) & KeyPadding(jnp.ones((1, 1000), bool)), 32),
        (BlockBand(64), 96),
        (KeyRange(0, 3), 1000),
        (block_sparse(1000, 64), 96),
    ],
)
def test_the_grain_is_the_smaller_the_more_is_excluded(mask, grain):
    assert mask.grain(1000) == grain


@pytest.mark.parametrize("name", ["causal", "causal+rows", "window", "band", "padding", "dense"])
def test_key_bounds_are_tight(name):
    mask, expected = SPECS[name]
    used = np.flatnonzero(np.any(np.broadcast_to(expected, (BATCH, T, S)), axis=(0, 1)))
    low, high = mask.key_bounds(T, S)
    assert (low, high) == (used[0], used[-1] + 1)


def test_key_bounds_of_an_empty_mask_are_empty():
    nothing = [
        KeyPadding(jnp.zeros((BATCH, S), bool)),
        DenseMask(jnp.zeros((1, T, S), bool)),
        Segments(jnp.zeros((BATCH, T), int), jnp.zeros((BATCH, S), int)),
        causal(-T),
        causal(S) & Band(before=None, after=-1, query_offset=-T),
    ]
    for mask in nothing:
        low, high = mask.key_bounds(T, S)
        assert low >= high


def test_integers_are_structure_and_arrays_are_leaves():
    assert jax.tree.leaves(sliding_window(4, 2) & Band(1, None, np.int64(3))) == []
    [leaf] = jax.tree.leaves(causal(jnp.asarray(OFFSETS)))
    np.testing.assert_array_equal(leaf, OFFSETS)
    mask = causal(3) & KeyPadding(jnp.asarray(VALID)) & Prefix(jnp.asarray(LENGTHS), 2)
    assert len(jax.tree.leaves(mask)) == 2

    @jax.jit
    def seen_inside(mask):
        assert mask.terms[0] == causal(3)
        assert mask.terms[2].query_offset == 2
        return mask

    back = seen_inside(mask)
    assert jax.tree.structure(back) == jax.tree.structure(mask)
    assert_same(values(back, T, S), values(mask, T, S))


def test_a_mask_says_which_of_its_arrays_is_meant():
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(
            causal() & KeyPadding(jnp.asarray(VALID))
        )
    ]
    assert paths == [".terms[1].valid"]


def test_an_intersection_of_nothing_allows_everything():
    mask = All(())
    assert values(mask, T, S).all()
    assert mask.key_bounds(T, S) == (0, S)


@pytest.mark.parametrize("make", [causal, sliding_window, lambda far: block_sparse(3, far)])
def test_an_index_beyond_int32_is_one_sentence(make):
    with pytest.raises(ValueError, match=f"= {2**40}: must be an integer from"):
        make(2**40)


@pytest.mark.parametrize(
    "mask",
    [
        KeyPadding(jnp.ones((BATCH, S + 1), bool)),
        Segments(jnp.ones((BATCH, T + 1), int), jnp.ones((BATCH, S), int)),
        Segments(jnp.ones((BATCH, T), int), jnp.ones((BATCH, S + 1), int)),
        DenseMask(jnp.ones((1, T, S + 1), bool)),
    ],
)
def test_a_wrong_length_is_an_error(mask):
    with pytest.raises(AssertionError):
        mask.values(T, S)
