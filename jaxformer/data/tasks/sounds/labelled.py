"""Clips with a label each, from a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np

from jaxformer.checks import POSITIVE, at_least, check_fields
from jaxformer.data.bad_rows import map_rows
from jaxformer.data.labels import Classes, in_order, label_of
from jaxformer.data.tasks.sounds.features import SoundForm
from jaxformer.data.tasks.sounds.table import Clip, ClipTable, CutClips
from jaxformer.errors import DataError

LABEL_COLUMNS = (("label",), ("labels",), ("class",), ("category",), ("intent",), ("genre",))
"""The columns with the label of a clip."""


@dataclass(frozen=True)
class LabelledClips(ClipTable):
    """Clips with one label each.

    A row of a batch has "waveforms" float32 [S] and "num_samples" int32, "spectrograms" float32
    [frames, M] or "images" float32 [M, frames, 1], as the model reads sounds; "label" int32; and
    "label_weights" float32. In training S is one of a few lengths, so that clips of similar length
    are in one batch.
    """

    head: ClassVar[str] = "classification"
    has_text: ClassVar[bool] = False
    other: ClassVar[tuple[str, tuple[tuple[str], ...]]] = ("label", LABEL_COLUMNS)

    label: str | None = None
    """The column of the label; None: recognised by its name ("label", "class", ...)."""

    label_order: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty: those of the training data, sorted."""

    form: SoundForm | None = None
    """How sounds are read: WaveformFeatures, LogMel or FilterBanks; None: as in the checkpoint's
    preprocessor_config.json."""

    max_seconds: float = 20.0
    """A longer clip is cut to this length, or to the model's window if that is shorter: at a random
    place in training, otherwise at its end."""

    buckets: int = 10
    """The number of lengths to which waveforms are padded in training; each is compiled once."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", max_seconds=POSITIVE, buckets=at_least(1))

    @property
    def longest(self) -> int:
        """The samples to which a longer clip is cut."""
        samples = round(self.max_seconds * self.sampling_rate)
        return samples if self.form.longest is None else min(samples, self.form.longest)

    @property
    def lengths(self) -> dict[str, int]:
        """The samples of a waveform; empty for windows, whose tokens the model counts."""
        whole = self.form is not None and self.form.longest is None
        return {"inputs": self.longest} if whole else {}

    def side_of(self, row: Clip) -> str:
        return row.name

    def value(self, record, column):
        return label_of(record, column)

    def check_length(self, where, samples):
        if samples < self.form.shortest:
            raise DataError(
                f"{where}: {samples:,} samples at {self.sampling_rate:,} Hz: must have at least "
                f"{self.form.shortest:,}, those of a frame; leave it out with --data.on-bad-row "
                "skip, or record it again"
            )

    def label_names(self, train):
        return in_order(Classes().names(row.text for row in train), self.label_order)

    def training_examples(self, rows, tokenizer, labels):
        return self.examples(rows, tokenizer, labels, at_random=True)

    def examples(self, rows, tokenizer=None, labels=(), at_random=False):
        """Returns clips as arrays; one with an unknown label is a bad row."""

        def numbers(rows: Sequence[Clip]) -> np.ndarray:
            return Classes().values([row.text for row in rows], labels, [row.where for row in rows])

        kept = map_rows(numbers, rows, self.on_bad_row, "labels")
        return LabelledClipExamples(self, *kept, at_random)

    def described(self, train):
        seconds = f"of at most {self.longest / self.sampling_rate:,.2f} seconds"
        padding = getattr(train, "padding", None)
        return [("clips", seconds + ("" if padding is None else f", {padding:.0%} padding"))]


class LabelledClipExamples(CutClips):
    """Clips and the numbers of their labels."""

    def __init__(
        self,
        config: LabelledClips,
        clips: Sequence[Clip],
        labels: Sequence[np.ndarray],
        at_random: bool,
    ):
        super().__init__(config, clips, config.longest, at_random)
        self.buckets = config.buckets if config.form.longest is None else None
        self._labels = labels

    def read_padded(self, index, rng, length):
        waveform = self.waveform(index, rng)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            arrays = self._config.form.arrays(waveform, length)
        weight = {"label": np.int32(self._labels[index]), "label_weights": np.float32(1)}
        return arrays | weight
