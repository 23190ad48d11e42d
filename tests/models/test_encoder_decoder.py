"""Encoder-decoders: each side sees what it may, and padding and packing change nothing."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    SCHEMES,
    close,
    gradients_of,
    packed,
    padded,
    random_parameters,
    scores_of,
    structure_of,
    tiny_encoder_decoder,
    tokens,
)

from jaxformer.functional import Band, KeyPadding, Mask, NoPosition, T5Bias, causal
from jaxformer.models import AbstractModel

BOTH_WAYS = SCHEMES | {"t5": T5Bias(8, 12, bidirectional=True)}
with_scheme = pytest.mark.parametrize("scheme", SCHEMES)
S, T = 6, 4


def with_positions(scheme, **changes):
    return tiny_encoder_decoder(
        position=BOTH_WAYS[scheme], decoder_position=SCHEMES[scheme], **changes
    )


@partial(jax.jit, static_argnums=0)
def influences(config, parameters):
    """Derivatives of the decoder's states: `[T, S]` by the source, `[T, T]` by the target.

    And `[S, S]`: of the encoder outputs by the source. Every input is another token, so it alone
    uses its row of the table; the decoder has a separate table.
    """

    def states(source_table, target_table):
        tables = {"embedding.table": source_table, "decoder_embedding.table": target_table}
        model = structure_of(config).module(parameters | tables)
        encoder_outputs = model.encode(jnp.arange(S)[None])
        return encoder_outputs[0], model.decode(jnp.arange(T)[None], encoder_outputs)[0]

    tables = parameters["embedding.table"], parameters["decoder_embedding.table"]
    (encoder_outputs, _), (by_source, by_target) = jax.jacrev(states, argnums=(0, 1))(*tables)

    def largest(jacobian, length):
        return jnp.abs(jacobian).max((1, 3))[:, :length]

    return largest(by_source, S), largest(by_target, T), largest(encoder_outputs, S)


@pytest.mark.first("*t5")
@with_scheme
@pytest.mark.quick("t5")
def test_the_encoder_sees_all_and_the_decoder_what_came_before(scheme):
    config = with_positions(scheme, share_embeddings=False)
    by_source, by_target, encoder_outputs = influences(config, random_parameters(config))
    assert (encoder_outputs > 0).all()
    assert (by_source > 0).all()
    later = np.triu(np.ones((T, T), bool), k=1)
    np.testing.assert_array_equal(np.asarray(by_target)[later], 0.0)
    assert (np.asarray(by_target)[~later] > 0).all()


def test_the_decoder_reads_only_real_encoder_outputs():
    config = tiny_encoder_decoder()
    parameters = random_parameters(config)
    valid = jnp.array([[True] * 3 + [False] * 3])

    @jax.jit
    def jacobian(encoder_outputs):
        def states(encoder_outputs):
            model = structure_of(config).module(parameters)
            return model.decode(tokens(1, T), encoder_outputs, encoder_mask=KeyPadding(valid))[0]

        return jnp.abs(jax.jacrev(states)(encoder_outputs)).max((0, 1, 2, 4))

    seen = np.asarray(jacobian(jax.random.normal(jax.random.key(0), (1, S, 20))))
    np.testing.assert_array_equal(seen > 0, valid[0])


def parameters_of(config):
    """Random parameters of a size at which a rounding stays a rounding."""
    return random_parameters(config, scale=0.3)


@with_scheme
@pytest.mark.parametrize(
    ("left", "decoder_left", "attention"),
    [
        (True, False, "reference"),
        (False, True, "blockwise"),
        pytest.param(True, None, "reference", marks=pytest.mark.more),
    ],
)
@pytest.mark.quick("True-False-reference-t5", "True-None-*learned", "True-None-*rope_half")
def test_padding_on_either_side_changes_nothing(scheme, left, decoder_left, attention):
    """Or of the source alone."""
    config = with_positions(scheme, attention=attention)
    parameters, source, target = parameters_of(config), tokens(2, S), tokens(2, T, seed=1)
    alone = scores_of(config, parameters, {"inputs": source, "decoder_inputs": target})
    decoder, places = {"inputs": target}, ...
    if decoder_left is not None:
        decoder, places = padded(target, T + 2, starts=(2 * decoder_left,) * 2, seed=2)
    batch, _ = padded(source, S + 3, starts=(3 * left,) * 2, seed=3)
    batch |= {f"decoder_{name}": x for name, x in decoder.items()}
    scores = scores_of(config, parameters, batch)["language_model"]
    close(scores[places], alone["language_model"])
    chex.assert_tree_all_finite(scores)


@pytest.mark.first("*learned")
@with_scheme
@pytest.mark.quick("t5", "learned")
def test_packed_pairs_are_as_separate_ones(scheme):
    config = with_positions(scheme)
    parameters, source, target = parameters_of(config), tokens(2, S), tokens(2, T, seed=1)
    decoder = packed(target, seed=2)
    batch = packed(source, seed=3) | {f"decoder_{name}": x for name, x in decoder.items()}
    scores = scores_of(config, parameters, batch)["language_model"][0]
    separate = scores_of(config, parameters, {"inputs": source, "decoder_inputs": target})
    separate = separate["language_model"]
    close(scores[: 2 * T].reshape(separate.shape), separate)
    assert jnp.isfinite(scores).all()


def test_without_positions_the_decoder_is_blind_to_the_order_of_the_source():
    config = tiny_encoder_decoder(position=NoPosition())
    parameters, source, target = random_parameters(config), tokens(2, S), tokens(2, T, seed=1)
    scores = partial(scores_of, config, parameters)
    plain = scores({"inputs": source, "decoder_inputs": target})
    turned = scores({"inputs": source[:, ::-1], "decoder_inputs": target})
    chex.assert_trees_all_close(turned, plain, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_shared_embeddings_are_two_equal_tables():
    """The shared table learns from the source, the target and the output."""
    shared = tiny_encoder_decoder()
    apart = tiny_encoder_decoder(share_embeddings=False)
    parameters, source, target = random_parameters(shared), tokens(2, S), tokens(2, T, seed=1)
    table = parameters["embedding.table"]
    gradients, logits = gradients_of(shared, parameters, source, decoder_inputs=target)
    both = parameters | {"decoder_embedding.table": table}
    expected, expected_logits = gradients_of(apart, both, source, decoder_inputs=target)
    close(logits, expected_logits)
    total = expected["embedding.table"] + expected["decoder_embedding.table"]
    close(gradients["embedding.table"], total, atol=2e-5 * float(jnp.abs(total).max()))


@pytest.mark.more
def test_windows_are_the_encoders_and_reach_both_ways():
    config = tiny_encoder_decoder(windows=(3,), num_layers=1, num_decoder_layers=1)
    model = structure_of(config).module(random_parameters(config))

    def encoded(embedded):
        return model.encoder(embedded[None], mask=Mask())[0]

    def decoded(embedded):
        memory = jnp.zeros((1, 2, config.model_dim))
        return model.decoder(embedded[None], mask=causal(), encoder_outputs=memory)[0]

    x = jax.random.normal(jax.random.key(0), (9, config.model_dim))
    near, past = Band(2, 2).values(9, 9)[0], causal().values(9, 9)[0]
    for function, expected in ((encoded, near), (decoded, past)):
        moved = np.abs(jax.jit(jax.jacrev(function))(x)).max((1, 3)) > 0
        np.testing.assert_array_equal(moved, expected)


def test_layers_of_encoder_and_decoder_need_not_follow_the_same_windows():
    config = tiny_encoder_decoder(windows=(3, None), num_layers=4, num_decoder_layers=3)
    assert config.decoder.windows == (None,)
    assert AbstractModel(config.build).shapes
