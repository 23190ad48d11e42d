"""From a waveform to the spectrogram of a model, as preprocessor_config.json says."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checks import FINITE, POSITIVE, at_least, check_fields, check_types
from jaxformer.data.tasks.images.pixels import PREPROCESSOR
from jaxformer.errors import DataError
from jaxformer.functional.audio import compressed, kaldi_filter_banks, log_mel, log_mel_power
from jaxformer.io.model_files import read_object

_PROCESSOR, _SECTION = "processor_config.json", "feature_extractor"
"""The file of a processor of sounds and texts, and its field with the settings for sounds."""
_USUAL = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
_NORMALISATION = {"mean": (-4.2677393, FINITE), "std": (4.5689974, POSITIVE)}
"""The settings of AST, with those of AudioSet."""


@dataclass(frozen=True)
class LogMel:
    """How Whisper reads a waveform: windows of log-mel spectrograms.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 2.2.
    """

    sampling_rate: int = 16_000
    """Samples per second."""
    fft_length: int = 400
    """Samples of a frame."""
    hop: int = 160
    """Samples from the start of a frame to that of the next."""
    num_mel_bins: int = 80
    """Frequencies."""
    num_frames: int = 3000
    """Frames of a window."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, "features", **dict.fromkeys(self.__dataclass_fields__, at_least(1)))

    @classmethod
    def read(
        cls, name: str, values: Mapping[str, Any], num_mel_bins: int, num_frames: int
    ) -> "LogMel":
        """Returns the settings in the values of a file.

        Args:
            name: The file, for messages.
            values: Its values.
            num_mel_bins: The frequencies that the model reads.
            num_frames: The frames that it reads.

        Raises:
            DataError: They do not fit the model.
        """
        found = {key: values.get(key, usual) for key, usual in _USUAL.items()}
        for key, value in found.items():
            if not at_least(1).allows(value):
                raise DataError(f"{name}: {key} = {value!r}: must be an integer of at least 1")
        rate, fft_length, hop = found.values()
        bins = values.get("feature_size", num_mel_bins)
        if bins != num_mel_bins:
            raise DataError(
                f"{name}: feature_size = {bins!r}: must be {num_mel_bins}, the mel bins of "
                "the model: copy the file of the checkpoint"
            )
        seconds = values.get("chunk_length")
        if seconds is not None and seconds * rate // hop != num_frames:
            raise DataError(
                f"{name}: chunk_length = {seconds!r}: makes {seconds * rate // hop} frames, but "
                f"the model reads {num_frames}: copy the file of the checkpoint"
            )
        return cls(rate, fft_length, hop, bins, num_frames)

    @property
    def num_samples(self) -> int:
        """The samples of a window."""
        return self.num_frames * self.hop

    @property
    def seconds_per_frame(self) -> float:
        """The time from one frame to the next."""
        return self.hop / self.sampling_rate

    @property
    def seconds(self) -> float:
        """The time of a window."""
        return self.num_samples / self.sampling_rate

    def preprocessor(self) -> dict[str, Any]:
        """Returns the preprocessor_config.json that reads sounds in the same way."""
        return {
            "chunk_length": int(self.seconds) if self.seconds.is_integer() else self.seconds,
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": self.num_mel_bins,
            "hop_length": self.hop,
            "n_fft": self.fft_length,
            "n_samples": self.num_samples,
            "nb_max_frames": self.num_frames,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": False,
            "sampling_rate": self.sampling_rate,
        }

    def spectrogram(self, waveform: np.ndarray) -> np.ndarray:
        """Returns the spectrogram of a waveform of any length.

        A waveform that fits into a window is padded with silence, as in transformers; a longer one
        is read in parts of a window each, so that memory suffices for hours.

        Args:
            waveform: float32 `[S]`.

        Returns:
            float32 `[T, M]`.
        """
        if len(waveform) <= self.num_samples:
            padded = np.pad(waveform, (0, self.num_samples - len(waveform)))
            return np.asarray(_log_mel(self, padded))
        half = self.fft_length // 2
        total = len(waveform) // self.hop
        window = (self.num_frames - 1) * self.hop + self.fft_length
        padded = np.pad(waveform, half, mode="reflect")
        parts = []
        for start in range(0, total, self.num_frames):
            part = padded[start * self.hop :][:window]
            parts.append(np.asarray(_log_mel_power(self, np.pad(part, (0, window - len(part))))))
        log_power = np.concatenate(parts)[:total]
        return np.asarray(compressed(log_power, log_power.max()))

    @property
    def sizes(self) -> dict[str, int]:
        """The arguments of `functional.log_mel`."""
        return {
            "num_mel_bins": self.num_mel_bins,
            "sampling_rate": self.sampling_rate,
            "fft_length": self.fft_length,
            "hop": self.hop,
        }


