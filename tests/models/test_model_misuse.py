"""Wrong arrays for models and heads: one sentence that names the array and its axes."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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

from jaxformer.errors import ArgumentError, ConfigError
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
IDS = tokens(2, 5)
WRONG_IDS = [
    ("inputs has shape (5,): must be an array [B, T]", IDS[0]),
    ("inputs has dtype float32: must be an array of integers", IDS.astype(float)),
    ("inputs has dtype bool", IDS > 3),
    ("inputs has type list", [[1, 2]]),
    ("inputs holds 31 to 31: must be integers from 0 to 30", np.full((2, 5), 31)),
    ("inputs holds -1 to -1", np.full((2, 5), -1)),
]
WRONG_OPTIONS = [
    ("positions has shape (5,): must be an array [B/1, T] with B = 2, T = 5", jnp.arange(5)),
    ("positions has dtype float32", jnp.zeros((1, 5))),
    ("segments has shape (2, 4): must be an array [B, T] with B = 2, T = 5", jnp.ones((2, 4), int)),
    ("segments has dtype bool", jnp.ones((2, 5), bool)),
    ("mask = an array of bool (2, 5, 5): must be a mask such as", jnp.ones((2, 5, 5), bool)),
    ("key = 0: must be one random key", 0),
]
HIDDEN = jnp.ones((2, 5, 20))


@cache
def model(name):
    config = CONFIGS[name]
    return structure_of(config).module(random_parameters(config))


def refused(function, *arguments, **options):
    """The message with which a call is refused."""
    with pytest.raises((ArgumentError, AssertionError)) as error:
        function(*arguments, **options)
    message = str(error.value)
    assert message.splitlines() == [message]
    return message


@pytest.mark.parametrize("name", ["decoder", "encoder", "encoder_decoder"])
def test_tokens(name):
    family = model(name)
    reads = [getattr(family, "encode" if name == "encoder_decoder" else "hidden")]
    if name == "encoder_decoder":
        reads.append(partial(family.decode, encoder_outputs=HIDDEN))
    for read in reads:
        for message, ids in WRONG_IDS:
            assert message in refused(read, ids)
        for message, value in WRONG_OPTIONS:
            assert message in refused(read, IDS, **{message.split()[0]: value})


def test_what_only_one_family_reads():
    long = tokens(2, 17)
    with pytest.raises(ConfigError, match="16 positions, fewer than the sequence length 17"):
        model("decoder").hidden(long)
    message = refused(model("decoder").hidden, IDS, positions=np.full((1, 5), 16))
    assert message == "positions holds 16 to 16: must be integers from 0 to 15"
    assert "lengths has dtype float32" in refused(model("decoder").hidden, IDS, prefix=jnp.ones(2))
    type_ids = {"token_types": np.full((2, 5), 3)}
    assert "token_types holds 3 to 3" in refused(model("encoder").hidden, IDS, type_ids=type_ids)
    type_ids = {"token_types": jnp.zeros((2, 4), int)}
    assert "token_types has shape (2, 4)" in refused(
        model("encoder").hidden, IDS, type_ids=type_ids
    )
    decode = model("encoder_decoder").decode
    assert "encoder_outputs has shape (3, 5, 20)" in refused(decode, IDS, jnp.ones((3, 5, 20)))
    assert "encoder_outputs has shape (2, 5, 21)" in refused(decode, IDS, jnp.ones((2, 5, 21)))
    encoder_mask = {"encoder_mask": np.ones((2, 5), bool)}
    assert "encoder_mask = an array" in refused(decode, IDS, HIDDEN, **encoder_mask)


def test_caches():
    decoder = model("decoder")
    cache = decoder.init_cache(CacheShape(2, 8, 4, "float32"))
    step = decoder.step
    assert "embedded has shape (3, 4, 20)" in refused(step, tokens(3, 4), cache)
    assert "inputs has dtype float32" in refused(step, jnp.ones((2, 4)), cache)
    for name in ("count", "lengths"):
        assert f"{name} has shape (3,)" in refused(
            step, IDS[:, :4], cache, **{name: jnp.ones(3, int)}
        )
        assert f"{name} has dtype float32" in refused(
            step, IDS[:, :4], cache, **{name: jnp.ones(2)}
        )


def test_images():
    hidden = model("vision").hidden
    images = jnp.zeros((2, 8, 12, 2))
    assert "must be an array [B, 8, 12, 2]" in refused(hidden, images[:, :, :, :1])
    assert "must be an array [B, 8, 12, 2]" in refused(hidden, images.transpose(0, 3, 1, 2))
    assert "images has dtype uint8" in refused(hidden, images.astype(jnp.uint8))
    assert "masked = an array" in refused(hidden, images, masked=jnp.ones((2, 8), bool))
    hidden = model("masked vision").hidden
    assert "masked has shape (2, 9)" in refused(hidden, images, masked=jnp.ones((2, 9), bool))
    assert "masked has dtype int" in refused(hidden, images, masked=jnp.ones((2, 8), int))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("decoder", {"targets": lambda x: x.astype(float)}, "targets has dtype float"),
        ("decoder", {"targets": lambda x: x[:, 1:]}, "targets has shape (2, 4): must be an array"),
        ("decoder", {"weights": lambda x: x[:1]}, "weights has shape (1, 5): must be an array [2,"),
        ("encoder", {"label": lambda x: x[:, None]}, "targets has shape (2, 1): must be an array"),
        ("regression", {"label": lambda x: x[:, None]}, "label has shape (2, 1): must be an array"),
        ("regression", {"label_weights": lambda x: x[:1]}, "label_weights has shape (1,)"),
        (
            "regression",
            {"span": lambda x: x[:, :1]},
            "span has shape (2, 1): must be an array",
        ),
        ("regression", {"span_weights": lambda x: x[:1]}, "span_weights has shape (1,)"),
    ],
)
def test_batches(name, changes, message):
    batch = batch_for(CONFIGS[name], rows=2, length=5)
    batch |= {key: change(batch[key]) for key, change in changes.items()}
    assert message in refused(jax.eval_shape, lambda: model(name).loss(batch)[1])


def test_heads_and_poolers():
    assert "hidden has shape (2, 5, 21)" in refused(model("decoder").logits, jnp.ones((2, 5, 21)))
    assert "hidden has shape (5, 20)" in refused(model("decoder").logits, HIDDEN[0])
    valid = jnp.ones((2, 5), bool)
    assert "pooling = 'middle'" in refused(pool, HIDDEN, valid, "middle")
    assert "valid has shape (2, 4)" in refused(pool, HIDDEN, valid[:, 1:], "mean")
    assert "valid has dtype float32" in refused(pool, HIDDEN, valid.astype(float), "mean")
    assert "hidden has shape (5, 20)" in refused(pool, HIDDEN[0], None, "mean")
    assert "scores has shape (2, 3, 5)" in refused(best_spans, jnp.ones((2, 3, 5)), 3)
    assert "longest = 0" in refused(best_spans, jnp.ones((2, 2, 5)), 0)
    for pooler in (NormPooler(), AttentionPooler()):
        module = pooler.build(jax.random.key(0), CONFIGS["vision"])
        assert "hidden has shape (5, 20)" in refused(module, HIDDEN[0])


def test_arrays_of_numpy_are_fine():
    ids, positions = np.asarray(IDS, np.int64), np.arange(5)[None]
    family = model("decoder")
    expected = family.hidden(IDS)
    actual = family.hidden(ids, positions=positions, segments=np.ones((2, 5), int), mask=causal())
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
