"""What a fresh decoder is made of: names, sizes, how to take it apart, and initial values."""

from functools import lru_cache, partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import random_parameters, structure_of, tiny, tokens

from jaxformer.functional import LayerNorm, Learned, RMSNorm, T5Bias
from jaxformer.models import AbstractModel, Decoder
from jaxformer.nn import PostNorm, TokenEmbeddings, VocabularyLogits

pytestmark = pytest.mark.more

BIASES = {
    "self_attention.bias": True,
    "self_attention.output_bias": True,
    "feed_forward.bias": True,
}
NORMED = TokenEmbeddings(norm=LayerNorm())


def test_names_are_flat_and_say_where_a_parameter_belongs():
    config = tiny(windows=(2, None), position=Learned(max_length=8), tie_embeddings=False)
    block = [f"norms.{i}.scale" for i in range(2)]
    block += [f"sublayers.0.attention.{n}.kernel" for n in ("query", "key", "value", "output")]
    block += [f"sublayers.1.{n}.kernel" for n in ("up", "gate", "down")]
    expected = {"embedding.table", "heads.language_model.kernel"}
    inner = {"inputs.position_table", "final_norm.scale"}
    inner |= {f"stack.group.{place}.{name}" for place in range(2) for name in block}
    expected |= {f"transformer.{name}" for name in inner}
    abstract_model = structure_of(config)
    assert set(abstract_model.shapes) == set(abstract_model.axes) == expected


def test_taken_apart_and_put_together_it_is_the_same():
    config = tiny(windows=(2, None), embeddings=NORMED, **BIASES)
    abstract_model, parameters = structure_of(config), random_parameters(config)
    module = abstract_model.module(parameters)
    again = abstract_model.parameters(module)
    assert again.keys() == parameters.keys()
    for name, value in parameters.items():
        assert again[name] is value, name
    # The module keeps its axes.
    assert module.embedding.table.get_metadata()["axes"] == abstract_model.axes["embedding.table"]


def test_a_template_of_tracers_and_of_shapes():
    config = tiny(num_layers=1)
    abstract_model = structure_of(config)
    shape = jax.eval_shape(lambda p: abstract_model.module(p)(tokens(2, 5)), abstract_model.shapes)
    assert (shape.shape, shape.dtype) == ((2, 5, 31), jnp.float32)
    leaves = jax.tree.leaves(abstract_model.module(abstract_model.shapes))
    assert sorted(map(str, leaves)) == sorted(map(str, abstract_model.shapes.values()))


def test_initial_parameters_depend_on_the_key_alone():
    abstract_model = AbstractModel(partial(Decoder, config=tiny(num_layers=1)))
    init = jax.jit(abstract_model.init)
    first, same, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert {name: (x.shape, x.dtype) for name, x in first.items()} == {
        name: (x.shape, x.dtype) for name, x in abstract_model.shapes.items()
    }
    for name, value in first.items():
        np.testing.assert_array_equal(value, same[name])
        assert name.endswith("scale") or (value != other[name]).any(), name


STD, LAYERS = 0.05, 6
WIDE = {"num_layers": LAYERS, "model_dim": 60, "mlp_dim": 50, "vocab_size": 90, "init_std": STD}
INITIAL = {
    "everything": tiny(
        **WIDE,
        **BIASES,
        logits=VocabularyLogits(bias=True),
        tie_embeddings=False,
        position=Learned(max_length=100),
        embeddings=NORMED,
        **{"self_attention.query_key_norm": RMSNorm()},
        windows=(2, None),
    ),
    "not scaled with depth": tiny(**WIDE, depth_scaled_init=False, residual=PostNorm()),
    "offset norms, T5": tiny(
        **WIDE,
        norm=RMSNorm(unit_offset=True),
        **{"feed_forward.gated": False},
        position=T5Bias(num_buckets=64, bidirectional=False),
    ),
}
with_initial = pytest.mark.parametrize("config", INITIAL.values(), ids=INITIAL.keys())


@lru_cache
def initial(config):
    parameters = jax.jit(structure_of(config).init)(jax.random.key(0))
    return {name: np.asarray(x, np.float64) for name, x in parameters.items()}


def is_random(name):
    return name.endswith(("kernel", "table"))


@with_initial
@pytest.mark.quick("everything")
def test_initial_values(config):
    """Normal with `init_std`; less by sqrt(2 L) where a projection writes to the stream."""
    for name, values in initial(config).items():
        if name.endswith("scale"):
            # A norm starts by multiplying by one, however it stores that.
            offset = config.norm == RMSNorm(unit_offset=True)
            np.testing.assert_array_equal(values, 0.0 if offset else 1.0, err_msg=name)
        elif name.endswith("bias"):
            np.testing.assert_array_equal(values, 0.0, err_msg=name)
        else:
            assert is_random(name), name
            writes = name.endswith(("output.kernel", "down.kernel"))
            std = STD / np.sqrt(2 * LAYERS) if writes and config.depth_scaled_init else STD
            assert values.std() == pytest.approx(std, rel=5 / np.sqrt(2 * values.size)), name
            assert values.mean() == pytest.approx(0, abs=5 * std / np.sqrt(values.size)), name


@with_initial
def test_no_two_parameters_share_their_random_numbers(config):
    values = {name: x.ravel() for name, x in initial(config).items() if is_random(name)}
    for first, second in combinations(values, 2):
        count = min(values[first].size, values[second].size)
        correlation = np.corrcoef(values[first][:count], values[second][:count])[0, 1]
        assert abs(correlation) < 6 / np.sqrt(count), (first, second)
