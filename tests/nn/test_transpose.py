"""Kernels that lie the other way round compute the same."""

import jax
import numpy as np
import pytest
from tiny_models import random_parameters, structure_of, tiny, tokens

from jaxformer.nn.layers import transpose_kernels

pytestmark = pytest.mark.more


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {"tie_embeddings": True},
        {
            "tie_embeddings": False,
            "head_bias": True,
            "feed_forward.bias": True,
            "self_attention.bias": True,
        },
    ],
)
def test_a_transposed_model_computes_the_same(changes, apart):
    config = tiny(num_layers=3, num_heads=6, num_kv_heads=2, head_dim=6, **changes)
    parameters = random_parameters(config)
    model = structure_of(config).module(parameters)
    expected = jax.jit(lambda model: model(tokens(2, 5)))(model)
    if apart:
        model.decoder_transformer.stack.unstack()
    transpose_kernels(model)
    np.testing.assert_allclose(
        jax.jit(lambda model: model(tokens(2, 5)))(model), expected, atol=1e-5
    )


def test_every_kernel_is_a_matrix_with_its_outputs_first():
    config = tiny(num_layers=1, num_heads=6, num_kv_heads=2, head_dim=6)
    abstract_model = structure_of(config)
    model = abstract_model.module(random_parameters(config))
    attention = model.decoder_transformer.stack.group[0].sublayers[0].attention
    before = attention.query.kernel[...]
    transpose_kernels(model)
    after = attention.query.kernel[...]
    assert after.shape == (1, 36, config.model_dim)
    np.testing.assert_array_equal(after[0].T.reshape(before.shape[1:]), before[0])
