"""The order of an input layer: positions before the norm of the embeddings, or behind it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny

from jaxformer.functional import LayerNorm, Learned
from jaxformer.nn import InputLayer, TokenEmbeddings


@pytest.mark.parametrize("norm", [LayerNorm(), None])
@pytest.mark.parametrize("after", [False, True])
def test_positions_are_added_before_the_norm_or_behind_it(norm, after):
    position = Learned(max_length=5, after_norm=after)
    config = tiny(position=position, embeddings=TokenEmbeddings(norm=norm, scale=3.0))
    layer = InputLayer(jax.random.key(0), config, position, config.model_dim)
    x = jax.random.normal(jax.random.key(1), (2, 5, config.model_dim))
    codes = layer.position_table[...][None]
    normalised = (lambda x: x) if norm is None else layer.embedding_norm
    expected = normalised(3 * x) + codes if after else normalised(3 * x + codes)
    found = layer(x, jnp.arange(5)[None])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
