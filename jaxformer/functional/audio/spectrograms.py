"""Spectrograms with frequencies on the mel scale: Whisper's, and the filter banks of Kaldi."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, at_least, check_argument
from jaxformer.functional.arrays import assert_axes, assert_floating, check_choice, static
from jaxformer.functional.audio.waveforms import frames, valid_positions

MelScale = Literal["slaney", "kaldi"]

_LINEAR_UNTIL = 1000.0
"""The Slaney scale is linear up to this frequency in Hz, with 3 mels for 200 Hz."""
_SLANEY_STEP = np.log(6.4) / 27


def mel_filters(
    num_mel_bins: int,
    *,
    fft_length: int,
    sampling_rate: int,
    min_frequency: float,
    max_frequency: float,
    scale: MelScale,
) -> np.ndarray:
    r"""Returns triangular filters whose centres are equally far apart on a mel scale.

    .. math::
        w_{f m} = \max\Big(0, \min\Big(\frac{u_f - c_{m-1}}{c_m - c_{m-1}},
        \frac{c_{m+1} - u_f}{c_{m+1} - c_m}\Big)\Big)

    Scale "slaney" is linear up to 1000 Hz and logarithmic above; its triangles are straight in
    Hz, and each is divided by half of its width. Scale "kaldi" is :math:`1127 \ln(1 + f / 700)`;
    its triangles are straight in mels, with a height of 1.

    Args:
        num_mel_bins: M, the number of filters.
        fft_length: Samples of the Fourier transform.
        sampling_rate: Samples per second.
        min_frequency: The lower end of the first filter in Hz.
        max_frequency: The upper end of the last filter in Hz.
        scale: "slaney" as in librosa, or "kaldi".

    Returns:
        float64 `[F, M]` with F = fft_length // 2 + 1.

    Raises:
        ArgumentError: A number is out of range.

    References:
        Slaney, Auditory Toolbox, 1998 (Interval Research, report 1998-010); Povey et al., The
        Kaldi Speech Recognition Toolkit, 2011.
    """
    num_mel_bins = static("num_mel_bins", num_mel_bins, at_least(1))
    fft_length = static("fft_length", fft_length, at_least(2))
    sampling_rate = static("sampling_rate", sampling_rate, at_least(1))
    low = static("min_frequency", min_frequency, NOT_NEGATIVE)
    high = static("max_frequency", max_frequency, POSITIVE)
    check_choice("scale", scale, ("slaney", "kaldi"))
    inside = low < high <= sampling_rate / 2
    check_argument(
        "max_frequency",
        high,
        inside,
        f"above {low} and at most {sampling_rate / 2}, half of the sampling rate",
    )
    bins = np.arange(fft_length // 2 + 1) * (sampling_rate / fft_length)
    ends = np.array([low, high])
    if scale == "kaldi":
        return _triangles(_kaldi_mels(bins), np.linspace(*_kaldi_mels(ends), num_mel_bins + 2))
    centres = _slaney_hertz(np.linspace(*_slaney_mels(ends), num_mel_bins + 2))
    return _triangles(bins, centres) * (2 / (centres[2:] - centres[:-2]))


def power_spectrogram(
    waveform: jax.Array, window: np.ndarray, *, hop: int, fft_length: int
) -> jax.Array:
    r"""Returns the power of each frequency in each frame of a waveform.

    .. math:: P_{t f} = \Big|\sum_i w_i\, x_{t h + i}\, e^{-2 \pi \mathrm{i} f i / n}\Big|^2

    Args:
        waveform: `[..., S]`.
        window: `[W]`, the weight of each sample of a frame.
        hop: Samples from the start of a frame to the start of the next.
        fft_length: n, at least W; frames are padded with zeros to this length.

    Returns:
        `[..., T, F]` with F = n // 2 + 1 and T = 1 + (S - W) // hop.

    Raises:
        AssertionError: An array has the wrong axes or dtype.
        ArgumentError: The waveform is shorter than a frame, or a size is invalid.
    """
    assert_axes(window=(window, "W"))
    fft_length = static("fft_length", fft_length, at_least(len(window)))
    return _power(frames(waveform, len(window), hop), window, fft_length)


def log_mel(
    waveform: jax.Array, *, num_mel_bins: int, sampling_rate: int, fft_length: int, hop: int
) -> jax.Array:
    r"""Returns the log-mel spectrogram that Whisper reads.

    .. math::
        z = \log_{10} \max(P W, 10^{-10}), \quad y_{t m} = \tfrac14 \max(z_{t m}, \max z - 8) + 1

    with Hann windows, the filters of `mel_filters` ("slaney", 0 to 8000 Hz or half of the sampling
    rate), and the maximum of each waveform. Whisper pads a waveform with zeros to 30 seconds first.

    Args:
        waveform: `[..., S]` with S above `fft_length` // 2; its ends are reflected.
        num_mel_bins: M: 80, or 128 since large-v3.
        sampling_rate: Samples per second: 16,000.
        fft_length: Samples of a frame: 400.
        hop: Samples from a frame to the next: 160.

    Returns:
        `[..., T, M]` with T = S // hop, in float32 or wider. The `input_features` of transformers
        have the mel bins before the frames.

    Raises:
        AssertionError: The waveform does not hold floating-point numbers.
        ArgumentError: The waveform is too short, or a size is invalid.

    References:
        Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, 2022
        (https://arxiv.org/abs/2212.04356), section 2.2.
    """
    assert_axes(waveform=(waveform, "... S"))
    hop = static("hop", hop, at_least(1))
    half = static("fft_length", fft_length, at_least(2)) // 2
    samples = waveform.shape[-1]
    long_enough = samples > half and samples >= hop
    check_argument("waveform", waveform, long_enough, f"longer than {half} samples")
    ends = [(0, 0)] * (waveform.ndim - 1) + [(half, half)]
    padded = jnp.pad(jnp.asarray(waveform), ends, mode="reflect")
    log_power = log_mel_power(
        padded,
        num_mel_bins=num_mel_bins,
        sampling_rate=sampling_rate,
        fft_length=fft_length,
        hop=hop,
    )[..., : samples // hop, :]
    return compressed(log_power, jnp.max(log_power, axis=(-2, -1), keepdims=True))


def log_mel_power(
    waveform: jax.Array, *, num_mel_bins: int, sampling_rate: int, fft_length: int, hop: int
) -> jax.Array:
    r"""Returns the power in each mel bin of the frames of a waveform, whose ends are not reflected.

    .. math:: z = \log_{10} \max(P W, 10^{-10})

    So a long waveform may be read in parts, see `log_mel`.

    Args:
        waveform: `[..., S]` with S of at least `fft_length`.
        num_mel_bins: M.
        sampling_rate: Samples per second.
        fft_length: Samples of a frame.
        hop: Samples from a frame to the next.

    Returns:
        `[..., T, M]` with T = 1 + (S - fft_length) // hop, in float32 or wider.

    Raises:
        AssertionError: The waveform does not hold floating-point numbers.
        ArgumentError: The waveform is too short, or a size is invalid.
    """
    assert_floating(waveform=waveform)
    fft_length = static("fft_length", fft_length, at_least(2))
    sampling_rate = static("sampling_rate", sampling_rate, at_least(1))
    window = np.hanning(fft_length + 1)[:-1]
    filters = mel_filters(
        num_mel_bins,
        fft_length=fft_length,
        sampling_rate=sampling_rate,
        min_frequency=0.0,
        max_frequency=min(8000.0, sampling_rate / 2),
        scale="slaney",
    )
    power = power_spectrogram(waveform, window, hop=hop, fft_length=fft_length)
    return jnp.log10(jnp.maximum(_weighted(power, filters), 1e-10))


def compressed(log_power: jax.Array, loudest: jax.Array) -> jax.Array:
    r"""Returns a log-mel spectrogram with the range that Whisper reads.

    .. math:: y = \tfrac14 \max(z, z_\mathrm{max} - 8) + 1

    Args:
        log_power: `[..., T, M]`, from `log_mel_power`.
        loudest: The maximum of the whole waveform, of a shape that broadcasts.

    Returns:
        `[..., T, M]`.
    """
    return (jnp.maximum(log_power, loudest - 8.0) + 4.0) / 4.0


def kaldi_filter_banks(
    waveform: jax.Array,
    lengths: jax.Array | None = None,
    *,
    num_mel_bins: int,
    sampling_rate: int,
    mean: float,
    std: float,
) -> jax.Array:
    r"""Returns the log filter banks of Kaldi, normalised as the Audio Spectrogram Transformer does.

    .. math:: y_{t m} = \frac{\ln \max((P W)_{t m}, 2^{-23}) - \mu}{2 \sigma}

    from frames of 25 ms, 10 ms apart, without their mean, with a pre-emphasis of 0.97
    (:math:`x_i - 0.97\, x_{i-1}`) and a Hann window.

    Args:
        waveform: `[B, S]`, at least one frame.
        lengths: int `[B]`, the samples of each row. Frames that are not wholly within a row
            are zeros before the normalisation, as in the padding of transformers.
        num_mel_bins: M, 128 for AST.
        sampling_rate: Samples per second, 16,000 for AST.
        mean: The mean of the data set; AudioSet's is -4.2677393.
        std: Its standard deviation; AudioSet's is 4.5689974.

    Returns:
        `[B, T, M]` with T = 1 + (S - W) // hop, in float32 or wider.

    Raises:
        AssertionError: An array has the wrong axes or dtype.
        ArgumentError: The waveform is shorter than a frame, or a number is invalid.

    References:
        Gong et al., AST: Audio Spectrogram Transformer, 2021 (https://arxiv.org/abs/2104.01778);
        `compute-fbank-feats` of Kaldi, as in torchaudio.compliance.kaldi.fbank.
    """
    assert_axes(waveform=(waveform, "B S"))
    sampling_rate = static("sampling_rate", sampling_rate, at_least(100))
    mean, std = float(mean), static("std", std, POSITIVE)
    width, hop = sampling_rate * 25 // 1000, sampling_rate // 100
    fft_length = 1 << (width - 1).bit_length()
    x_BTW = frames(waveform, width, hop)
    x_BTW -= jnp.mean(x_BTW, axis=-1, keepdims=True)
    previous = jnp.concatenate([x_BTW[..., :1], x_BTW[..., :-1]], axis=-1)
    power = _power(x_BTW - 0.97 * previous, np.hanning(width), fft_length)
    filters = mel_filters(
        num_mel_bins,
        fft_length=fft_length,
        sampling_rate=sampling_rate,
        min_frequency=20.0,
        max_frequency=sampling_rate / 2,
        scale="kaldi",
    )
    y_BTM = jnp.log(jnp.maximum(_weighted(power, filters), 2.0**-23))
    if lengths is not None:
        whole = 1 + (jnp.asarray(lengths) - width) // hop
        y_BTM = jnp.where(valid_positions(whole, y_BTM)[..., None], y_BTM, 0)
    return (y_BTM - mean) / (2 * std)


def _power(x: jax.Array, window: np.ndarray, fft_length: int) -> jax.Array:
    """Returns the power of each frequency in frames `[..., T, W]`."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    weights = jnp.asarray(window, x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    spectrum = jnp.fft.rfft(x * weights, n=fft_length)
    return jnp.square(spectrum.real) + jnp.square(spectrum.imag)


def _weighted(power: jax.Array, filters: np.ndarray) -> jax.Array:
    """Returns the power `[..., T, M]` that each filter passes."""
    precise = jax.lax.Precision.HIGHEST
    return jnp.matmul(power, jnp.asarray(filters, power.dtype), precision=precise)


def _triangles(bins: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Returns `[F, M]`, triangles from each centre's neighbour before it to the one after."""
    steps = np.diff(centres)
    rising = (bins[:, None] - centres[None, :-2]) / steps[:-1]
    falling = (centres[None, 2:] - bins[:, None]) / steps[1:]
    return np.maximum(0, np.minimum(rising, falling))


def _kaldi_mels(hertz: np.ndarray) -> np.ndarray:
    return 1127 * np.log(1 + hertz / 700)


def _slaney_mels(hertz: np.ndarray) -> np.ndarray:
    above = np.log(np.maximum(hertz, _LINEAR_UNTIL) / _LINEAR_UNTIL) / _SLANEY_STEP
    return np.minimum(hertz, _LINEAR_UNTIL) * 3 / 200 + above


def _slaney_hertz(mels: np.ndarray) -> np.ndarray:
    knee = _LINEAR_UNTIL * 3 / 200
    above = np.exp(_SLANEY_STEP * np.maximum(mels - knee, 0))
    return np.minimum(mels, knee) * 200 / 3 * above
