"""Wrong arrays for modules: the message names the argument and the axes that it must have."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from refusals import Row, each_row, floats, ints, refusal
from tiny_models import tiny

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
X, POSITIONS = floats(2, 5, 20), ints(1, 5)
CONTEXT = Context(jnp.asarray(POSITIONS), causal())
STACK = {"make_block": BLOCK, "num_layers": 2, "width": 20}
MAKERS = {
    "attention": lambda: Attention(KEY, CONFIG, POSITION),
    "feed_forward": lambda: FeedForward(KEY, CONFIG),
    "block": lambda: BLOCK(KEY, config=CONFIG, position=POSITION, window=None),
    "linear": lambda: Linear(KEY, {"heads": 4, "head_dim": 5}, {"embed": 3}, normal(0.1)),
    "norm": lambda: NormLayer(KEY, LayerNorm(), 20),
    "embedding": lambda: Embedding(KEY, 31, 20, normal(0.1)),
    "transformer": lambda: Transformer(KEY, config=CONFIG, position=POSITION, **STACK),
}


@cache
def module(name):
    return MAKERS[name]()


def row(name, good, wrong, **options):
    """A call of a module, of which only the shapes are computed."""

    def call(**arguments):
        function = module(name)
        return jax.eval_shape(lambda: function(**arguments))

    return Row(call, good, wrong, name=name, **options)


ROWS = [
    row("attention", {
        "x": X, "mask": causal(), "positions": POSITIONS, "kv": X, "kv_positions": POSITIONS,
        "bias": floats(2, 6, 5, 5),
    }, {
        "x": [(5, 20), (2, 5, 19)], "kv": [(2, 5, 19), (1, 5, 20)], "positions": [(5,)],
        "kv_positions": [(1, 4)], "mask": [np.ones((3, 3), bool)], "bias": [(2, 5, 5)],
    }),
    row("feed_forward", {"x": X, "context": CONTEXT, "key": None}, {"x": [(2, 5, 19)]},
        free=("context", "key")),
    row("block", {"x": X, "context": CONTEXT, "key": None}, {"x": [(5, 20), (2, 5, 19)]},
        free=("context", "key")),
    row("linear", {"x": floats(2, 4, 5)}, {"x": [(2, 5, 4), (5,)]}),
    row("norm", {"x": X}, {"x": [(2, 5, 19)]}),
    row("embedding", {"ids": POSITIONS, "dtype": jnp.dtype("float32")}, {
        "ids": [(5,), np.full((1, 5), 31)],
    }, free=("dtype",)),
    row("transformer", {"x": X, "mask": causal(), "positions": POSITIONS, "key": KEY}, {
        "x": [(5, 20)], "mask": [np.ones((5, 5), bool), None], "positions": [(1, 4)],
        "encoder_outputs": [X[0]],
    }),
]  # fmt: skip


@each_row(ROWS)
def test_a_wrong_argument_is_named(row):
    row.check()


def test_caches():
    cache = KeyValueCache.empty(CacheShape(2, 8, 4, "int8"), 8, 3, 4)
    right = {"key": floats(2, 4, 3, 4), "value": floats(2, 4, 3, 4)}
    right |= {"start": jnp.zeros(2, int), "count": jnp.full(2, 4)}
    for name, wrong in (
        ("key", floats(1, 4, 3, 4)),
        ("key", floats(2, 4, 2, 4)),
        ("key", ints(2, 4, 3, 4)),
        ("value", floats(2, 2, 3, 4)),
        ("start", jnp.zeros(3, int)),
        ("count", jnp.ones(2)),
    ):
        given = right | {name: wrong}
        chunk = Chunk(given["start"], given["count"])
        refusal(partial(cache.write, given["key"], given["value"], chunk), name)
