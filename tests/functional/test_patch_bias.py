"""Biases of the offset between patches: which entry of the table each pair of tokens has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import PatchBias, attention

pytestmark = pytest.mark.more

HEADS = 3


def table_of(scheme):
    (rows, heads), axes = scheme.table(model_dim=8, num_heads=HEADS)
    assert (heads, len(axes)) == (HEADS, 2)
    return jax.random.normal(jax.random.key(0), (rows, heads))


def bias_of(scheme, table=None):
    positions = jnp.arange(scheme.max_length)[None]
    table = table_of(scheme) if table is None else table
    return scheme.bias(positions, positions, num_heads=HEADS, table=table)


@pytest.mark.parametrize(("rows", "columns", "prefix"), [(3, 4, 1), (4, 1, 2), (2, 3, 0)])
def test_pairs_of_one_offset_share_an_entry_and_others_do_not(rows, columns, prefix):
    scheme = PatchBias((rows, columns), prefix)
    count = len(table_of(scheme))
    numbered = jnp.broadcast_to(jnp.arange(count, dtype=jnp.float32)[:, None], (count, HEADS))
    entry = np.asarray(bias_of(scheme, numbered).values())[0, 0].astype(int)
    found = {}
    for query, key in np.ndindex(entry.shape):
        places = [divmod(token - prefix, columns) for token in (query, key)]
        kinds = query < prefix, key < prefix
        offset = None if any(kinds) else tuple(np.subtract(*places).tolist())
        found.setdefault((*kinds, offset), set()).add(entry[query, key])
    assert all(len(entries) == 1 for entries in found.values())
    used = [entries.pop() for entries in found.values()]
    assert sorted(used) == list(range(count))


def test_the_last_entries_are_those_of_the_class_token():
    """From it, to it, and to itself, as in published tables; then rows go before columns."""
    scheme = PatchBias((2, 3))
    table = table_of(scheme)
    bias = np.asarray(bias_of(scheme).values())[0]
    np.testing.assert_array_equal(bias[:, 0, 4], table[-3])
    np.testing.assert_array_equal(bias[:, 4, 0], table[-2])
    np.testing.assert_array_equal(bias[:, 0, 0], table[-1])
    # The query in the second row, the key in the first, one column to the right.
    np.testing.assert_array_equal(bias[:, 4, 2], table[(1 + 1) * 5 + (0 - 1) + 2])


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.quick("blockwise")
def test_every_implementation_of_attention_has_it(implementation):
    scheme = PatchBias((2, 3))
    keys = jax.random.split(jax.random.key(1), 3)
    query, key, value = (jax.random.normal(k, (2, 7, HEADS, 4)) for k in keys)

    def attended(table):
        bias = bias_of(scheme, table)
        return attention(query, key, value, bias=bias, implementation=implementation)

    table = table_of(scheme)
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / 2 + bias_of(scheme).values()
    expected = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)
    np.testing.assert_allclose(attended(table), expected, rtol=2e-5, atol=2e-5)
    gradient = jax.grad(lambda table: jnp.sum(jnp.sin(attended(table))))(table)
    assert (jnp.abs(gradient).max(axis=1) > 0).all()


def test_a_scheme_for_another_grid():
    scheme = PatchBias((2, 3), shared=False)
    other = scheme.for_grid((4, 2), 1)
    assert other == PatchBias((4, 2), shared=False)
    resized = scheme.resized(table_of(scheme), (2, 3), (4, 2), 1)
    assert resized.shape == table_of(other).shape
