"""Tokens read a few at a time, with a cache, are tokens read together."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    each_scheme,
    hidden_of,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder_decoder,
    tokens,
)

from jaxformer.functional import (
    DynamicNTK,
    KeyPadding,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    NoPosition,
    RoPE,
    SigmoidTopK,
    Sinusoidal,
    TopKSoftmax,
    YaRN,
)
from jaxformer.nn import (
    Experts,
    LatentAttention,
    Parallel,
    PostNorm,
    SandwichNorm,
    SharedExpert,
)
from jaxformer.nn.cache import CacheShape

LENGTHS = np.array([8, 5, 3])
ROOM, CHUNK = 8, 3
# How many tokens of each row a pass reads: several, one, none.
PASSES = np.array([[3, 2, 1], [2, 0, 0], [1, 1, 1], [2, 2, 1]])


@partial(jax.jit, static_argnums=0)
def read(config, parameters, inputs, count, cache, lengths):
    model = structure_of(config).module(parameters)
    return model.step(inputs, cache, count=count, lengths=lengths)


@partial(jax.jit, static_argnums=(0, 1))
def init_cache(config, shape, parameters, *sources):
    return structure_of(config).module(parameters).init_cache(shape, *sources)


def read_in_passes(config, parameters, inputs, sources=(), lengths=None, storage="float32"):
    """The hidden states of the real tokens of each row."""
    shape = CacheShape(len(inputs), ROOM, CHUNK, storage)
    cache = init_cache(config, shape, parameters, *sources)
    rows, place = [[] for _ in inputs], np.zeros(len(inputs), int)
    for count in PASSES:
        part = np.zeros((len(inputs), CHUNK), np.int32)
        for row, (start, size) in enumerate(zip(place, count, strict=True)):
            part[row, :size] = inputs[row, start : start + size]
        counted = jnp.asarray(count, jnp.int32)
        hidden, cache = read(config, parameters, part, counted, cache, lengths)
        for row, size in enumerate(count):
            rows[row] += list(np.asarray(hidden[row, :size]))
        place = place + count
    np.testing.assert_array_equal(cache.lengths, LENGTHS)
    return [np.array(row) for row in rows]


def check(config, tolerance=1e-5):
    # Larger weights carry a rounding error through layers that repeat to 1e-5, as some machines
    # round: the two programs add in another order.
    parameters = random_parameters(config, scale=0.2)
    inputs = np.asarray(tokens(len(LENGTHS), ROOM))
    together = np.asarray(hidden_of(config, parameters, inputs))
    for row, found in enumerate(read_in_passes(config, parameters, inputs)):
        # Causal: what follows a row's own tokens changes nothing.
        np.testing.assert_allclose(found, together[row, : len(found)], atol=tolerance)


@each_scheme(pytest.mark.parametrize)
@pytest.mark.parametrize("windows", [(None,), (2, None)], ids=["whole", "rings"])
@pytest.mark.quick("*rope_half", "*t5")
def test_every_scheme(position, windows):
    check(tiny(position=position, windows=windows))


@pytest.mark.first("changes1", "changes12", "changes16")
@pytest.mark.parametrize(
    "changes",
    [
        {"residual": PostNorm()},
        {"residual": SandwichNorm(), "self_attention.softcap": 2.0},
        {"residual": Parallel(shared_norm=False), "self_attention.query_key_norm": tiny().norm},
        {
            "self_attention.scale_by_depth": True,
            "self_attention.clip": 0.5,
            "residual.layer_scale": 0.1,
        },
        {"num_layers": 4, "layer_repeats": 2},
        {"windows": (2, 3), "window_position": RoPE(theta=7.0)},
        {"windows": (None, 2), "rope_layers": (True, False), "residual.output_scale": 0.3},
        {"windows": (2, None), "window_position": RoPE(theta=7.0), "position": NoPosition()},
        {"scan_layers": True, "num_kv_heads": 1},
        {"windows": (2, None), "self_attention.sinks": True},
        {
            "self_attention": LatentAttention(rank=7, query_rank=5, rope_dim=2),
            "num_kv_heads": None,
            "windows": (None, 2),
        },
        {"feed_forward": Experts(num=5, per_token=2)},
        {
            "feed_forward": Experts(
                num=6, per_token=2, router=SigmoidTopK(groups=3, kept_groups=2), dim=10
            )
        },
        {"feed_forward": Experts(num=4, per_token=3, router=TopKSoftmax(), bias=True)},
        {"feed_forward": Experts(num=4, per_token=1, shared=SharedExpert(dim=14, gated=True))},
        {"head_dim": 6, "value_dim": 10, "windows": (3, None)},
        {"position": RoPE(theta=100.0, scaling=YaRN(4.0, original_max_length=4))},
        {"position": RoPE(theta=100.0, scaling=LinearScaling(2.0))},
        {"position": RoPE(theta=100.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8))},
    ],
)
@pytest.mark.quick("changes1", "changes4", "changes1[0-4]", "changes16")
def test_every_arrangement(changes):
    check(tiny(**changes))


@pytest.mark.first("scaling0")
@pytest.mark.parametrize(
    "scaling", [DynamicNTK(2.0, 3), LongRoPE((1.0, 2.0), (3.0, 5.0), 4, factor=2.0)]
)
def test_positions_that_depend_on_the_length_take_that_of_the_row(scaling):
    config = tiny(position=RoPE(theta=100.0, scaling=scaling))
    parameters = random_parameters(config)
    inputs = np.asarray(tokens(len(LENGTHS), ROOM))
    found = read_in_passes(config, parameters, inputs, lengths=jnp.asarray(LENGTHS))
    for row, length in enumerate(LENGTHS):
        alone = hidden_of(config, parameters, inputs[row : row + 1, :length])
        np.testing.assert_allclose(found[row], alone[0], atol=1e-5)


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_narrow_storage_is_near(storage):
    config = tiny(position=RoPE(theta=100.0), windows=(2, None))
    parameters = random_parameters(config)
    inputs = np.asarray(tokens(len(LENGTHS), ROOM))
    exact = read_in_passes(config, parameters, inputs)
    for one, other in zip(
        exact, read_in_passes(config, parameters, inputs, storage=storage), strict=True
    ):
        assert 0 < np.abs(one - other).max() < 0.1


@pytest.mark.first("positions0")
@pytest.mark.parametrize(
    "positions",
    [
        {},
        {"position": Sinusoidal(), "decoder_position": Learned(max_length=9)},
        {"share_embeddings": False, "residual": PostNorm()},
    ],
)
@pytest.mark.quick("positions0", "positions1")
def test_an_encoder_is_read_once(positions):
    config = tiny_encoder_decoder(**positions)
    # Larger weights carry a rounding error through post-norms to 7e-5 at the end.
    parameters = random_parameters(config, scale=0.2)
    sources, inputs = tokens(len(LENGTHS), 6, seed=1), tokens(len(LENGTHS), ROOM)
    real = jnp.array([[1] * 6, [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool)
    mask = KeyPadding(real)

    @jax.jit
    def together(parameters):
        model = structure_of(config).module(parameters)
        encoder_outputs = model.encode(sources, mask=mask)
        return encoder_outputs, model.decode(inputs, encoder_outputs, encoder_mask=mask)

    encoder_outputs, expected = together(parameters)
    found = read_in_passes(config, parameters, np.asarray(inputs), (encoder_outputs, mask))
    for row, states in enumerate(found):
        np.testing.assert_allclose(states, expected[row, : len(states)], atol=1e-5)


def test_tokens_that_are_taken_back_leave_nothing():
    config = tiny(position=RoPE(theta=100.0), windows=(2, None))
    parameters = random_parameters(config)
    inputs = tokens(3, ROOM)
    cache = init_cache(config, CacheShape(3, ROOM, CHUNK, "float32"), parameters)

    def three(part, cache):
        return read(config, parameters, part, jnp.full(3, 3, jnp.int32), cache, None)

    _, cache = three(inputs[:, :3], cache)
    _, other = three(tokens(3, 3, seed=9), cache)
    back = type(cache)(cache.lengths, other.layers)
    again, _ = three(inputs[:, 3:6], back)
    once, _ = three(inputs[:, 3:6], cache)
    np.testing.assert_array_equal(again, once)


@pytest.mark.more
def test_unstacked_layers_compute_the_same():
    config = tiny(num_layers=4, windows=(2, None))
    model = structure_of(config).module(random_parameters(config))
    inputs = tokens(2, 5)
    stacked = jax.jit(lambda model: model.hidden(inputs))(model)
    model.decoder_transformer.stack.unstack()
    assert len(model.decoder_transformer.stack.group) == 4
    apart = jax.jit(lambda model: model.hidden(inputs))(model)
    np.testing.assert_allclose(apart, stacked, atol=1e-5)
