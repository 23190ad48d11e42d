"""Block-sparse and transient-global attention, against attention to keys that are written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import random_parameters, structure_of, tiny, tiny_encoder, tiny_encoder_decoder

from jaxformer.errors import ConfigError
from jaxformer.functional import (
    Band,
    DenseMask,
    KeyPadding,
    Mask,
    Segments,
    T5Bias,
    T5GlobalBias,
    attention,
    block_sparse,
    causal,
)
from jaxformer.functional.positions.sparse import RepeatedBlock
from jaxformer.nn import BlockSparseAttention, Context, TransientGlobalAttention

pytestmark = pytest.mark.more

LENGTH = 33
BOTH = pytest.mark.parametrize("implementation", ["reference", "blockwise"])


def problem(config, mask=Mask(), rows=1):  # noqa: B008
    """The self-attention of a model's first block, the context of whole rows, and states."""
    model = structure_of(config).module(random_parameters(config))
    transformer = getattr(model, "encoder", None) or model.transformer
    positions = jnp.arange(LENGTH)[None]
    context = Context(positions, mask, bias=transformer.inputs.bias(positions))
    x = jax.random.normal(jax.random.key(0), (rows, LENGTH, config.model_dim))
    return transformer.stack.layers()[0].sublayers[0], context, x


def influence(sublayer, context, x):
    """Whether the result of each token depends on each token, bool `[T, S]`."""
    found = jax.jit(jax.jacfwd(lambda x: sublayer(x[None], context, None)[0]))(x[0])
    return np.abs(found).max((1, 3)) > 0


# BigBird ----------------------------------------------------------------------------------------


@BOTH
def test_a_repeated_block_counts_as_if_its_keys_were_there_as_often(implementation):
    size, times = 5, 3
    keys = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(k, (2, LENGTH, 4, 8)) for k in keys)
    mask, blocks = block_sparse(LENGTH, size), -(-LENGTH // size)
    bias = RepeatedBlock(size, blocks).bias(times, LENGTH, num_heads=4)
    actual = attention(query, key, value, mask=mask, bias=bias, implementation=implementation)
    extra = [jnp.concatenate([x, x[:, :size], x[:, :size]], axis=1) for x in (key, value)]
    block = np.arange(LENGTH) // size
    between = (block > 0) & (block < blocks - 1)
    allowed = np.concatenate(
        [np.asarray(mask.values(LENGTH, LENGTH)[0]), np.repeat(between[:, None], 2 * size, 1)], 1
    )
    expected = attention(query, *extra, mask=DenseMask(jnp.asarray(allowed)[None]))
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@BOTH
@pytest.mark.quick("blockwise")
def test_short_rows_have_full_attention_and_long_ones_do_not(implementation):
    config = tiny_encoder(
        self_attention=BlockSparseAttention(3, 2), attention=implementation, num_layers=1
    )
    sublayer, context, x = problem(config)
    assert config.self_attention.longest_full == 27
    short = Context(jnp.arange(27)[None])
    assert influence(sublayer, short, x[:, :27]).all()
    expected = block_sparse(LENGTH, 3).values(LENGTH, LENGTH)[0]
    np.testing.assert_array_equal(influence(sublayer, context, x), expected)


def test_a_decoder_cannot_have_sparse_attention_of_encoders():
    for attention_config in (BlockSparseAttention(), TransientGlobalAttention()):
        config = tiny(self_attention=attention_config, windows=(4,))
        with pytest.raises(ConfigError, match="encoder of text"):
            jax.eval_shape(config.build, jax.random.key(0))


def test_the_decoder_of_an_encoder_decoder_has_plain_attention():
    config = tiny_encoder_decoder(self_attention=BlockSparseAttention(2, 0), windows=(3,))
    model = structure_of(config).module(random_parameters(config))
    (encoder, decoder) = (
        stack.stack.layers()[0].sublayers[0] for stack in (model.encoder, model.decoder)
    )
    assert (encoder.window, decoder.window) == (3, None)
    assert not hasattr(decoder, "sparse")


def test_block_sparse_attention_refuses_biases_of_positions():
    position = T5Bias(bidirectional=True)
    config = tiny_encoder(self_attention=BlockSparseAttention(2, 0), position=position)
    model = structure_of(config).module(random_parameters(config))
    with pytest.raises(ConfigError, match="BlockSparseAttention"):
        jax.eval_shape(model.hidden, jnp.zeros((1, LENGTH), int))


# LongT5 -----------------------------------------------------------------------------------------


def transient(implementation="reference", **changes):
    fields = {
        "self_attention": TransientGlobalAttention(4),
        "position": T5GlobalBias(num_buckets=8, max_distance=9, bidirectional=True),
        "windows": (3,),
        "attention": implementation,
    }
    return tiny_encoder_decoder(**(fields | changes))


def test_the_implementations_agree():
    segments = jnp.asarray(np.repeat([[1, 2, 3, 0]], [9, 14, 6, 4], axis=1).repeat(3, 0))
    found = []
    for implementation in ("reference", "blockwise"):
        mask = Segments(segments, segments)
        sublayer, context, x = problem(transient(implementation), mask, rows=3)

        def output(x, context=context, sublayer=sublayer):
            return jnp.sum(jnp.sin(sublayer(x, context, None)) * (segments > 0)[..., None])

        found.append(jax.jit(jax.value_and_grad(output))(x))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    largest = float(jnp.abs(found[0][1]).max())
    np.testing.assert_allclose(found[0][1], found[1][1], atol=2e-6 * largest)


def test_packed_documents_do_not_see_one_another():
    documents = np.repeat([1, 2, 3, 0], [9, 14, 6, 4])
    segments = jnp.asarray(documents)[None]
    moved = influence(*problem(transient(), Segments(segments, segments)))
    assert not np.any(moved & (documents[:, None] != documents))
    assert moved[9:23, 9:23].sum() > np.asarray(Band(2, 2).values(14, 14)).sum()
    np.testing.assert_array_equal(moved.any(1), documents > 0)


def test_rows_shorter_than_a_block_have_a_window_alone():
    config = transient(self_attention=TransientGlobalAttention(LENGTH + 1))
    expected = Band(2, 2).values(LENGTH, LENGTH)[0]
    np.testing.assert_array_equal(influence(*problem(config)), expected)


def test_masks_that_are_no_padding_are_refused():
    sublayer, context, x = problem(transient(), rows=3)
    padded = KeyPadding(jnp.ones((3, LENGTH), bool))
    for mask in (Mask(), padded & padded):
        jax.eval_shape(sublayer, x, Context(context.positions, mask), None)
    for mask in (causal(), padded & DenseMask(jnp.ones((1, LENGTH, LENGTH), bool))):
        with pytest.raises(ConfigError, match="TransientGlobalAttention"):
            sublayer(x, Context(context.positions, mask), None)
