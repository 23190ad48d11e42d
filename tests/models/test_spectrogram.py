"""Encoders over spectrograms, alone and beside a decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.functional import NoPosition, SinusoidalTable
from jaxformer.functional.activations import with_cache
from jaxformer.models import AbstractModel, Classification, Dense, SpectrogramConfig
from jaxformer.models.states import STATES, layer_states
from jaxformer.zoo.whisper import whisper

SIZES = {"num_layers": 2, "model_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_mel_bins": 6}
KEY = jax.random.key(0)


def encoder(**fields):
    position = SinusoidalTable(max_length=5)
    return SpectrogramConfig(**{**SIZES, "position": position, "compute_dtype": "float32"} | fields)


def spectrograms(rows=2):
    return jax.random.normal(jax.random.key(1), (rows, 10, 6))


@pytest.mark.more
def test_the_table_of_positions_holds_sinusoids_and_is_kept():
    config = encoder()
    table = jax.jit(config.build)(KEY).transformer.inputs.position_table[...]
    angles = np.arange(5)[:, None] * np.exp(-np.log(10_000) / 7 * np.arange(8))[None]
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    np.testing.assert_allclose(table, expected, atol=1e-6)
    assert not any("position_table" in name for name in AbstractModel(config.build).learning)


def test_two_frames_are_one_state_and_the_convolutions_see_three():
    model = jax.jit(encoder().build)(KEY)
    x = spectrograms()
    assert jax.eval_shape(model.hidden, x).shape == (2, 5, 16)
    reach = jax.jit(jax.grad(lambda x: _front(model, x)[0, 2].sum()))(x)[0]
    frames = np.flatnonzero(np.abs(np.asarray(reach)).sum(axis=1))
    np.testing.assert_array_equal(frames, [2, 3, 4, 5, 6])


def _front(model, x):
    """The input of the first block."""
    _, cache = with_cache(model.hidden, STATES, required=False)(x)
    return layer_states(cache)[0]


def test_frames_that_do_not_fit_are_named():
    model = jax.jit(encoder().build)(KEY)
    with pytest.raises(AssertionError, match=r"spectrograms.*10, 6"):
        model.hidden(jnp.zeros((1, 8, 6)))
    with pytest.raises(ConfigError, match="position"):
        encoder(position=NoPosition())


def test_a_mixture_of_layers_learns():
    head = Classification(
        num_labels=3, pooling="late", dense=Dense(None, width=7), mixes_layers=True
    )
    model = AbstractModel(encoder(heads=(head,)).build)
    batch = {
        "spectrograms": spectrograms(),
        "label": jnp.array([0, 2]),
        "label_weights": jnp.ones(2),
    }

    def loss(parameters):
        _, sums = model.module(parameters).loss(batch)
        return sums["label"].loss

    parameters = jax.jit(model.init)(KEY)
    gradient = jax.jit(jax.grad(loss))(parameters)["heads.label.layer_weights"]
    assert gradient.shape == (3,)
    assert jnp.abs(gradient).max() > 0


def test_whisper_is_the_encoder_and_a_decoder_that_reads_it():
    config = whisper(2, 16, 2, num_decoder_layers=1, vocab_size=11, num_mel_bins=6)
    config = config.with_fields(compute_dtype="float32")
    short = SinusoidalTable(max_length=5)
    config = config.with_fields(encoder=config.encoder.with_fields(position=short))
    assert config.required == ("spectrograms", "decoder_inputs")
    assert config.row_lengths({"decoder_inputs": 4})["inputs"] == 5
    spec = config.input_spec(3, {"inputs": 5, "decoder_inputs": 4})
    assert spec["spectrograms"].shape == (3, 10, 6)
    model = jax.jit(config.build)(KEY)
    ids = jnp.array([[1, 2, 3], [4, 5, 6]])
    run = jax.jit(model)
    scores = run(spectrograms(), ids)
    assert scores.shape == (2, 3, 11)
    other = run(spectrograms().at[:, -1].add(1.0), ids)
    assert jnp.abs(other - scores).max() > 0
    later = run(spectrograms(), ids.at[:, 2].set(7))
    np.testing.assert_allclose(later[:, :2], scores[:, :2], atol=1e-6)
    assert config.flops({"inputs": 5, "decoder_inputs": 4}).products > 0
