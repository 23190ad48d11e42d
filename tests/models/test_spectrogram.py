"""Encoders over spectrograms, alone and beside a decoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import structure_of, tiny_spectrogram

from jaxformer.errors import ConfigError
from jaxformer.functional import NoPosition, SinusoidalTable
from jaxformer.functional.activations import with_cache
from jaxformer.models import Classification, Dense
from jaxformer.models.states import STATES, layer_states
from jaxformer.zoo.whisper import whisper

KEY = jax.random.key(0)


def spectrograms(rows=2):
    return jax.random.normal(jax.random.key(1), (rows, 26, 5))


@pytest.mark.more
def test_the_table_of_positions_holds_sinusoids_and_is_kept():
    config = tiny_spectrogram()
    table = jax.jit(config.build)(KEY).transformer.inputs.position_table[...]
    angles = np.arange(13)[:, None] * np.exp(-np.log(10_000) / 9 * np.arange(10))[None]
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    np.testing.assert_allclose(table, expected, atol=1e-6)
    assert not any("position_table" in name for name in structure_of(config).learning)


def test_two_frames_are_one_state_and_the_convolutions_see_three():
    model = jax.jit(tiny_spectrogram().build)(KEY)
    x = spectrograms()
    assert jax.eval_shape(model.hidden, x).shape == (2, 13, 20)

    def of_the_first_block(x):
        _, cache = with_cache(model.hidden, STATES, required=False)(x)
        return layer_states(cache)[0][0, 2].sum()

    reach = jax.jit(jax.grad(of_the_first_block))(x)[0]
    frames = np.flatnonzero(np.abs(np.asarray(reach)).sum(axis=1))
    np.testing.assert_array_equal(frames, [2, 3, 4, 5, 6])


def test_frames_that_do_not_fit_are_named():
    model = jax.jit(tiny_spectrogram().build)(KEY)
    with pytest.raises(AssertionError, match=r"spectrograms.*26, 5"):
        model.hidden(jnp.zeros((1, 24, 5)))
    with pytest.raises(ConfigError, match="position"):
        tiny_spectrogram(position=NoPosition())


def test_a_mixture_of_layers_learns():
    head = Classification(
        num_labels=3, pooling="late", dense=Dense(None, width=7), mixes_layers=True
    )
    model = structure_of(tiny_spectrogram(heads=(head,)))
    batch = {"spectrograms": spectrograms(), "label": np.array([0, 2]), "label_weights": np.ones(2)}

    def loss(parameters):
        _, sums = model.module(parameters).loss(batch)
        return sums["label"].loss

    parameters = jax.jit(model.init)(KEY)
    gradient = jax.jit(jax.grad(loss))(parameters)["heads.label.layer_weights"]
    assert gradient.shape == (3,)
    assert jnp.abs(gradient).max() > 0


def test_whisper_is_the_encoder_and_a_decoder_that_reads_it():
    config = whisper(2, 16, 2, num_decoder_layers=1, vocab_size=11, num_mel_bins=5)
    short = config.encoder.with_fields(position=SinusoidalTable(max_length=13))
    config = config.with_fields(encoder=short, compute_dtype="float32")
    assert config.required == ("spectrograms", "decoder_inputs")
    assert config.row_lengths({"decoder_inputs": 4})["inputs"] == 13
    spec = config.input_spec(3, {"inputs": 13, "decoder_inputs": 4})
    assert spec["spectrograms"].shape == (3, 26, 5)
    model = jax.jit(config.build)(KEY)
    ids = jnp.array([[1, 2, 3], [4, 5, 6]])
    run = jax.jit(model)
    scores = run(spectrograms(), ids)
    assert scores.shape == (2, 3, 11)
    other = run(spectrograms().at[:, -1].add(1.0), ids)
    assert jnp.abs(other - scores).max() > 0
    later = run(spectrograms(), ids.at[:, 2].set(7))
    np.testing.assert_allclose(later[:, :2], scores[:, :2], atol=1e-6)
    assert config.flops({"inputs": 13, "decoder_inputs": 4}).products > 0
