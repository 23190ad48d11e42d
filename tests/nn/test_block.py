"""The Block: sublayers in their order and arrangement, cross-attention, and dropout."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64 import filled, stream
from tiny_models import close, tiny

from jaxformer.functional import KeyPadding, LayerNorm, RMSNorm, RoPE, causal
from jaxformer.nn import (
    Block,
    Context,
    CrossAttention,
    FeedForward,
    Parallel,
    PostNorm,
    PreNorm,
    Residual,
    SandwichNorm,
    SelfAttention,
    Sublayer,
)

T, S = 5, 8
KEY = jax.random.key(4)
ARRANGEMENTS = [PreNorm(), PostNorm(), SandwichNorm(), Parallel(), Parallel(shared_norm=False)]


def cross_attention_block(key, config):
    """The block of an encoder-decoder's decoder, every parameter random."""

    def build(key):
        keys = jax.random.split(key, 4)
        sublayers = [
            SelfAttention(keys[0], config, config.position),
            CrossAttention(keys[1], config),
            FeedForward(keys[2], config),
        ]
        return Block(keys[3], config, sublayers)

    return filled(jax.eval_shape(build, key))


@jax.jit
def run(block, x, context):
    return block(x, context, None)


def problem():
    """A stream, and a context with encoder outputs of which some are padding."""
    mask = KeyPadding(jnp.arange(S)[None] < jnp.array([[S], [3]]))
    context = Context(
        jnp.arange(T)[None], causal(), encoder_outputs=stream(S, seed=2), encoder_mask=mask
    )
    return stream(T), context


@pytest.mark.parametrize("residual", ARRANGEMENTS, ids=str)
def test_three_sublayers_in_every_arrangement(residual):
    """The block is its residual's formula over its own sublayers and norms, in their order."""
    block, (x, context) = cross_attention_block(KEY, tiny(residual=residual)), problem()
    assert len(block.norms) == residual.num_norms(3)
    sublayers = [lambda x, f=f: f(x, context, None) for f in block.sublayers]
    close(run(block, x, context), residual(x, sublayers, block.norms))


@pytest.mark.parametrize("norm", [RMSNorm(eps=1e-2), LayerNorm(eps=1e-2)])
def test_the_norms_are_those_of_the_configuration(norm):
    block = cross_attention_block(KEY, tiny(norm=norm))
    assert [layer.norm for layer in block.norms] == [norm] * 3
    assert all(layer.scale.shape == (20,) for layer in block.norms)


class Constant(Sublayer):
    """A sublayer that writes ones, so that what the block does to its output is in plain sight."""

    def __call__(self, x, context, key):
        return jnp.ones_like(x)


def writes(rate, key, count=2):
    """What each of `count` sublayers adds to a large stream, `[count, ...]`."""
    config = tiny(residual=Parallel(), dropout=rate)
    block = Block(KEY, config, [])
    block.sublayers = [Constant()] * count
    pieces = []

    class Spy(Parallel):
        def __call__(self, x, sublayers, norms):
            pieces.extend(sublayer(x) for sublayer in sublayers)
            return x

    block.residual = Spy()
    block(jnp.zeros((4, 50, 20)), Context(jnp.arange(50)[None]), key)
    return np.stack(pieces)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_each_sublayers_output_is_dropped_at_the_rate(rate):
    first, second = writes(rate, jax.random.key(0))
    for values in (first, second):
        np.testing.assert_allclose(np.unique(values), [0, 1 / (1 - rate)], rtol=1e-6)
        deviation = np.sqrt(rate * (1 - rate) / values.size)
        assert (values == 0).mean() == pytest.approx(rate, abs=5 * deviation)
    # Independent of one another: both drop where each does, at the product of the rates.
    both = ((first == 0) & (second == 0)).mean()
    assert both == pytest.approx(rate**2, abs=5 * rate / np.sqrt(first.size))
    np.testing.assert_array_equal(writes(rate, jax.random.key(0))[0], first)
    assert (writes(rate, jax.random.key(1))[0] != first).any()


@pytest.mark.parametrize(("rate", "key"), [(0.5, None), (0.0, KEY)])
def test_without_a_key_or_a_rate_nothing_is_dropped(rate, key):
    np.testing.assert_array_equal(writes(rate, key), 1)


def of_two(**changes):
    """A block of self-attention and a feed-forward layer, its input, and its parts as functions."""
    config, x = tiny(**({"windows": (None,)} | changes)), problem()[0]
    context = Context(jnp.arange(T)[None], causal())
    keys = jax.random.split(KEY, 3)
    sublayers = (SelfAttention(keys[0], config, RoPE()), FeedForward(keys[1], config))
    block = Block(keys[2], config, sublayers)
    return block, x, context, *(lambda x, f=f: f(x, context, None) for f in sublayers)


@pytest.mark.more
def test_layer_scale_multiplies_what_each_sublayer_adds():
    block, x, context, attend, feed = of_two(residual=PreNorm(layer_scale=0.25))
    random = np.random.default_rng(3)
    for scale in block.scales:
        np.testing.assert_array_equal(scale[...], np.full(20, 0.25))
        scale[...] = jnp.asarray(random.normal(size=20), jnp.float32)
    first, second = (scale[...][None, None] for scale in block.scales)
    x1 = x + first * attend(block.norms[0](x))
    close(run(block, x, context), x1 + second * feed(block.norms[1](x1)))


def test_residual_scale_multiplies_what_each_sublayer_adds():
    block, x, context, attend, feed = of_two(residual=PreNorm(output_scale=0.25))
    x1 = x + attend(block.norms[0](x)) / 4
    close(run(block, x, context), x1 + feed(block.norms[1](x1)) / 4)


@dataclass(frozen=True)
class Weighted(Residual):
    """`x + s f(norm(x))` for each sublayer."""

    scale: float = 0.5

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = x + self.scale * sublayer(norm(x))
        return x


def test_a_scale_that_a_users_arrangement_defines_is_applied_once():
    block, x, context, *_ = of_two(residual=Weighted())
    close(run(block, x, context), run(of_two(residual=PreNorm(output_scale=0.5))[0], x, context))


def test_the_first_sublayer_may_read_the_stream_as_it_is():
    residual = PreNorm(first_norm=False)
    block, x, context, attend, feed = of_two(residual=residual, windows=(None, None))
    x1 = x + attend(x)
    close(run(block, x, context), x1 + feed(block.norms[1](x1)))
