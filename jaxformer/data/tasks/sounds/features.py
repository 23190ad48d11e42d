"""Converts waveforms to a model's inputs, as preprocessor_config.json defines."""

import abc
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from jaxformer.checks import FINITE, POSITIVE, Rule, at_least, check_fields, check_types
from jaxformer.data.dataset import Batch, padded
from jaxformer.data.tasks.images.pixels import PREPROCESSOR
from jaxformer.errors import DataError
from jaxformer.functional.audio import kaldi_filter_banks, log_mel, log_mel_power
from jaxformer.io.model_files import read_object
from jaxformer.models import SpectrogramConfig, SpectrogramPatchesConfig, WaveformConfig
from jaxformer.models.model import ModelConfig

_PROCESSOR, _SECTION = "processor_config.json", "feature_extractor"
"""The file of a processor of sounds and texts, and its field with the settings for sounds."""
_USUAL = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
_NORMALISATION = {"mean": (-4.2677393, FINITE), "std": (4.5689974, POSITIVE)}
"""The settings of AST, with the statistics of AudioSet."""
_EPS = 1e-7
"""Added to the variance of a waveform, as in transformers."""
_SIZES = ("num_mel_bins", "sampling_rate", "fft_length", "hop")
_FORM = ("num_mel_bins", "sampling_rate", "mean", "std")
# Compiled once for all sounds of a model.
_log_mel, _log_mel_power = (jax.jit(f, static_argnames=_SIZES) for f in (log_mel, log_mel_power))
_filter_banks = jax.jit(kaldi_filter_banks, static_argnames=_FORM)


@dataclass(frozen=True)
class SoundForm(abc.ABC):
    """How a model reads sounds; subclasses are frozen dataclasses."""

    array: ClassVar[str]
    """The name of a sound in a batch: "waveforms", "spectrograms" or "images"."""

    sampling_rate: int
    """Samples per second."""

    @property
    def longest(self) -> int | None:
        """The samples of a window, to which all sounds are padded; None: sounds have any length."""
        return None

    @property
    def shortest(self) -> int:
        """The minimum number of samples of a sound."""
        return 1

    @abc.abstractmethod
    def arrays(self, waveform: np.ndarray, length: int) -> Batch:
        """Returns the arrays of a waveform float32 `[S]`; `length`: the samples of a batch."""

    @abc.abstractmethod
    def preprocessor(self) -> dict[str, Any]:
        """Returns the preprocessor_config.json that reads sounds in the same way."""


