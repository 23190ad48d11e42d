"""A model with arranged weights computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import random_parameters, structure_of, tiny, tokens

from jaxformer.functional.linear import Transposed
from jaxformer.generation.engine import num_bytes
from jaxformer.models.parameters import ArrangedModel

BIASED = {
    "tie_embeddings": False,
    "logits.bias": True,
    "feed_forward.bias": True,
    "self_attention.bias": True,
}


@pytest.mark.more
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{"tie_embeddings": True}, BIASED, {"feed_forward.gated": False}, {"layer_repeats": 3}],
    ids=str,
)
@pytest.mark.quick("*bias*-True-True", "*repeats*-True-True")
def test_an_arranged_model_computes_the_same(changes, joined, transposed):
    config = tiny(num_layers=3, num_heads=6, num_kv_heads=2, head_dim=6, **changes)
    parameters = random_parameters(config)
    expected = jax.jit(structure_of(config).module(parameters))(tokens(2, 5))
    model = ArrangedModel(config.build, "float32", joined=joined, transposed=transposed)
    arranged = jax.jit(model.arrange)(parameters)
    found = jax.jit(lambda arranged: model.module(arranged)(tokens(2, 5)))(arranged)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_joined_kernel_is_a_matrix_with_its_outputs_first():
    config = tiny(num_layers=1, num_heads=6, num_kv_heads=2, head_dim=6)
    parameters = random_parameters(config)
    arranged = ArrangedModel(config.build, "float32", joined=True, transposed=True).arrange(
        parameters
    )
    prefix = "transformer.stack.group.0.sublayers.0.attention."
    query, joined = (kernels[f"{prefix}query.kernel"] for kernels in (parameters, arranged))
    assert isinstance(joined, Transposed)
    assert joined.matrix.shape == (1, 36 + 12 + 12, config.model_dim)
    np.testing.assert_array_equal(joined.matrix[0, :36].T.reshape(query.shape[1:]), query[0])
    assert f"{prefix}key.kernel" not in arranged


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.first("False")
def test_int8_kernels_are_half_the_bytes_and_near(transposed):
    config = tiny(num_layers=2, model_dim=64, mlp_dim=128, num_heads=4, **BIASED)
    parameters = random_parameters(config, scale=0.1)
    kept = {name: array.astype(jnp.bfloat16) for name, array in parameters.items()}
    options = {"joined": True, "transposed": transposed}
    plain = ArrangedModel(config.build, "bfloat16", **options)
    model = ArrangedModel(config.build, "bfloat16", **options, int8=True)
    arrange, arrange_plain = jax.jit(model.arrange), jax.jit(plain.arrange)
    exact, arranged = arrange_plain(kept), arrange(kept)
    kernels = [name for name in exact if name.endswith("kernel")]
    assert set(arranged) == set(exact)
    for name in kernels:
        scales = num_bytes(arranged[name].scales)
        assert num_bytes(arranged[name]) == num_bytes(exact[name]) / 2 + scales
    expected = jax.jit(lambda p: plain.module(p)(tokens(2, 9)))(arrange_plain(parameters))
    found = jax.jit(lambda p: model.module(p)(tokens(2, 9)))(arrange(parameters))
    error = jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected)
    assert 0.001 < error < 0.05
