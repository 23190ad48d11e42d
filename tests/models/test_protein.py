"""Embeddings that are scaled for masked tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.protein import TokenDropout

pytestmark = pytest.mark.more

DROPOUT = TokenDropout(mask_id=5, rate=0.25)


def test_the_others_are_scaled_by_the_share_that_is_left():
    x, ids = jnp.ones((1, 4, 2)), jnp.array([[5, 1, 2, 3]])
    np.testing.assert_allclose(DROPOUT(x, ids)[0, :, 0], [0, 1, 1, 1])
    half = DROPOUT(x, ids, jnp.array([[True, True, False, False]]))
    np.testing.assert_allclose(half[0, :2, 0], [0, 1.5])


def test_sequences_of_a_packed_row_are_as_if_alone():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((1, 9, 3)), jnp.float32)
    ids, segments = (
        jnp.asarray(rng.integers(3, 6, (1, 9))),
        jnp.array([[1] * 4 + [2] * 3 + [0] * 2]),
    )
    packed = DROPOUT(x, ids, segments > 0, segments)
    for part in (slice(0, 4), slice(4, 7)):
        np.testing.assert_allclose(packed[:, part], DROPOUT(x[:, part], ids[:, part]), rtol=1e-6)


def test_a_row_of_masks_alone_is_finite():
    assert np.array_equal(DROPOUT(jnp.ones((1, 3, 2)), jnp.full((1, 3), 5)), np.zeros((1, 3, 2)))
