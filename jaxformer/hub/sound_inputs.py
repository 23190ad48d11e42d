"""Checks a user's waveforms and spectrograms before anything is compiled."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxformer.errors import DataError
from jaxformer.models import SpectrogramPatchesConfig


def check_sounds(arrays: Mapping[str, np.ndarray], config: Any) -> None:
    """Checks spectrograms, or waveforms (at least one frame each) and their mask of frames."""
    waveforms, mask = arrays["input_values"], arrays.get("attention_mask")
    given = f"inputs: input_values has shape {waveforms.shape}"
    if isinstance(config, SpectrogramPatchesConfig):
        bins, frames = config.image_size
        if waveforms.shape[1:] != (frames, bins):
            raise DataError(f"{given}: must be [B, {frames}, {bins}], frames before mel bins")
        return
    if waveforms.ndim != 2:
        raise DataError(f"{given}: must be [B, samples], one channel of each clip")
    least, (rows, samples) = config.features.min_samples, waveforms.shape
    if samples < least:
        raise DataError(f"{given}: must have at least {least} samples, one frame; pad the clips")
    if mask is not None and mask.shape == waveforms.shape:
        counts = np.sum(np.asarray(mask) > 0, axis=1)
        if counts.min() < least:
            raise DataError(
                f"inputs: attention_mask has {counts.min()} samples in row {counts.argmin()}: must "
                f"have at least {least}, one frame; leave the clip out"
            )
    masked = arrays.get("mask_time_indices")
    frames = (rows, config.features.num_frames(samples))
    if masked is not None and masked.shape != frames:
        raise DataError(
            f"inputs: mask_time_indices has shape {masked.shape}: must be {frames}, one for each "
            "frame"
        )
    negatives = arrays.get("sampled_negative_indices")
    if negatives is None or isinstance(negatives, jax.core.Tracer):
        return
    if masked is None:
        raise DataError("inputs: sampled_negative_indices needs mask_time_indices: give both")
    if negatives.ndim != 3 or negatives.shape[:2] != frames:
        raise DataError(
            f"inputs: sampled_negative_indices has shape {negatives.shape}: must be "
            f"[{frames[0]}, {frames[1]}, negatives]"
        )
    places = np.arange(rows)[:, None, None]
    if (negatives // frames[1] != places)[np.asarray(masked) > 0].any():
        raise DataError(
            "inputs: sampled_negative_indices: must be frames of the same row, numbered from "
            f"{frames[1]} times the number of the row, at each masked frame"
        )


def check_spectrograms(spectrograms: np.ndarray, config: Any) -> None:
    """Checks the sizes of spectrograms for the model with this `config`."""
    bins, frames = config.num_mel_bins, config.num_frames
    if spectrograms.ndim != 3 or spectrograms.shape[1:] != (bins, frames):
        raise DataError(
            f"inputs: input_features has shape {spectrograms.shape}: must be [B, {bins}, {frames}]"
            f", {bins} mel bins before frames; pad the clips with silence to {frames} frames"
        )
