"""Spectrograms, normalised waveforms, masks of augmentation, and convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivative_cases import convolution_by_taps
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import ArgumentError
from jaxformer.functional import (
    frames,
    kaldi_filter_banks,
    log_mel,
    mel_filters,
    normalize_waveform,
    power_spectrogram,
    span_mask,
    spec_augment,
)
from jaxformer.functional.audio.convolution import (
    channel_norm,
    grouped_convolution,
    num_windows,
    weight_norm,
    windows,
)

WHISPER = {"sampling_rate": 16_000, "fft_length": 400, "hop": 160}
AST = {"num_mel_bins": 128, "sampling_rate": 16_000, "mean": -4.2677393, "std": 4.5689974}


def speech(samples, seed=0):
    """Noise whose loudness and pitch vary, as those of speech do."""
    generator = np.random.default_rng(seed)
    time = np.arange(samples) / 16_000
    loudness = 0.3 + 0.2 * np.sin(2 * np.pi * 3 * time)
    hum = np.sin(2 * np.pi * (150 + 40 * np.sin(5 * time)) * time)
    return (loudness * hum + 0.1 * generator.normal(size=samples)).astype(np.float32)


def test_a_tone_has_its_power_at_its_frequency():
    wave = jnp.sin(2 * jnp.pi * 1000 * jnp.arange(1600) / 16_000)
    power = power_spectrogram(wave, np.hanning(401)[:-1], hop=160, fft_length=400)
    assert power.shape == (1 + (1600 - 400) // 160, 201)
    np.testing.assert_array_equal(jnp.argmax(power, axis=-1), 1000 * 400 // 16_000)
    # Parseval: the power of all frequencies is that of the windowed samples.
    windowed = frames(wave, 400, 160) * np.hanning(401)[None, :-1].astype("f4")
    total = 2 * power.sum(-1) - power[:, 0] - power[:, -1]
    np.testing.assert_allclose(total / 400, jnp.sum(windowed**2, axis=-1), rtol=1e-5)


@pytest.mark.parametrize(
    ("samples", "length", "hop"), [(5, 5, 1), (40, 5, 6), (23, 4, 3), (7, 1, 2)]
)
def test_frames_are_windows_of_the_waveform(samples, length, hop):
    wave = np.arange(samples, dtype=np.float32)
    expected = [wave[start : start + length] for start in range(0, samples - length + 1, hop)]
    np.testing.assert_array_equal(frames(jnp.asarray(wave), length, hop), expected)


@pytest.mark.parametrize("samples", [201, 8_000, 8_001, 16_159])
@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.quick("80-201", "128-16159")
def test_log_mel_of_any_length(samples, bins):
    found = log_mel(jnp.asarray(speech(samples)), num_mel_bins=bins, **WHISPER)
    assert found.shape == (samples // 160, bins)
    assert found.max() - found.min() <= 2.0 + 1e-6


def test_a_batch_is_its_rows():
    rows = jnp.stack([speech(4000, 1), speech(4000, 2) * 0.1])
    whole = log_mel(rows, num_mel_bins=80, **WHISPER)
    for row, alone in zip(rows, whole, strict=True):
        np.testing.assert_allclose(log_mel(row, num_mel_bins=80, **WHISPER), alone, atol=1e-5)
    mapped = jax.jit(jax.vmap(lambda row: log_mel(row, num_mel_bins=80, **WHISPER)))(rows)
    np.testing.assert_allclose(mapped, whole, atol=1e-5)


def test_gradients_are_finite_even_of_silence():
    def total(wave):
        ours = jnp.sum(jnp.square(log_mel(wave, num_mel_bins=80, **WHISPER)))
        return ours + jnp.sum(kaldi_filter_banks(wave[None], **AST))

    for wave in (speech(2000), np.zeros(2000, np.float32)):
        assert jnp.isfinite(jax.jit(jax.grad(total))(jnp.asarray(wave))).all()
    assert jnp.abs(jax.grad(total)(jnp.asarray(speech(2000)))).max() > 0


def test_a_shorter_row_is_the_row_alone():
    long, short = speech(4000, 1), speech(2500, 2)
    batch = jnp.stack([long, np.pad(short, (0, 1500), constant_values=7.0)])
    lengths = jnp.array([4000, 2500])
    banks = kaldi_filter_banks(batch, lengths, **AST)
    alone = kaldi_filter_banks(short[None], **AST)[0]
    np.testing.assert_allclose(banks[1, : len(alone)], alone, atol=1e-5)
    padding = (0 - AST["mean"]) / (2 * AST["std"])
    np.testing.assert_allclose(banks[1, len(alone) :], padding, rtol=1e-6)
    normal = normalize_waveform(batch, lengths, eps=1e-7)
    np.testing.assert_allclose(
        normal[1, :2500], normalize_waveform(short[None], eps=1e-7)[0], atol=1e-5
    )
    assert not normal[1, 2500:].any()


def test_a_normalised_waveform_has_mean_0_and_variance_1():
    found = normalize_waveform(jnp.asarray(3 + 5 * speech(3000))[None], eps=1e-7)
    np.testing.assert_allclose([found.mean(), found.var()], [0, 1], atol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="waveform"):
        log_mel(jnp.zeros(200), num_mel_bins=80, **WHISPER)
    with pytest.raises(ArgumentError, match="waveform"):
        kaldi_filter_banks(jnp.zeros((1, 399)), **AST)
    with pytest.raises(ArgumentError, match="max_frequency"):
        mel_filters(
            80,
            fft_length=400,
            sampling_rate=8_000,
            min_frequency=0.0,
            max_frequency=8_000.0,
            scale="slaney",
        )
    with pytest.raises(ArgumentError, match="span"):
        span_mask(jax.random.key(0), jnp.zeros((1, 5)), probability=0.5, span=6, min_spans=0)


@pytest.mark.more
@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**30),
    span=st.integers(1, 10),
    probability=st.floats(0, 1),
    min_spans=st.integers(0, 3),
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=3),
)
def test_spans_lie_within_their_row(seed, span, probability, min_spans, lengths):
    key, array = jax.random.key(seed), jnp.zeros((len(lengths), 50))
    options = {"probability": probability, "span": span, "min_spans": min_spans}
    mask = np.asarray(span_mask(key, array, jnp.array(lengths), **options))
    np.testing.assert_array_equal(mask, span_mask(key, array, jnp.array(lengths), **options))
    for row, length in zip(mask, lengths, strict=True):
        assert not row[length:].any()
        # Overlapping spans are at least as long as one.
        edges = np.flatnonzero(np.diff(np.pad(row.astype(int), 1)))
        assert (edges[1::2] - edges[::2] >= span).all()
        most = min(max(int(probability * length / span) + 1, min_spans), length - span + 1)
        assert row.sum() <= max(most, 0) * span
        if min_spans and length >= span:
            assert row.any()


def test_spans_cover_the_share_that_was_asked_for():
    mask = span_mask(
        jax.random.key(0), jnp.zeros((200, 1000)), probability=0.065, span=1, min_spans=0
    )
    assert abs(float(mask.mean()) - 0.065) < 0.002


@pytest.mark.more
@given(seed=st.integers(0, 2**30), length=st.integers(1, 30))
def test_stripes_cross_the_spectrogram(seed, length):
    options = {"time_width": 10, "max_time_share": 0.5, "feature_width": 4}
    features = jnp.ones((2, 30, 8))
    found = np.asarray(
        spec_augment(
            jax.random.key(seed),
            features,
            jnp.array([30, length]),
            num_time_masks=1,
            num_feature_masks=1,
            **options,
        )
    )
    for row, valid in zip(found, (30, length), strict=True):
        hidden = ~row.any(axis=1)
        assert hidden.sum() <= min(10, valid // 2)
        assert not hidden[valid:].any()
        assert (~row.any(axis=0)).sum() <= 4


@pytest.mark.torch
@pytest.mark.parametrize("samples", [5_000, 480_000, 500_000])
def test_log_mel_is_that_of_transformers(samples):
    from transformers import WhisperFeatureExtractor

    wave = speech(samples)
    expected = WhisperFeatureExtractor()(wave, sampling_rate=16_000)["input_features"][0]
    padded = np.pad(wave, (0, max(480_000 - samples, 0)))[:480_000]
    found = log_mel(jnp.asarray(padded), num_mel_bins=80, **WHISPER)
    np.testing.assert_allclose(found.T, expected, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("samples", [4_001, 40_159])
@pytest.mark.parametrize("bins", [80, 128])
def test_log_mel_is_that_of_transformers_in_float64(samples, bins):
    """A filter of one nearly silent frequency amplifies the rounding of float32."""
    from transformers import WhisperFeatureExtractor

    wave = speech(samples).astype(np.float64)
    extractor = WhisperFeatureExtractor(feature_size=bins)
    expected = extractor._np_extract_fbank_features(wave[None], "cpu")[0]
    with jax.enable_x64(True):
        found = log_mel(jnp.asarray(wave), num_mel_bins=bins, **WHISPER)
    np.testing.assert_allclose(found.T, expected[:, : samples // 160], atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("samples", [400, 5_000, 40_001, 170_000])
def test_filter_banks_are_those_of_transformers(samples):
    """In float64, as there; in float32 a nearly silent frequency differs by more."""
    from transformers import ASTFeatureExtractor

    wave = speech(samples)
    expected = ASTFeatureExtractor()(wave, sampling_rate=16_000)["input_values"][0]
    padded = np.pad(wave, (0, max(164_080 - samples, 0)))[:164_080].astype(np.float64)
    with jax.enable_x64(True):
        found = kaldi_filter_banks(padded[None], jnp.array([min(samples, 164_080)]), **AST)
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


@pytest.mark.torch
def test_waveforms_are_normalised_as_by_transformers():
    from transformers import Wav2Vec2FeatureExtractor

    waves = [speech(3001, 1), 0.2 + speech(1000, 2)]
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    expected = extractor(waves, sampling_rate=16_000, padding=True, return_tensors="np")
    batch = jnp.stack([waves[0], np.pad(waves[1], (0, 2001))])
    found = normalize_waveform(batch, jnp.array([3001, 1000]), eps=1e-7)
    np.testing.assert_allclose(found, expected["input_values"], atol=1e-5)


@pytest.mark.more
@pytest.mark.parametrize("bins", [40, 80, 128])
@pytest.mark.parametrize("rate", [16_000, 22_050])
def test_filters_are_those_of_librosa(bins, rate):
    librosa = pytest.importorskip("librosa")
    expected = librosa.filters.mel(sr=rate, n_fft=512, n_mels=bins, fmin=20, fmax=8_000)
    found = mel_filters(
        bins,
        fft_length=512,
        sampling_rate=rate,
        min_frequency=20,
        max_frequency=8_000,
        scale="slaney",
    )
    np.testing.assert_allclose(found.T, expected, atol=1e-7)


# Convolutions over time ---------------------------------------------------------------------------

sizes = st.integers(1, 5)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@given(rows=sizes, extra=st.integers(0, 9), channels=sizes, size=sizes, stride=sizes)
def test_windows_are_slices_of_the_row(rows, extra, channels, size, stride):
    length = size + extra
    x = np.arange(rows * length * channels).reshape(rows, length, channels)
    cut = np.asarray(windows(jnp.asarray(x), size, stride))
    starts = range(0, length - size + 1, stride)
    assert cut.shape[1] == num_windows(length, size, stride) == len(starts)
    for number, start in enumerate(starts):
        np.testing.assert_array_equal(cut[:, number], x[:, start : start + size])


def test_a_row_shorter_than_a_window_is_refused():
    with pytest.raises(ArgumentError, match="size = 4: must be at most the length of the rows, 3"):
        windows(jnp.zeros((1, 3, 2)), 4, 1)


@pytest.mark.parametrize(("size", "groups"), [(6, 3), (5, 1), (1, 2), (9, 6)])
def test_a_grouped_convolution_is_one_for_each_group(size, groups):
    x, kernel = normal(2, 7, 6), normal(size, 6 // groups, 6, seed=1)
    found = grouped_convolution(x, kernel, groups=groups)
    np.testing.assert_allclose(found, convolution_by_taps(x, kernel, groups), rtol=1e-5, atol=1e-5)


def test_groups_must_divide_the_channels():
    with pytest.raises(ArgumentError, match="groups = 4: must be a divisor of the 6 channels"):
        grouped_convolution(normal(1, 3, 6), normal(3, 2, 6), groups=4)


def test_a_weight_norm_gives_each_tap_its_length():
    direction, magnitude = normal(4, 3, 5), normal(4, seed=1)
    kernel = weight_norm(direction, magnitude)
    lengths = jnp.sqrt(jnp.sum(jnp.square(kernel), axis=(1, 2)))
    np.testing.assert_allclose(lengths, jnp.abs(magnitude), rtol=1e-5)
    np.testing.assert_allclose(weight_norm(3 * direction, magnitude), kernel, rtol=1e-5)


def test_a_channel_norm_leaves_padding_out():
    x, scale, bias = 2 + 3 * normal(2, 9, 4), normal(4, seed=1), normal(4, seed=2)
    valid = jnp.arange(9)[None, :] < jnp.array([[9], [5]])
    found = channel_norm(x, scale, bias, valid, eps=1e-5)
    short = channel_norm(x[1:, :5], scale, bias, eps=1e-5)
    np.testing.assert_allclose(found[1:, :5], short, rtol=1e-5, atol=1e-5)
    plain = channel_norm(x, jnp.ones(4), jnp.zeros(4), eps=1e-9)
    np.testing.assert_allclose(plain.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(plain.std(axis=1), 1, rtol=1e-5)