@dataclass(frozen=True)
class WaveformFeatures(SoundForm):
    """How wav2vec 2.0 and HuBERT read a waveform."""

    array: ClassVar[str] = "waveforms"

    sampling_rate: int = 16_000
    """Samples per second."""
    normalize: bool = True
    """Whether each sound has mean 0 and variance 1."""
    min_samples: int = 400
    """The samples of a frame; a shorter sound has no frames."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, "features", sampling_rate=at_least(1), min_samples=at_least(1))

    @classmethod
    def read(
        cls, name: str, values: Mapping[str, Any], min_samples: int = 400
    ) -> "WaveformFeatures":
        """Returns the settings in the values of a file; raises DataError if they are invalid."""
        (rate,) = _settings(name, values, {"sampling_rate": (16_000, at_least(1))})
        _check_sizes(name, values, {"feature_size": 1})
        normalize = values.get("do_normalize", True)
        if not isinstance(normalize, bool):
            raise DataError(f"{name}: do_normalize = {normalize!r}: must be true or false")
        return cls(rate, normalize, min_samples)

    @property
    def shortest(self):
        return self.min_samples

    def __call__(self, waveform: np.ndarray) -> np.ndarray:
        """Returns a waveform float32 `[S]` as the model reads it."""
        return normalized(waveform) if self.normalize else waveform

    def arrays(self, waveform, length):
        """Returns "waveforms" `[length]`, padded with zeros, and "num_samples"."""
        return {
            "waveforms": padded(self(waveform).astype(np.float32), length, 0.0),
            "num_samples": np.int32(len(waveform)),
        }

    def preprocessor(self):
        return {
            "do_normalize": self.normalize,
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "feature_size": 1,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": self.sampling_rate,
        }


def normalized(waveform: np.ndarray) -> np.ndarray:
    """Scales a waveform `[S]` to mean 0 and variance 1."""
    return (waveform - waveform.mean()) / np.sqrt(waveform.var() + _EPS)


@dataclass(frozen=True)
class LogMel(SoundForm):
    """How Whisper reads a waveform: windows of log-mel spectrograms.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 2.2.
    """

    array: ClassVar[str] = "spectrograms"

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
        names = (each.name for each in fields(self))
        check_fields(self, "features", **dict.fromkeys(names, at_least(1)))

    @classmethod
    def read(
        cls, name: str, values: Mapping[str, Any], num_mel_bins: int, num_frames: int
    ) -> "LogMel":
        """Returns the settings in the values of a file; raises DataError unless they fit."""
        rules = {key: (usual, at_least(1)) for key, usual in _USUAL.items()}
        rate, fft_length, hop = _settings(name, values, rules)
        _check_sizes(name, values, {"feature_size": num_mel_bins})
        seconds = values.get("chunk_length")
        if seconds is not None and seconds * rate // hop != num_frames:
            raise DataError(
                f"{name}: chunk_length = {seconds!r}: makes {seconds * rate // hop} frames, but "
                f"the model reads {num_frames}: copy the file of the checkpoint"
            )
        return cls(rate, fft_length, hop, num_mel_bins, num_frames)

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

    @property
    def longest(self):
        return self.num_samples

    def arrays(self, waveform, length):
        """Returns "spectrograms" `[T, M]`, a window."""
        del length
        return {"spectrograms": self.spectrogram(waveform[: self.num_samples])}

    def preprocessor(self):
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
        """Returns the spectrogram `[T, M]` of a waveform `[S]`, padded with silence to a window."""
        missing = max(self.num_samples - len(waveform), 0)
        return np.asarray(_log_mel(np.pad(waveform, (0, missing)), **self.sizes))

    def log_power(self, waveform: np.ndarray) -> np.ndarray:
        """Returns `functional.log_mel_power` `[T, M]` of a part of a sound `[S]`."""
        return np.asarray(_log_mel_power(waveform, **self.sizes))

    @property
    def sizes(self) -> dict[str, int]:
        """The arguments of `functional.log_mel`."""
        return {name: getattr(self, name) for name in _SIZES}


@dataclass(frozen=True)
class FilterBanks(SoundForm):
    """How an Audio Spectrogram Transformer reads a waveform."""

    array: ClassVar[str] = "images"

    sampling_rate: int = 16_000
    """Samples per second."""
    num_mel_bins: int = 128
    """Frequencies."""
    num_frames: int = 1024
    """Frames, 10 ms apart; longer sounds are cut, and shorter ones padded."""
    mean: float = _NORMALISATION["mean"][0]
    """The mean of the log filter banks of the training data; 0 if they are not normalised."""
    std: float = _NORMALISATION["std"][0]
    """Their standard deviation; 0.5 if they are not normalised."""

    def __post_init__(self):
        check_types(self)
        sizes = dict.fromkeys(("num_mel_bins", "num_frames"), at_least(1))
        numbers = {"mean": FINITE, "std": POSITIVE, "sampling_rate": at_least(100)}
        check_fields(self, "features", **sizes, **numbers)

    @classmethod
    def read(
        cls, name: str, values: Mapping[str, Any], num_mel_bins: int, num_frames: int
    ) -> "FilterBanks":
        """Returns the settings in the values of a file; raises DataError unless they fit."""
        rules = {"sampling_rate": (16_000, at_least(100)), **_NORMALISATION}
        rate, mean, std = _settings(name, values, rules)
        _check_sizes(name, values, {"num_mel_bins": num_mel_bins, "max_length": num_frames})
        if not values.get("do_normalize", True):
            mean, std = 0.0, 0.5  # the filter banks are divided by twice the deviation
        return cls(rate, num_mel_bins, num_frames, float(mean), float(std))

    @property
    def hop(self) -> int:
        """Samples from the start of a frame to that of the next."""
        return self.sampling_rate // 100

    @property
    def frame_length(self) -> int:
        """Samples of a frame."""
        return self.sampling_rate * 25 // 1000

    @property
    def longest(self):
        return (self.num_frames - 1) * self.hop + self.frame_length

    @property
    def shortest(self):
        return self.frame_length

    def arrays(self, waveform, length):
        """Returns "images" `[M, T, 1]`, whose rows are frequencies."""
        del length
        return {"images": self.spectrogram(waveform).T[..., None]}

    def preprocessor(self):
        plain = (self.mean, self.std) == (0.0, 0.5)
        usual = {name: usual for name, (usual, _) in _NORMALISATION.items()}
        return {
            "do_normalize": not plain,
            "feature_extractor_type": "ASTFeatureExtractor",
            "feature_size": 1,
            "max_length": self.num_frames,
            **(usual if plain else {"mean": self.mean, "std": self.std}),
            "num_mel_bins": self.num_mel_bins,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": False,
            "sampling_rate": self.sampling_rate,
        }

    def frames_of(self, samples: int) -> int:
        """Returns how many frames are wholly within a sound."""
        return min(1 + (samples - self.frame_length) // self.hop, self.num_frames)

    def spectrogram(self, waveform: np.ndarray) -> np.ndarray:
        """Returns the filter banks `[T, M]` of a waveform `[S]`.

        Raises:
            DataError: The sound is shorter than a frame.
        """
        if len(waveform) < self.frame_length:
            raise DataError(
                f"waveform has {len(waveform)} samples: must have at least {self.frame_length}, "
                "those of a frame"
            )
        own = waveform[: self.longest]
        whole = np.pad(own, (0, self.longest - len(own)))[None]
        lengths = np.array([len(own)], np.int32)
        form = {name: getattr(self, name) for name in _FORM}
        return np.asarray(_filter_banks(whole, lengths, **form))[0]


def _settings(
    name: str, values: Mapping[str, Any], rules: Mapping[str, tuple[Any, Rule]]
) -> list[Any]:
    """Returns the settings of a file, or the defaults, in the order of the rules."""
    found = {key: values.get(key, usual) for key, (usual, _) in rules.items()}
    for key, (_, rule) in rules.items():
        if not rule.allows(found[key]):
            raise DataError(f"{name}: {key} = {found[key]!r}: must be {rule.expected}")
    return list(found.values())


def _check_sizes(name: str, values: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raises DataError for a size in a file that differs from the model's."""
    for key, wanted in sizes.items():
        if values.get(key, wanted) != wanted:
            raise DataError(
                f"{name}: {key} = {values[key]!r}: must be {wanted}, as in the model: copy the "
                "file of the checkpoint"
            )


def form_of(model: ModelConfig, folder: str | os.PathLike | None) -> SoundForm | None:
    """Returns how an encoder reads sounds, from the files in its folder; None if it does not read
    sounds.

    Raises:
        DataError: The settings are invalid, or do not fit the model.
    """
    name, values = preprocessor_settings(folder)
    match model:
        case WaveformConfig():
            return WaveformFeatures.read(name, values, model.features.min_samples)
        case SpectrogramConfig():
            return LogMel.read(name, values, model.num_mel_bins, model.num_frames)
        case SpectrogramPatchesConfig():
            return FilterBanks.read(name, values, *model.image_size)
    return None


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
    # A run keeps it next to its tokenizer.
    nested = folder / "tokenizer"
    folder = nested if (nested / PREPROCESSOR).is_file() else folder
    return str(folder / PREPROCESSOR), read_object(folder, PREPROCESSOR) or {}