@dataclass(frozen=True)
class FilterBanks:
    """How an Audio Spectrogram Transformer reads a waveform."""

    sampling_rate: int
    """Samples per second."""
    num_mel_bins: int
    """Frequencies."""
    num_frames: int
    """Frames, 10 ms apart; longer sounds are cut, and shorter ones padded."""
    mean: float
    """The mean of the log filter banks of the training data; 0 if they are not normalised."""
    std: float
    """Their standard deviation; 0.5 if they are not normalised."""

    @classmethod
    def read(
        cls, name: str, values: Mapping[str, Any], num_mel_bins: int, num_frames: int
    ) -> "FilterBanks":
        """Returns the settings in the values of a file.

        Args:
            name: The file, for messages.
            values: Its values.
            num_mel_bins: The frequencies that the model reads.
            num_frames: The frames that it reads.

        Raises:
            DataError: They are invalid.
        """
        numbers = {"sampling_rate": (16_000, at_least(100)), **_NORMALISATION}
        found = {key: values.get(key, usual) for key, (usual, _) in numbers.items()}
        for key, (_, rule) in numbers.items():
            if not rule.allows(found[key]):
                raise DataError(f"{name}: {key} = {found[key]!r}: must be {rule.expected}")
        rate, mean, std = found.values()
        if not values.get("do_normalize", True):
            mean, std = 0.0, 0.5  # the filter banks are divided by twice the deviation
        return cls(rate, num_mel_bins, num_frames, mean, std)

    @property
    def hop(self) -> int:
        """Samples from the start of a frame to that of the next."""
        return self.sampling_rate // 100

    @property
    def frame_length(self) -> int:
        """Samples of a frame."""
        return self.sampling_rate * 25 // 1000

    def frames_of(self, samples: int) -> int:
        """Returns how many frames are wholly within a sound."""
        return min(1 + (samples - self.frame_length) // self.hop, self.num_frames)

    def spectrogram(self, waveform: np.ndarray) -> np.ndarray:
        """Returns the filter banks of a waveform.

        Args:
            waveform: float32 `[S]`.

        Returns:
            float32 `[T, M]`.

        Raises:
            DataError: The sound is shorter than a frame.
        """
        if len(waveform) < self.frame_length:
            raise DataError(
                f"waveform has {len(waveform)} samples: must have at least {self.frame_length}, "
                "those of a frame"
            )
        most = (self.num_frames - 1) * self.hop + self.frame_length
        own = waveform[:most]
        padded = np.pad(own, (0, most - len(own)))[None]
        return np.asarray(_filter_banks(self, padded, np.array([len(own)], np.int32)))[0]


# Compiled once for all sounds of a model.


@partial(jax.jit, static_argnums=0)
def _log_mel(features: LogMel, waveform: jax.Array) -> jax.Array:
    return log_mel(waveform, **features.sizes)


@partial(jax.jit, static_argnums=0)
def _log_mel_power(features: LogMel, waveform: jax.Array) -> jax.Array:
    return log_mel_power(waveform, **features.sizes)


@partial(jax.jit, static_argnums=0)
def _filter_banks(features: FilterBanks, waveforms: jax.Array, lengths: jax.Array) -> jax.Array:
    return kaldi_filter_banks(
        waveforms,
        lengths,
        num_mel_bins=features.num_mel_bins,
        sampling_rate=features.sampling_rate,
        mean=features.mean,
        std=features.std,
    )


def preprocessor_settings(folder: str | os.PathLike | None) -> tuple[str, Mapping[str, Any]]:
    """Returns the file of a model's folder with the settings for sounds, and its values; empty if
    there is none.
    """
    if folder is None:
        return PREPROCESSOR, {}
    folder = Path(folder)
    section = (read_object(folder, _PROCESSOR) or {}).get(_SECTION)
    if isinstance(section, dict):
        return str(folder / _PROCESSOR), section
    # A run keeps it beside its tokenizer.
    nested = folder / "tokenizer"
    folder = nested if (nested / PREPROCESSOR).is_file() else folder
    return str(folder / PREPROCESSOR), read_object(folder, PREPROCESSOR) or {}
