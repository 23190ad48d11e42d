"""Sounds with masked spans of frames, for pre-training without texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxformer.checks import FRACTION, POSITIVE, at_least, check_field, check_fields
from jaxformer.data.bad_rows import read_rows
from jaxformer.data.dataset import Batch, padded
from jaxformer.data.files.find import is_folder
from jaxformer.data.tasks.sounds.features import WaveformFeatures
from jaxformer.data.tasks.sounds.table import Clip, ClipTable, CutClips
from jaxformer.errors import DataError
from jaxformer.io.paths import AnyPath, any_path
from jaxformer.nn.waveform import ConvolutionalFeatures

ENDINGS = frozenset({".flac", ".mp3", ".ogg", ".opus", ".wav"})
"""The sounds in a folder."""


@dataclass(frozen=True)
class MaskedSounds(ClipTable):
    """Sounds whose masked frames are distinguished from others of the same sound (wav2vec 2.0).

    A row of a batch has "waveforms" float32 [S], "num_samples" int32, "masked" bool [T] and
    "negatives" int32 [T, K]: for each masked frame K other masked frames of the row. A longer sound
    is cut at random, and in training S is one of a few lengths.

    References:
        Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477), sections 3.1, 3.2 and 4.2;
        `_compute_mask_indices` and `_sample_negative_indices` of transformers.
    """

    head: ClassVar[str] = "quantized_frames"
    has_text: ClassVar[bool] = False
    other: ClassVar[None] = None

    train: str = "sounds"
    """The training sounds: a folder, in which they may be nested, or a table (.csv, .tsv, .jsonl,
    .parquet) with a column of sounds or their paths, which may be relative to its folder."""

    validation: str | None = None
    """Those for validation; None holds out a share of the training sounds."""

    sampling_rate: int = 16_000
    """Samples per second; sounds of other rates are resampled."""

    normalize: bool = True
    """Whether each sound is scaled to mean 0 and variance 1."""

    min_seconds: float = 2.0
    """A shorter sound cannot be used."""

    max_seconds: float = 15.6
    """A longer sound is cut to this length, at random."""

    buckets: int = 10
    """The number of lengths to which sounds are padded in training; each is compiled once."""

    features: ConvolutionalFeatures = ConvolutionalFeatures()
    """The convolutions of the model, which determine the number of frames."""

    mask_probability: float = 0.65
    """The share of frames that would be masked if no spans overlapped."""

    mask_span: int = 10
    """The number of frames of a span."""

    min_masks: int = 2
    """The minimum number of spans in a sound."""

    num_negatives: int = 100
    """The number of other frames that a masked one is distinguished from (K), as in the head."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            self,
            "data",
            sampling_rate=at_least(1),
            min_seconds=POSITIVE,
            max_seconds=POSITIVE,
            buckets=at_least(1),
            mask_probability=FRACTION,
            mask_span=at_least(1),
            min_masks=at_least(1),
            num_negatives=at_least(1),
        )
        longer = self.max_seconds >= self.min_seconds
        check_field(self, "max_seconds", longer, f"at least min_seconds = {self.min_seconds:g}")
        frames = self.features.num_frames(self._samples(self.min_seconds))
        fits = frames >= self.mask_span + 1
        wanted = f"long enough for more than the {self.mask_span} frames of a masked span"
        check_field(self, "min_seconds", fits, wanted)

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.sampling_rate)

    @property
    def form(self) -> WaveformFeatures:
        return WaveformFeatures(self.sampling_rate, self.normalize)

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self._samples(self.max_seconds)}

    def side_of(self, row: Clip) -> str:
        return row.name

    def read(self, source: str) -> list[Clip]:
        """Returns the sounds of a folder or a table; one that cannot be opened is a bad row."""
        place = any_path(source, "data.train")
        if not is_folder(place):
            return super().read(source)
        files = [place / name for name in sound_names(place)]
        if not files:
            raise DataError(f"{place} has no sounds: expected {', '.join(sorted(ENDINGS))}")

        def clip(file: AnyPath) -> Clip:
            return self.clip(str(file), file, str(file.relative_to(place)))

        return read_rows(source, clip, self.on_bad_row, lambda malformed: files, "sounds")

    def check_length(self, where, samples):
        if samples < self._samples(self.min_seconds):
            raise DataError(
                f"{where}: {samples / self.sampling_rate:,.2f} seconds, less than "
                f"data.min_seconds = {self.min_seconds:g}: leave it out, or set a smaller one"
            )

    def examples(self, rows, tokenizer=None, labels=()):
        return MaskedSoundExamples(self, rows)

    def described(self, train):
        hours = train.examples.sizes.sum() / self.sampling_rate / 3600
        return [("sounds", f"{hours:,.2f} hours, {train.padding:.0%} padding")]


def sound_names(folder: AnyPath) -> list[str]:
    """Returns the names of the sounds in a folder and in the folders within, sorted."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    return [str(file.relative_to(folder)) for file in files]


class MaskedSoundExamples(CutClips):
    """Sounds with masked spans."""

    def __init__(self, config: MaskedSounds, clips: Sequence[Clip]):
        super().__init__(config, clips, config.lengths["inputs"])
        self.buckets = config.buckets

    def read_padded(self, index, rng, length):
        config, waveform = self._config, self.waveform(index, rng)
        frames = config.features.num_frames(length)
        masked = masked_spans(
            rng,
            config.features.num_frames(len(waveform)),
            probability=config.mask_probability,
            span=config.mask_span,
            min_spans=config.min_masks,
        )
        masked = padded(masked, frames, False)
        return {
            **config.form.arrays(waveform, length),
            "masked": masked,
            "negatives": sampled_negatives(rng, masked, config.num_negatives),
        }

    def blank(self) -> Batch:
        row = self.read(0, np.random.default_rng(0))
        return row | {"masked": np.zeros_like(row["masked"])}


def masked_spans(
    rng: np.random.Generator, frames: int, *, probability: float, span: int, min_spans: int
) -> np.ndarray:
    r"""Draws spans of equal length that may overlap, as `functional.span_mask` does.

    Of a row with T frames, :math:`\lfloor p T / s + u \rfloor` different starts are drawn, with u
    between 0 and 1: at least `min_spans`, and at most T / s. Returns bool `[T]`, True in a span.
    """
    starts = frames - span + 1
    count = max(int(probability * frames / span + rng.random()), min_spans)
    count = min(count, starts, frames // span)
    masked = np.zeros(frames, bool)
    for start in rng.choice(starts, count, replace=False):
        masked[start : start + span] = True
    return masked


def sampled_negatives(rng: np.random.Generator, masked: np.ndarray, count: int) -> np.ndarray:
    """Draws K other masked frames of a row for each masked frame, uniformly and with replacement.

    Returns int32 `[T, K]`: 0 for frames that are not masked, and the frame itself if it is the only
    one.
    """
    found = np.zeros((len(masked), count), np.int32)
    places = np.flatnonzero(masked)
    others = max(len(places) - 1, 1)
    drawn = rng.integers(others, size=(len(places), count))
    own = np.arange(len(places))[:, None]
    drawn = np.minimum(drawn + (drawn >= own), max(len(places) - 1, 0))
    found[places] = places[drawn]
    return found
