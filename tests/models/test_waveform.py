"""Encoders over waveforms: lengths, padding, masked spans, and the heads of frames."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny_waveform

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.models import AbstractModel, Classification, Dense, QuantizedFrames
from jaxformer.models.heads.base import DEFAULT_OPTIONS
from jaxformer.nn import Embeddings, PreNorm
from jaxformer.nn.waveform import (
    ConvolutionalFeatures,
    FrameAdapter,
    LengthAdapter,
    PositionalConvolution,
    SpanMasking,
)

BASE = tiny_waveform()
FEATURES = BASE.features
LARGE = tiny_waveform(
    features=replace(FEATURES, norm="each", bias=True), residual=PreNorm(), embeddings=Embeddings()
)
ADAPTED = replace(BASE, adapter=LengthAdapter(num_layers=2, width=10))
each_config = pytest.mark.parametrize("config", [BASE, LARGE], ids=["base", "large"])


def waves(rows, samples, seed=0):
    noise = np.random.default_rng(seed).standard_normal((rows, samples))
    return jnp.asarray(noise, jnp.float32)


def batch_of(config, rows=2, samples=90, lengths=(90, 60)):
    frames = config.features.num_frames(samples)
    masked = jnp.arange(frames)[None, :] % 2 == jnp.arange(rows)[:, None]
    return {
        "waveforms": waves(rows, samples),
        "num_samples": jnp.array(lengths),
        "transcript": jnp.array([[1, 2, 3], [4, 4, 0]]),
        "transcript_length": jnp.array([3, 2]),
        "transcript_weights": jnp.ones(rows),
        "masked": masked,
        "negatives": jnp.asarray(np.random.default_rng(1).integers(frames, size=(2, frames, 3))),
    }


def test_the_frames_of_a_waveform():
    features = ConvolutionalFeatures()
    assert features.min_samples == 400
    assert features.samples_per_frame == 320
    assert features.num_frames(16_000) == 49
    assert features.num_frames(399) <= 0 < features.num_frames(400) == 1


@pytest.mark.parametrize("config", [BASE, LARGE, ADAPTED], ids=["base", "large", "adapted"])
@pytest.mark.quick("adapted", "large")
def test_padding_changes_nothing(config):
    model = jax.jit(config.build)(jax.random.key(0))
    waveforms = waves(2, 90).at[1, 60:].set(7.0)
    batch = {"waveforms": waveforms, "num_samples": jnp.array([90, 60])}
    frames = config.num_frames(60)
    run = jax.jit(model.outputs)
    padded, alone = run(batch), run({"waveforms": waveforms[1:, :60]})
    assert padded.valid.sum(axis=1).tolist() == [config.num_frames(90), frames]
    found = padded.hidden[1, :frames]
    np.testing.assert_allclose(found, alone.hidden[0], rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@each_config
@pytest.mark.quick("large")
def test_every_parameter_has_a_gradient(config):
    config = replace(config, heads=(*config.heads, QuantizedFrames(num_negatives=3)))
    model = config.build(jax.random.key(0))

    abstract = AbstractModel(config.build)
    batch = batch_of(config)

    def total(parameters):
        _, losses = abstract.module(parameters).loss(batch, DEFAULT_OPTIONS, jax.random.key(1))
        return sum(each.loss for each in losses.values())

    gradients = jax.jit(jax.grad(total))(abstract.parameters(model))
    silent = [name for name, gradient in gradients.items() if not jnp.abs(gradient).max() > 0]
    # A bias of the keys moves all scores of a query alike.
    assert all("key.bias" in name for name in silent), silent
    assert all(jnp.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize(("size", "stride"), [(3, 2), (2, 3), (1, 1)])
def test_an_adapter_is_its_formula(size, stride):
    adapter = LengthAdapter(1, size, stride)
    layer = FrameAdapter(jax.random.key(0), adapter, 4, std=0.1)
    x = np.random.default_rng(0).standard_normal((2, 7, 4)).astype(np.float32)
    kernel, bias = (np.asarray(getattr(layer.convolutions[0], x)[...]) for x in ("kernel", "bias"))
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    count = adapter.num_frames(7)
    at = [padded[:, t * stride : t * stride + size] for t in range(count)]
    both = np.stack([np.einsum("bpc,pco->bo", each, kernel) for each in at], 1) + bias
    expected = both[..., :4] / (1 + np.exp(-both[..., 4:]))
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=2e-5, atol=2e-5)
    valid = adapter.valid_frames(jnp.arange(7)[None, :] < jnp.array([[7], [5], [0]]))
    assert valid.shape == (3, count)
    assert valid.sum(axis=1).tolist() == [6 // stride + 1, 4 // stride + 1, 0]


def test_an_adapter_is_for_transcripts_and_decoders():
    assert ADAPTED.output_width == 10
    assert ADAPTED.samples_per_frame == 4 * BASE.samples_per_frame
    assert jax.eval_shape(replace(ADAPTED, heads=()).build, jax.random.key(0)).heads == {}
    for head in (Classification(3), QuantizedFrames()):
        with pytest.raises(ConfigError, match=r"model\.heads.*CTC"):
            replace(ADAPTED, heads=(head,))
    with pytest.raises(ConfigError, match=r"adapter\.kernel_size = 4"):
        LengthAdapter(kernel_size=4)


@pytest.mark.slow
def test_spans_are_masked_in_training_alone():
    spans = SpanMasking(time_probability=0.5, time_span=4, min_time_spans=1)
    # Without dropout only spans depend on the key.
    quiet = replace(BASE.self_attention, dropout=0.0)
    config = replace(BASE, span_masking=spans, dropout=0.0, self_attention=quiet)
    batch = {"waveforms": waves(2, 90)}

    def hidden(config, key=None, **more):
        model = config.build(jax.random.key(0))
        return model.outputs(batch | more, key).hidden

    plain = hidden(config)
    assert jnp.abs(hidden(config, jax.random.key(1)) - plain).max() > 1e-2
    off = replace(config, span_masking=replace(spans, enabled=False))
    np.testing.assert_array_equal(hidden(off, jax.random.key(1)), plain)
    masked = jnp.zeros((2, config.features.num_frames(90)), bool).at[:, 3].set(True)
    assert jnp.abs(hidden(config, masked=masked) - plain).max() > 1e-2
    none = replace(config, span_masking=SpanMasking(time_probability=0.0))
    with pytest.raises(ArgumentError, match=r"masked.*no vector for masked frames"):
        hidden(none, masked=masked)


def test_a_classifier_averages_the_layers_it_learns_to():
    dense = Dense(None, width=10)
    head = Classification(3, pooling="late", dense=dense, mixes_layers=True)
    model = jax.jit(replace(BASE, heads=(head,)).build)(jax.random.key(0))
    batch = {"waveforms": waves(2, 90)}
    outputs = jax.jit(lambda batch: model.outputs(batch))(batch)
    assert outputs.layers.shape == (3, 2, FEATURES.num_frames(90), BASE.model_dim)
    own = model.heads["label"]
    own.layer_weights[...] = jnp.array([0.0, 0.0, 50.0])
    last = own.scores(outputs)
    own.layer_weights = None
    np.testing.assert_allclose(last, own.scores(outputs), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_frame_is_told_from_frames_of_other_codes_alone():
    config = replace(BASE, heads=(QuantizedFrames(codes=4, num_negatives=3),))
    model, batch = config.build(jax.random.key(0)), batch_of(config)
    outputs = model.outputs(batch)
    head = model.heads["quantized_frames"]
    compared = head.compared(outputs, batch["masked"])
    logits = head.similarities(compared, batch["negatives"])
    assert jnp.abs(logits[..., 0]).max() <= 1 / 0.1 + 1e-4
    same = logits[..., 1:] == -jnp.inf
    codes = compared.codes
    for row, frame, number in np.ndindex(same.shape):
        other = batch["negatives"][row, frame, number]
        assert same[row, frame, number] == bool((codes[row, frame] == codes[row, other]).all())
    assert (compared.perplexities >= 1).all()
    assert (compared.perplexities <= 4).all()


def test_a_row_needs_a_frame():
    least = FEATURES.min_samples
    with pytest.raises(ConfigError, match=f"no frame: must have at least the {least} samples"):
        BASE.check_lengths(BASE.row_lengths({"inputs": least - 1}))
    BASE.check_lengths(BASE.row_lengths({"inputs": least}))


def test_bad_settings_are_named():
    with pytest.raises(ConfigError, match=r"strides = .*3 numbers, as many as channels has"):
        ConvolutionalFeatures((12, 16, 20), (5, 3, 2), (3, 2))
    with pytest.raises(ConfigError, match=r"model_dim = 20: .*divisible by.*groups = 16"):
        replace(BASE, position_convolution=PositionalConvolution())


def test_flops_count_the_convolutions():
    frames = {"inputs": 100}
    whole = BASE.flops(frames).products
    wider = replace(BASE, features=replace(FEATURES, channels=(12, 16, 40)))
    # The last convolution reads two frames of 16 channels, and the projection gives 20.
    assert wider.flops(frames).products - whole == 2 * (2 * 16 * 20 + 20 * 20)


def test_xla_counts_the_products_of_the_convolutions():
    features = ConvolutionalFeatures((64, 64, 96), (20, 8, 4), (10, 4, 2))
    model = jax.eval_shape(replace(BASE, features=features).build, jax.random.key(0))
    waveforms = jax.ShapeDtypeStruct((1, 8000), jnp.float32)
    lowered = jax.jit(lambda model, x: model.features(x)).lower(model, waveforms)
    own = 2 * features.products * features.num_frames(8000)
    # Norms and activations are not products.
    assert 0.9 * own < lowered.cost_analysis()["flops"] < 1.4 * own
