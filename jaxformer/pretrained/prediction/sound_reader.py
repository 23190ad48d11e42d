"""Reads sounds for audio classification."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.data.sound import read_sound
from jaxformer.data.tasks.sounds.features import SoundForm
from jaxformer.data.tasks.sounds.masked import sound_names
from jaxformer.data.tasks.sounds.table import AUDIO_COLUMNS
from jaxformer.errors import DataError
from jaxformer.pretrained.prediction.reader import FileReader

_SECONDS = 30
"""The default maximum length, if neither the model's window nor the run's data define one."""


class Heard(NamedTuple):
    """A sound at the model's sampling rate."""

    ids: np.ndarray
    """The waveform, float32 [S], in place of token ids."""
    cut: bool
    """Whether the sound was truncated."""


class SoundReader(FileReader):
    """Reads the sounds in a folder or in a column of a table.

    Sounds are truncated to `longest` samples, by default to the model's window or 30 seconds.
    """

    chunk = 2
    columns = AUDIO_COLUMNS
    kind = "sounds"
    unit = "samples"
    found_in = staticmethod(sound_names)

    def __init__(self, form: SoundForm, head: str | None, longest: int | None = None):
        self._form, self.head = form, head
        self.max_length = longest or form.longest or _SECONDS * form.sampling_rate

    def encode(self, rows: Sequence[tuple[str, ...]]) -> list[Heard]:
        """Returns the waveforms of files; paths may be relative to the table."""
        return [self._heard(name) for (name,) in rows]

    def _heard(self, name: str) -> Heard:
        file, form = self.file(name), self._form
        waveform = read_sound(file, form.sampling_rate)
        if len(waveform) < form.shortest:
            raise DataError(
                f"{file}: {len(waveform):,} samples at {form.sampling_rate:,} Hz: must have at "
                f"least {form.shortest:,}, those of a frame; leave it out, or record it again"
            )
        return Heard(waveform[: self.max_length], len(waveform) > self.max_length)

    def arrays(self, rows, length):
        each = [self._form.arrays(row.ids, length) for row in rows]
        return {name: np.stack([arrays[name] for arrays in each]) for name in each[0]}

    def states(self, model, arrays):
        found = model.outputs(arrays)
        everywhere = jnp.ones(found.hidden.shape[:2], bool)
        return found.hidden, everywhere if found.valid is None else found.valid
