"""Declared parameters: their values, and the logical axes that survive every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import SCHEMES, structure_of, tiny

from jaxformer.distributed.sharding import RULES
from jaxformer.functional import LayerNorm, RMSNorm
from jaxformer.nn import Embedding, Parallel, PostNorm, SandwichNorm
from jaxformer.nn.layers import constant, normal, parameter, value_of

BIASED = {
    "self_attention.bias": True,
    "self_attention.output_bias": True,
    "feed_forward.bias": True,
    "logits.bias": True,
    "tie_embeddings": False,
    "norm": LayerNorm(),
}
KINDS = {
    "plain": tiny(),
    "biased": tiny(**BIASED, **{"embeddings.norm": LayerNorm()}),
    "normed": tiny(
        residual=SandwichNorm(),
        **{"self_attention.query_key_norm": RMSNorm(), "feed_forward.gated": False},
    ),
    "jointly normed": tiny(
        **{
            "self_attention.query_key_norm": RMSNorm(),
            "self_attention.query_key_norm_over": "all_heads",
        }
    ),
    "parallel": tiny(residual=Parallel(shared_norm=False), windows=(None, 3)),
    "post": tiny(residual=PostNorm(), num_kv_heads=1),
} | {name: tiny(position=position) for name, position in SCHEMES.items()}


def axes_of(tree):
    variables = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return [variable.get_metadata()["axes"] for variable in variables]


@pytest.mark.parametrize("std", [0.02, 3.0])
def test_normal_has_its_standard_deviation(key, std):
    values = np.asarray(normal(std)(key, (300, 200)))
    assert values.dtype == np.float32
    assert np.mean(values) == pytest.approx(0, abs=5 * std / np.sqrt(values.size))
    assert np.std(values) == pytest.approx(std, rel=5 / np.sqrt(2 * values.size))
    # Four moments, so that no other distribution of that width passes.
    assert np.mean(values**4) == pytest.approx(3 * std**4, rel=5 * np.sqrt(96 / 9 / values.size))


def test_constant_ignores_the_key(key):
    values = constant(0.5)(key, (2, 3))
    assert values.dtype == jnp.float32
    np.testing.assert_array_equal(values, np.full((2, 3), 0.5))


def test_value_of_a_parameter_that_is_not_there(key):
    assert value_of(None) is None
    np.testing.assert_array_equal(value_of(parameter(key, (2,), ("embed",), constant(1.0))), [1, 1])


@pytest.mark.parametrize("axes", [(), ("embed",), ("embed", "heads", "head_dim")])
def test_each_dimension_has_one_name(key, axes):
    with pytest.raises(ValueError, match=r"shape \(2, 3\) needs 2 axis names"):
        parameter(key, (2, 3), axes, constant(0.0))


def test_axes_survive_transformations(key):
    def build(key):
        return Embedding(key, 5, 4, normal(1.0))

    module = build(key)
    doubled = jax.tree.map(lambda x: 2 * x, module)
    trees = {
        "eager": module,
        "split": nnx.state(module),
        "eval_shape": jax.eval_shape(build, key),
        "jit": jax.jit(build)(key),
        "vmap": jax.vmap(build)(jax.random.split(key, 3)),
        "grad": jax.grad(lambda m: jnp.sum(m.table[...] ** 2))(module),
        "map": doubled,
    }
    for name, tree in trees.items():
        assert axes_of(tree) == [("vocab", "vocab_embed")], name
    np.testing.assert_array_equal(doubled.table[...], 2 * module.table[...])


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_every_dimension_has_a_rule_and_the_size_of_its_axis(config):
    """Wherever a name stands, the dimension has the size that the configuration gives it."""
    sizes = {
        "vocab": config.vocab_size,
        "vocab_embed": config.model_dim,
        "embed": config.model_dim,
        "mlp": config.mlp_dim,
        "heads": config.num_heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_width,
        "layers": config.num_layers // len(config.windows),
    }
    abstract_model = structure_of(config)
    for name, axes in abstract_model.axes.items():
        assert abstract_model.shapes[name].dtype == jnp.float32, name
        assert len(set(axes)) == len(axes), name
        assert set(axes) <= set(RULES), name
        assert (axes[0] == "layers") == name.startswith("transformer.stack."), name
        for axis, size in zip(axes, abstract_model.shapes[name].shape, strict=True):
            assert size == sizes.get(axis, size), (name, axis)
            if axis == "norm":
                heads = (1, config.num_heads, config.kv_heads)
                widths = [config.head_width * count for count in heads]
                assert size in (config.model_dim, *widths), name
