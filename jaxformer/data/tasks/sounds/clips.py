"""Clips with their transcripts, from a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import numpy as np

from jaxformer.checks import POSITIVE, at_least, check_fields
from jaxformer.data.bad_rows import map_rows
from jaxformer.data.buckets import SizedExamples
from jaxformer.data.dataset import padded
from jaxformer.data.sound import read_sound
from jaxformer.data.tasks.sounds.features import WaveformFeatures
from jaxformer.data.tasks.sounds.spelling import LIKE_LIBRISPEECH, Spelling
from jaxformer.data.tasks.sounds.table import Clip, ClipTable
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import DataError
from jaxformer.models.heads.base import HeadResult
from jaxformer.models.heads.metrics import transcript_scores


@dataclass(frozen=True)
class Clips(ClipTable):
    """Clips with their transcripts, for a CTC head.

    A row of a batch has "waveforms" float32 [S], "num_samples" int32, "transcript" int32 [U],
    "transcript_length" int32 and "transcript_weights" float32. In training S is one of a few
    lengths, so that clips of similar length are in one batch.
    """

    head: ClassVar[str] = "ctc"

    text: str | None = None
    """The column of the transcripts; None: recognised by its name ("text", "sentence", ...)."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """The characters: `Characters`; with a checkpoint, the checkpoint's."""

    spelling: Spelling = LIKE_LIBRISPEECH
    """How texts are spelled, for training and for error rates."""

    sampling_rate: int = 16_000
    """Samples per second; sounds of other rates are resampled."""

    normalize: bool = True
    """Whether each clip is scaled to mean 0 and variance 1, as for wav2vec 2.0."""

    max_seconds: float = 16.0
    """A longer clip cannot be used."""

    max_characters: int = 400
    """A longer transcript cannot be used."""

    buckets: int = 10
    """The number of lengths to which clips are padded in training; each is compiled once."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            self,
            "data",
            sampling_rate=at_least(1),
            max_seconds=POSITIVE,
            max_characters=at_least(1),
            buckets=at_least(1),
        )

    @property
    def form(self) -> WaveformFeatures:
        return WaveformFeatures(self.sampling_rate, self.normalize)

    @property
    def lengths(self) -> dict[str, int]:
        samples = round(self.max_seconds * self.sampling_rate)
        return {"inputs": samples, "targets": self.max_characters}

    def value(self, record, column):
        return self.spelling(record.text(column))

    def examples(self, rows, tokenizer, labels=()) -> "ClipExamples":
        """Returns clips as arrays; one with unknown characters is a bad row."""
        del labels
        encode = partial(self._encoded, tokenizer=tokenizer)
        kept = map_rows(encode, rows, self.on_bad_row, "transcripts")
        return ClipExamples(self, *kept, tokenizer)

    def _encoded(self, rows: Sequence[Clip], tokenizer: Tokenizer) -> list[np.ndarray]:
        """Returns the labels of each transcript."""
        known = cache(lambda character: _is_known(tokenizer, character))
        encoded = tokenizer.encode_batch([row.text for row in rows])
        for row, ids in zip(rows, encoded, strict=True):
            unknown = sorted({x for x in row.text if not known(x)})
            if unknown:
                raise DataError(
                    f"{row.where}: the text has {' '.join(map(repr, unknown))}, which the "
                    "tokenizer does not: change --data.spelling.case, or leave characters out with "
                    "--data.spelling.without"
                )
            if len(ids) > self.max_characters:
                raise DataError(
                    f"{row.where}: {len(ids)} characters, more than data.max_characters = "
                    f"{self.max_characters}: cut the clip, or set a larger one"
                )
        return encoded

    def described(self, train):
        seconds = ", ".join(f"{x / self.sampling_rate:.1f}" for x in train.lengths)
        padding = f"{train.padding:.0%} padding, in lengths of {seconds} seconds"
        return [("clips", padding), ("error rates", f"of texts in {self.spelling}")]


class ClipExamples(SizedExamples):
    """Clips, each of which is read on access, and their labels, int32 [labels] each."""

    def __init__(
        self,
        config: Clips,
        clips: Sequence[Clip],
        labels: Sequence[np.ndarray],
        tokenizer: Tokenizer,
    ):
        self.clips = clips
        self.sizes = np.array([clip.samples for clip in clips])
        self.buckets = config.buckets
        self._config, self._labels, self._tokenizer = config, labels, tokenizer

    def read_padded(self, index, rng, length):
        del rng
        config, clip, labels = self._config, self.clips[index], self._labels[index]
        waveform = read_sound(clip.file, config.sampling_rate)[:length]
        return {
            **config.form.arrays(waveform, length),
            "transcript": padded(labels, config.max_characters, self._tokenizer.pad_id),
            "transcript_length": np.int32(len(labels)),
            "transcript_weights": np.float32(1),
        }

    def error_rates(self, result: HeadResult) -> dict[str, float]:
        """Returns the word and character error rates of predicted labels."""
        pad = self._tokenizer.pad_id
        counted = result.predictions.weights > 0
        rows = zip(result.rows[counted], result.predictions.predicted[counted], strict=True)
        pairs = [(self._tokenizer.decode(x[x != pad]), self.clips[row].text) for row, x in rows]
        predictions, references = zip(*pairs, strict=True)
        return transcript_scores([" ".join(x.split()) for x in predictions], references)


def _is_known(tokenizer: Tokenizer, character: str) -> bool:
    """Whether the ids of a character decode to it."""
    return tokenizer.decode(tokenizer.encode(character)) == character
