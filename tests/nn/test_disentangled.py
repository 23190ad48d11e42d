"""DeBERTa's blocks: padding and other documents mean nothing, and without terms it is plain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import hidden_of, random_parameters, structure_of, tiny_encoder, tokens

from jaxformer.errors import ConfigError
from jaxformer.functional import DistanceEmbedding, KeyPadding, LayerNorm, NoPosition
from jaxformer.nn import ConvolutionBlock, DisentangledAttention, PreNorm
from jaxformer.nn.convolution import _neighbours

pytestmark = pytest.mark.more

BUCKETS = DistanceEmbedding(9, 4, norm=LayerNorm())
SHARED = DisentangledAttention(share_projections=True)


def disentangled(**changes):
    """An encoder that knows distances alone, with a convolution beside its first layer."""
    fields = {
        "position": NoPosition(),
        "relative_position": BUCKETS,
        "self_attention": DisentangledAttention(),
        "first_block": ConvolutionBlock(),
        "windows": (None, None),
        "embeddings.zero_padding": True,
    }
    return tiny_encoder(**(fields | changes))


CONFIGS = {
    "projections of their own": disentangled(),
    "shared": disentangled(self_attention=SHARED, first_block=None, windows=(None,)),
    "no buckets": disentangled(relative_position=DistanceEmbedding(3)),
    "blocks": disentangled(attention="blockwise"),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def hidden(config, inputs, **options):
    """The hidden states `[B, T, D]` with random parameters."""
    return hidden_of(config, random_parameters(config), inputs, **options)


@each_config
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.quick("right-shared")
def test_padding_changes_nothing(config, side):
    inputs, lengths = tokens(3, 11), (5, 0) if side == "left" else (0, 5)
    real = np.pad(np.ones((3, 11), bool), ((0, 0), lengths))
    padded = jnp.pad(inputs, ((0, 0), lengths), constant_values=7)
    expected = hidden(config, inputs)
    for options in (
        {"mask": KeyPadding(jnp.asarray(real))},
        {"segments": jnp.asarray(real, jnp.int32)},
    ):
        actual = hidden(config, padded, **options)[real].reshape(expected.shape)
        np.testing.assert_allclose(actual, expected, atol=2e-5)


@each_config
@pytest.mark.quick("blocks")
def test_packed_documents_are_separate_documents(config):
    inputs, ids = tokens(2, 16), np.repeat([1, 2, 0], [6, 7, 3])
    segments = jnp.asarray(np.tile(ids, (2, 1)))
    packed = hidden(config, inputs, segments=segments)
    for document in (1, 2):
        alone = hidden(config, inputs[:, ids == document])
        np.testing.assert_allclose(packed[:, ids == document], alone, atol=2e-5)


def test_words_in_another_order_are_another_text():
    inputs = tokens(1, 9)
    config = disentangled(first_block=None)
    states, other = hidden(config, inputs), hidden(config, inputs[:, ::-1])[:, ::-1]
    assert jnp.abs(states - other).max() > 1e-2


def test_without_terms_it_is_plain_attention():
    options = {"relative_position": None, "first_block": None}
    config = disentangled(**options, self_attention=DisentangledAttention(False, False))
    plain = tiny_encoder(position=NoPosition(), windows=(None, None))
    assert structure_of(config).shapes == structure_of(plain).shapes
    np.testing.assert_array_equal(hidden(config, tokens(2, 9)), hidden(plain, tokens(2, 9)))


def test_the_scale_counts_the_terms():
    """Equation 4 of the paper: 1 / sqrt(3 d) with both."""
    for terms, count in (((True, True), 3), ((True, False), 2), ((False, False), 1)):
        assert DisentangledAttention(*terms).default_scale(48) == (48 * count) ** -0.5
    model = structure_of(disentangled(**{"self_attention.scale": 0.25}))
    attention = model.module(random_parameters(disentangled())).transformer.stack.layers()[0]
    assert attention.sublayers[0].attention.scale == 0.25


def test_the_convolution_is_that_of_jax():
    x = jax.random.normal(jax.random.key(0), (2, 9, 5))
    kernel = jax.random.normal(jax.random.key(1), (3, 5, 4))
    found = _neighbours(x, jnp.ones((2, 9), jnp.int32), 3)
    actual = jnp.einsum("btkd,kdf->btf", found, kernel)
    layout = ("NWC", "WIO", "NWC")
    expected = jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=layout)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_position": None}, "must be a DistanceEmbedding"),
        ({"windows": (None,)}, "first_block = .*entry for every layer"),
        ({"windows": (3, None), "first_block": None, "position": BUCKETS}, "position"),
        ({"residual": PreNorm()}, r"residual = PreNorm.*must be PostNorm"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        structure_of(disentangled(**changes))
