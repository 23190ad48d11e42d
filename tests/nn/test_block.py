"""The Block: sublayers in their order and arrangement, cross-attention, and dropout."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64 import filled
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


def problem(batch=2):
    random = np.random.default_rng(1)
    x = jnp.asarray(random.normal(size=(batch, T, 20)), jnp.float32)
    encoder_outputs = jnp.asarray(random.normal(size=(batch, S, 20)), jnp.float32)
    valid = jnp.arange(S)[None] < jnp.array([[S], [3]])[:batch]
    context = Context(
        jnp.arange(T)[None],
        causal(),
        encoder_outputs=encoder_outputs,
        encoder_mask=KeyPadding(valid),
    )
    return x, context


@jax.jit(static_argnums=0)
def formula(residual, block, x, context):
    """The arrangement written out for three sublayers."""
    attend, read, feed = (lambda x, f=f: f(x, context, None) for f in block.sublayers)
    n = block.norms
    if isinstance(residual, PreNorm):
        x1 = x + attend(n[0](x))
        x2 = x1 + read(n[1](x1))
        return x2 + feed(n[2](x2))
    if isinstance(residual, PostNorm):
        x1 = n[0](x + attend(x))
        x2 = n[1](x1 + read(x1))
        return n[2](x2 + feed(x2))
    if isinstance(residual, SandwichNorm):
        x1 = x + n[1](attend(n[0](x)))
        x2 = x1 + n[3](read(n[2](x1)))
        return x2 + n[5](feed(n[4](x2)))
    a, b, c = (n[0],) * 3 if residual.shared_norm else n
    return x + attend(a(x)) + read(b(x)) + feed(c(x))


@pytest.mark.parametrize("residual", ARRANGEMENTS, ids=str)
def test_three_sublayers_in_every_arrangement(residual):
    """The block is its residual's formula over its own sublayers and norms, in their order."""
    block, (x, context) = cross_attention_block(KEY, tiny(residual=residual)), problem()
    assert len(block.norms) == residual.num_norms(3)
    close(run(block, x, context), formula(residual, block, x, context))


@pytest.mark.parametrize("norm", [RMSNorm(eps=1e-2), LayerNorm(eps=1e-2)])
def test_the_norms_are_those_of_the_configuration(norm):
    block = cross_attention_block(KEY, tiny(norm=norm))
    assert [layer.norm for layer in block.norms] == [norm] * 3
    assert all(layer.scale.shape == (20,) for layer in block.norms)


@pytest.fixture(scope="module")
def cross_attention():
    """A block, its input, and the jacobians of its output by its two inputs."""
    block, (x, context) = cross_attention_block(KEY, tiny(position=RoPE())), problem()

    @jax.jit
    def out(x, encoder_outputs):
        return block(x, replace(context, encoder_outputs=encoder_outputs), None)

    by_stream, by_encoder_outputs = jax.jit(jax.jacrev(lambda x, m: out(x, m).sum(-1), (0, 1)))(
        x, context.encoder_outputs
    )
    return out, x, context, jnp.abs(by_stream).max(-1), jnp.abs(by_encoder_outputs).max(-1)


def test_every_output_depends_on_all_real_encoder_outputs_and_none_of_the_padding(cross_attention):
    *_, context, _, by_encoder_outputs = cross_attention
    valid = np.asarray(context.encoder_mask.valid)
    for row in range(2):
        own = np.asarray(by_encoder_outputs[row, :, row])
        assert (own[:, valid[row]] > 0).all()
        np.testing.assert_array_equal(own[:, ~valid[row]], 0)
        np.testing.assert_array_equal(by_encoder_outputs[row, :, 1 - row], 0)


def test_the_stream_stays_causal_beside_encoder_outputs(cross_attention):
    *_, by_stream, _ = cross_attention
    own = np.asarray(by_stream[0, :, 0])
    later = np.triu(np.ones((T, T), bool), 1)
    np.testing.assert_array_equal(own[later], 0)
    assert (own[~later] > 0).all()


def test_padding_of_the_encoder_outputs_changes_nothing(cross_attention):
    out, x, context, *_ = cross_attention
    valid = context.encoder_mask.valid[..., None]
    plain = out(x, context.encoder_outputs)
    np.testing.assert_array_equal(out(x, jnp.where(valid, context.encoder_outputs, 1e3)), plain)


@pytest.mark.parametrize("length", [1, 3])
def test_each_query_reads_encoder_outputs_alone(cross_attention, length):
    """A prefix of the stream gives a prefix of the output: T may be anything beside S."""
    out, x, context, *_ = cross_attention
    block = cross_attention_block(KEY, tiny(position=RoPE()))
    prefix = replace(context, positions=context.positions[:, :length])
    close(run(block, x[:, :length], prefix), out(x, context.encoder_outputs)[:, :length])


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
