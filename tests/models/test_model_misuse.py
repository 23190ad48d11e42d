"""Wrong arrays for models and heads: one sentence that names the array and its axes."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from refusals import Row, bools, each_row, floats, ints, refusal
from tiny_models import (
    batch_for,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_vision,
    tokens,
)

from jaxformer.functional import Learned, causal
from jaxformer.models import AttentionPooler, NormPooler, Regression, Span
from jaxformer.models.heads.base import pool
from jaxformer.models.heads.span import best_spans
from jaxformer.nn.cache import CacheShape

CONFIGS = {
    "decoder": tiny(position=Learned(max_length=16)),
    "encoder": tiny_encoder(),
    "encoder_decoder": tiny_encoder_decoder(),
    "vision": tiny_vision(),
    "masked vision": tiny_vision(mask_token=True),
    "regression": tiny_encoder(heads=(Regression(), Span())),
}
HIDDEN = floats(2, 5, 20)
TEXT = {
    "inputs": ints(2, 5), "positions": ints(1, 5), "segments": ints(2, 5) + 1, "mask": causal(),
    "key": jax.random.key(0),
}  # fmt: skip
NO_TEXT = {
    "inputs": [(5,), np.full((2, 5), 31), np.full((2, 5), -1), bools(2, 5)],
    "positions": [(5,)],
    "segments": [(2, 4), bools(2, 5)],
    "mask": [bools(2, 5, 5)],
}


@cache
def model(name):
    config = CONFIGS[name]
    return structure_of(config).module(random_parameters(config))


def row(name, method, good, wrong, **options):
    """A call of a method of a model, of which only the shapes are computed."""

    def call(**arguments):
        function = getattr(model(name), method)
        return jax.eval_shape(lambda: function(**arguments))

    return Row(call, good, wrong, name=f"{name}.{method}", **options)


def token_types(token_types):
    function = model("encoder").hidden
    return jax.eval_shape(lambda: function(ints(2, 5), type_ids={"token_types": token_types}))


def step(**arguments):
    cache = model("decoder").init_cache(CacheShape(2, 8, 4, "float32"))
    return jax.eval_shape(lambda: model("decoder").step(cache=cache, **arguments))


def pooled(pooler, hidden):
    module = pooler.build(jax.random.key(0), CONFIGS["vision"])
    return jax.eval_shape(lambda: module(hidden))


ROWS = [
    row("decoder", "hidden", TEXT, NO_TEXT | {"positions": [(5,), np.full((1, 5), 16)]}),
    row("encoder", "hidden", TEXT, NO_TEXT),
    row("encoder_decoder", "encode", TEXT, NO_TEXT),
    row("encoder_decoder", "decode", TEXT | {
        "encoder_outputs": HIDDEN, "encoder_mask": causal(),
    }, NO_TEXT | {
        "encoder_outputs": [(3, 5, 20), (2, 5, 21)], "encoder_mask": [bools(2, 5)],
    }, free=("encoder_outputs",)),
    row("decoder", "logits", {"hidden": HIDDEN}, {"hidden": [(2, 5, 21), (5, 20)]},
        free=("hidden",)),
    row("vision", "hidden", {"images": floats(2, 8, 12, 2)}, {
        "images": [(2, 8, 12, 1), (2, 2, 8, 12), (2, 8, 15, 2), (2, 12, 8, 2)],
        "masked": [bools(2, 8)],
    }),
    row("masked vision", "hidden", {"images": floats(2, 8, 12, 2), "masked": bools(2, 8)}, {
        "masked": [(2, 9)],
    }),
    Row(token_types, {"token_types": ints(2, 5)}, {"token_types": [(2, 4), np.full((2, 5), 3)]}),
    Row(step, {"inputs": ints(2, 4), "count": ints(2) + 4, "lengths": ints(2)}, {
        "count": [(3,)], "lengths": [(3,)],
    }),
    Row(pool, {"hidden": HIDDEN, "valid": bools(2, 5), "pooling": "mean"}, {
        "hidden": [(5, 20)], "valid": [(2, 4)],
    }, free=("hidden",)),
    Row(best_spans, {"scores": floats(2, 2, 5), "longest": 3}, {
        "scores": [(2, 3, 5)], "longest": [0],
    }, free=("scores",)),
    *(Row(partial(pooled, pooler), {"hidden": HIDDEN}, {"hidden": [(5, 20)]},
          free=("hidden",), name="pooler")
      for pooler in (NormPooler(), AttentionPooler())),
]  # fmt: skip


@each_row(ROWS)
def test_a_wrong_argument_is_named(row):
    row.check()


def test_more_tokens_than_positions():
    refusal(partial(model("decoder").hidden, tokens(2, 17)), "16 positions")


@pytest.mark.parametrize(
    ("name", "array", "change", "named"),
    [
        ("decoder", "targets", lambda x: x.astype(float), "targets"),
        ("decoder", "targets", lambda x: x[:, 1:], "targets"),
        ("decoder", "weights", lambda x: x[:1], "weights"),
        ("encoder", "label", lambda x: x[:, None], "targets"),
        ("regression", "label", lambda x: x[:, None], "label"),
        ("regression", "label_weights", lambda x: x[:1], "label_weights"),
        ("regression", "span", lambda x: x[:, :1], "span"),
        ("regression", "span_weights", lambda x: x[:1], "span_weights"),
    ],
)
def test_batches(name, array, change, named):
    batch = batch_for(CONFIGS[name], rows=2, length=5)
    batch |= {array: change(batch[array])}
    loss = model(name).loss
    refusal(lambda: jax.eval_shape(lambda: loss(batch)[1]), named)


def test_arrays_of_numpy_are_fine():
    ids, positions = np.asarray(tokens(2, 5), np.int64), np.arange(5)[None]
    family = model("decoder")
    expected = family.hidden(tokens(2, 5))
    actual = family.hidden(ids, positions=positions, segments=np.ones((2, 5), int), mask=causal())
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
