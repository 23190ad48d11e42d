"""The Embedding module: rows of a table, whose gradient counts how often each is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import Embedding
from jaxformer.nn.layers import normal

IDS = jnp.array([[3, 0, 3, 10], [9, 3, 1, 1]])


@pytest.fixture
def embedding(key):
    return Embedding(key, 11, 5, normal(0.3))


def test_equals_the_product_with_one_hot_vectors(embedding):
    one_hot = np.eye(11)[np.asarray(IDS)]
    expected = one_hot @ np.asarray(embedding.table[...], np.float64)
    np.testing.assert_allclose(embedding(IDS, jnp.float32), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_rows_are_rounded_to_the_compute_dtype_and_the_table_is_not(embedding, dtype):
    rows = embedding(IDS, dtype)
    assert rows.dtype == dtype
    assert embedding.table.dtype == jnp.float32
    np.testing.assert_array_equal(rows[1, 0], embedding.table[...][9].astype(dtype))


def test_the_table_is_sharded_along_the_vocabulary_only(embedding):
    assert embedding.table.shape == (11, 5)
    assert embedding.table.get_metadata()["axes"] == ("vocab", "vocab_embed")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_gradient_adds_up_repeated_tokens(embedding, dtype):
    gradient = jax.grad(lambda e: jnp.sum(e(IDS, dtype).astype(jnp.float32)))(embedding)
    counts = np.bincount(np.asarray(IDS).ravel(), minlength=11).astype(np.float32)
    assert gradient.table.dtype == jnp.float32
    np.testing.assert_array_equal(gradient.table[...], np.tile(counts[:, None], 5))
