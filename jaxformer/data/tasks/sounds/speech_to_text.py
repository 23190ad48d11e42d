"""Clips and their transcripts, which a decoder writes (Whisper)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax
import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.bad_rows import map_rows
from jaxformer.data.dataset import Batch, padded
from jaxformer.data.sound import read_sound
from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.data.tasks.sounds.spelling import MARKS, Spelling
from jaxformer.data.tasks.sounds.table import Clip, ClipTable
from jaxformer.data.tasks.text_metrics import TextMetric
from jaxformer.data.tasks.text_to_text import WritingExamples
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import DataError
from jaxformer.models.heads.metrics import transcript_scores


@dataclass(frozen=True)
class ErrorRates(TextMetric):
    """The word and the character error rate of transcripts, both texts in the same spelling.

    References:
        Morris et al. 2004, https://doi.org/10.21437/Interspeech.2004-668
    """

    spelling: Spelling = Spelling(case="lower", without=MARKS)
    """How texts are spelled before they are compared."""

    def scores(self, texts, references):
        wanted = [self.spelling(first) for first, *_ in references]
        return transcript_scores([self.spelling(text) for text in texts], wanted)


@dataclass(frozen=True)
class SpeechToText(ClipTable):
    """Clips with their transcripts, for a decoder that writes them.

    A row of a batch has "spectrograms" float32 [frames, M], a window of 30 seconds;
    "decoder_inputs" int32 [T], the prefix and the text; "targets" int32 [T], the same without the
    first token, and end-of-text; "weights" float32 [T]; "decoder_segments" [T], 1 for tokens and 0
    for padding.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 2.3.
    """

    longer: ClassVar[str] = "the {:g} of a window: cut the clip"
    product: ClassVar[tuple[str, str]] = ("transcript", "transcripts")
    """What the model writes, in the singular and the plural."""

    text: str | None = None
    """The column of the transcripts; None: recognised by its name ("text", "sentence", ...). Texts
    are written as they are, with their case and punctuation."""

    language: str | None = None
    """The language of all clips, "en" or "english"; None only for a model of one language."""

    task: Literal["transcribe", "translate"] = "transcribe"
    """Whether the texts are transcripts or translations to English."""

    prefix: tuple[int, ...] = ()
    """The first decoder inputs: start, language, task, no timestamps; empty: those of the
    checkpoint for `language` and `task`."""

    prefix_loss: bool = True
    """Whether the model also learns to write the prefix after its first token, as in Whisper's
    training (section 2.3) and in transformers' example of it."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens; with a checkpoint, by its tokenizer."""

    features: LogMel = LogMel()
    """How sounds become spectrograms; with a checkpoint, as configured there."""

    target_length: int = 224
    """The maximum number of tokens of a transcript, with its prefix. Whisper writes at most half of
    its 448."""

    metric: TextMetric = ErrorRates()
    """The metric of the model's transcripts."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", target_length=at_least(2))

    @property
    def lengths(self) -> dict[str, int]:
        return {"decoder_inputs": self.target_length}

    @property
    def form(self) -> LogMel:
        return self.features

    @property
    def max_seconds(self):
        return self.features.seconds

    def start_id(self, tokenizer):
        del tokenizer
        return self.prefix[0]

    def value(self, record, column):
        text = record.text(column).strip()
        if not text:
            raise DataError(f"{record.where}: no text: {column} is empty; give one")
        return text

    def examples(self, rows, tokenizer, labels=()) -> "SpeechToTextExamples":
        """Returns clips as arrays; one whose text is too long is a bad row."""
        del labels
        encode = partial(self._encoded, tokenizer=tokenizer)
        kept = map_rows(encode, rows, self.on_bad_row, "transcripts")
        return SpeechToTextExamples(self, *kept, tokenizer)

    def _encoded(self, rows: Sequence[Clip], tokenizer: Tokenizer) -> list[np.ndarray]:
        """Returns the prefix and the tokens of each text."""
        encoded = tokenizer.encode_batch([row.text for row in rows])
        found = [np.array([*self.prefix, *ids], np.int32) for ids in encoded]
        for row, ids in zip(rows, found, strict=True):
            if len(ids) > self.target_length:
                raise DataError(
                    f"{row.where}: {len(ids)} tokens with the prefix, more than data.target_length "
                    f"= {self.target_length}: cut the clip, or set a larger one"
                )
        return found

    def described(self, train):
        window = f"{self.max_seconds:g} seconds, {self.features.num_mel_bins} mel bins"
        return [("clips", f"in windows of {window}"), ("error rates", f"{self.metric}")]


class SpeechToTextExamples(WritingExamples):
    """Clips, each of which is read on access, and their decoder inputs, int32 [tokens] each."""

    def __init__(
        self,
        config: SpeechToText,
        clips: Sequence[Clip],
        inputs: Sequence[np.ndarray],
        tokenizer: Tokenizer,
    ):
        self.config = config
        self.pairs = [(clip.name, clip.text) for clip in clips]
        self.references = [(clip.text,) for clip in clips]
        self.given = len(config.prefix)
        self._clips, self._inputs = clips, inputs
        self._end = tokenizer.end_of_text_id

    def __len__(self) -> int:
        return len(self._clips)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        config, inputs = self.config, self._inputs[index]
        waveform = read_sound(self._clips[index].file, config.sampling_rate)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            spectrogram = config.features.spectrogram(waveform[: config.features.num_samples])
        weights = np.ones(len(inputs), np.float32)
        if not config.prefix_loss:
            weights[: self.given - 1] = 0
        length = config.target_length
        return {
            "spectrograms": spectrogram,
            "decoder_inputs": padded(inputs, length, self._end),
            "decoder_segments": padded(np.ones_like(inputs), length, 0),
            "targets": padded(np.append(inputs[1:], np.int32(self._end)), length, self._end),
            "weights": padded(weights, length, 0),
        }
