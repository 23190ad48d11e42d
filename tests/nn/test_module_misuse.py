"""Wrong arrays for modules: the message names the argument and the axes that it must have."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny

from jaxformer.errors import ArgumentError
from jaxformer.functional import LayerNorm, RoPE, causal
from jaxformer.nn import (
    Attention,
    Context,
    Embedding,
    FeedForward,
    Linear,
    NormLayer,
    Transformer,
)
from jaxformer.nn.cache import CacheShape, Chunk, KeyValueCache
from jaxformer.nn.layers import normal

KEY, CONFIG, POSITION = jax.random.key(0), tiny(), RoPE()
BLOCK = partial(CONFIG.block.build, sublayers=CONFIG.sublayers)
X, PLACES = jnp.ones((2, 5, 20)), jnp.zeros((1, 5), int)
CONTEXT = Context(PLACES, causal())


@pytest.fixture(scope="module")
def modules():
    transformer = partial(
        Transformer, config=CONFIG, position=POSITION, make_block=BLOCK, num_layers=2, width=20
    )
    made = {
        "attention": Attention(KEY, CONFIG, POSITION),
        "feed_forward": FeedForward(KEY, CONFIG),
        "block": BLOCK(KEY, config=CONFIG, position=POSITION, window=None),
        "linear": Linear(KEY, {"heads": 4, "head_dim": 5}, {"embed": 3}, normal(0.1)),
        "norm": NormLayer(KEY, LayerNorm(), 20),
        "embedding": Embedding(KEY, 31, 20, normal(0.1)),
        "transformer": transformer(KEY),
    }
    right = {
        "attention": {"x": X, "mask": causal(), "positions": PLACES},
        "feed_forward": {"x": X, "context": CONTEXT, "key": None},
        "block": {"x": X, "context": CONTEXT, "key": None},
        "linear": {"x": jnp.ones((2, 4, 5))},
        "norm": {"x": X},
        "embedding": {"ids": PLACES, "dtype": jnp.dtype("float32")},
        "transformer": {"x": X, "mask": causal()},
    }
    return {name: (module, right[name]) for name, module in made.items()}


WRONG = [
    ("attention", "x", X[0], "must be an array [B, T, D] with D = 20"),
    ("attention", "x", X[..., 1:], "x has shape (2, 5, 19): must be an array [B, T, D] with D"),
    ("attention", "x", X.astype(int), "x has dtype int32"),
    ("attention", "kv", X[..., 1:], "must be an array [B, S, D] with B = 2, D = 20"),
    ("attention", "kv", X[:1], "must be an array [B, S, D] with B = 2, D = 20"),
    ("attention", "positions", PLACES[0], "must be an array [B/1, T] with B = 2, T = 5"),
    ("attention", "positions", X[0, :, :5], "must be an array [B/1, T]"),
    ("attention", "positions", PLACES.astype(float), "positions has dtype float32"),
    ("attention", "kv_positions", PLACES[:, 1:], "must be an array [B/1, S] with B = 2, S = 5"),
    ("attention", "mask", jnp.ones((3, 3), bool), "must be an array [T, S] with T = 5, S = 5"),
    ("attention", "bias", jnp.ones((2, 5, 5)), "must be an array [B/1, N/1, T, S]"),
    ("feed_forward", "x", X[..., 1:], "x has shape (2, 5, 19): must be an array [..., 20]"),
    ("feed_forward", "x", X.astype(int), "x has dtype int32"),
    ("block", "x", X[0], "x has shape (5, 20): must be an array [B, T, D]"),
    ("block", "x", X[..., 1:], "x has shape (2, 5, 19)"),
    ("block", "x", X.astype(int), "x has dtype int32"),
    ("linear", "x", jnp.ones((2, 5, 4)), "x has shape (2, 5, 4): must be an array [..., 4, 5]"),
    ("linear", "x", jnp.ones(5), "must be an array [..., 4, 5]"),
    ("norm", "x", X[..., 1:], "x has shape (2, 5, 19): must be an array [..., 20]"),
    ("norm", "x", X.astype(int), "x has dtype int32"),
    ("embedding", "ids", PLACES[0], "ids has shape (5,): must be an array [B, T]"),
    ("embedding", "ids", X[0], "ids has dtype float32"),
    ("embedding", "ids", np.full((1, 5), 31), "ids holds 31 to 31: must be integers from 0 to 30"),
    ("transformer", "x", X[0], "x has shape (5, 20): must be an array [B, T, E]"),
    ("transformer", "x", X.astype(int), "x has dtype int32"),
    ("transformer", "mask", jnp.ones((5, 5), bool), "mask = an array of bool (5, 5): must be"),
    ("transformer", "mask", None, "mask = None: must be a mask"),
    ("transformer", "positions", PLACES[:, 1:], "must be an array [B/1, T] with B = 2, T = 5"),
    ("transformer", "key", 0, "key = 0: must be one random key"),
    ("transformer", "encoder_outputs", X[0], "must be an array [B, S, D] with B = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "value", "message"), WRONG)
def test_a_wrong_argument_is_named(module, name, value, message, modules):
    call, right = modules[module]
    with pytest.raises((ArgumentError, AssertionError)) as error:
        jax.eval_shape(lambda: call(**right | {name: value}))
    assert message in str(error.value)
    assert name in str(error.value)


def test_the_arguments_are_right_otherwise(modules):
    for call, right in modules.values():
        jax.eval_shape(lambda call=call, right=right: call(**right))


def test_caches():
    cache = KeyValueCache.empty(CacheShape(2, 8, 4, "int8"), 8, 3, 4)
    chunk = Chunk(jnp.zeros(2, int), jnp.full(2, 4))
    new = jnp.ones((2, 4, 3, 4))
    cache.write(new, new, chunk)
    for key, value, where, message in (
        (
            new[:1],
            new[:1],
            chunk,
            "key has shape (1, 4, 3, 4): must be an array [B, T, K, H]",
        ),
        (new, new[:, :2], chunk, "value has shape (2, 2, 3, 4)"),
        (new[:, :, :2], new[:, :, :2], chunk, "key has shape (2, 4, 2, 4)"),
        (new.astype(int), new, chunk, "key has dtype int32"),
        (new, new, Chunk(jnp.zeros(3, int), chunk.count), "start has shape (3,)"),
        (new, new, Chunk(chunk.start, jnp.ones(2)), "count has dtype float32"),
    ):
        with pytest.raises(AssertionError) as error:
            cache.write(key, value, where)
        assert message in str(error.value)
