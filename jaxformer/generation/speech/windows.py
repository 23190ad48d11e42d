"""Transcribing a sound window by window, with the decoder of Whisper."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxformer.data.sound import SampleReader, SoundStream
from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import engine_for, row_keys
from jaxformer.generation.inputs import Prompts, bucket
from jaxformer.generation.speech.chunks import Progress, Timing
from jaxformer.generation.speech.config import SpeechGenerationConfig, next_logits
from jaxformer.generation.speech.segments import (
    STRIDE,
    Segment,
    compression_ratio,
    previous_tokens,
    split,
)
from jaxformer.generation.speech.spectrograms import LongSpectrogram, WindowSpectrogram
from jaxformer.generation.speech.words import token_times, words_of
from jaxformer.generation.tokens import new_tokens
from jaxformer.pretrained.model import Pretrained

_T = TypeVar("_T")
_HIGH_TEMPERATURE = 0.5
"""A text sampled at this temperature or above does not precede the next window's."""


@dataclass(frozen=True)
class Thresholds:
    """The thresholds for decoding a window again at a higher temperature, or leaving out its text.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 4.5.
    """

    compression_ratio: float | None
    """Above this ratio, a text counts as repetitive."""
    log_probability: float | None
    """Below this mean over its tokens, a text counts as unlikely."""
    no_speech: float | None
    """An unlikely text is left out if the probability of silence is above this."""


class Decoded(NamedTuple):
    """The text of a window."""

    tokens: list[int]
    """Without the end token."""
    ended: bool
    """Whether there was one."""
    temperature: float
    log_probability: float
    """The mean over the tokens, with the end token."""
    compression_ratio: float
    no_speech: float | None
    """The probability that nobody speaks; None if the model has no token for it."""
    skipped: bool
    """Whether nobody speaks."""
    rejected: bool
    """Whether the text does not pass the thresholds."""


class Written(NamedTuple):
    """The segments of a window."""

    decoded: Decoded
    segments: list[Segment]
    times: np.ndarray | None
    """When each token begins, in seconds from the start of the row; None: not requested."""


@dataclass
class Row:
    """A sound that is written window by window, each of which begins where the last text ends."""

    spectrogram: WindowSpectrogram | LongSpectrogram
    number: int = 0
    """Sounds with other numbers are sampled with other keys."""
    position: int = 0
    """The frame at which the next window begins."""
    prefix: list[int] = field(default_factory=list)
    """The first tokens of each window; empty before the first."""
    keeps_text: bool = True
    """Whether the text so far may precede the next window's."""
    segments: list[Segment] = field(default_factory=list)

    @property
    def left(self) -> bool:
        """Whether frames are left."""
        return self.position < self.spectrogram.total


@dataclass(frozen=True)
class Transcriber:
    """A model with the options of `transcribe`."""

    pretrained: Pretrained
    config: SpeechGenerationConfig
    features: LogMel
    temperatures: tuple[float, ...]
    thresholds: Thresholds
    conditions: bool
    prompt: tuple[int, ...] = ()
    """The tokens before the first window's text, and before others without an earlier text."""
    batch_size: int = 1
    """The maximum number of rows that are written at once."""

    def __call__(
        self, stream: SoundStream, timing: Timing, progress: Progress | None
    ) -> dict[str, Any]:
        """Returns the result of `transcribe`, with windows in the order of OpenAI."""
        start = SampleReader(stream.blocks()).read(0, self.features.num_samples + 1)
        short = len(start) <= self.features.num_samples
        spectrogram = (WindowSpectrogram if short else LongSpectrogram)(
            self.features, start if short else stream
        )
        row, second = Row(spectrogram), self.features.seconds_per_frame
        tokenizer = self.pretrained.prompt_encoder.tokenizer
        found: list[dict[str, Any]] = []
        while row.left:
            (written,) = self.advance([row], timing)
            own = written.decoded, tokenizer, written.times, self.language_of(row)
            found += [self._described(segment, *own) for segment in written.segments]
            if progress is not None:
                progress(min(row.position, spectrogram.total) * second, spectrogram.total * second)
        result = {
            "text": "".join(segment["text"] for segment in found).strip(),
            "language": self.language_of(row),
            "duration": stream.length / self.features.sampling_rate,
        }
        return result if timing == "none" else result | {"segments": found}

    def advance(self, rows: Sequence[Row], timing: Timing) -> list[Written]:
        """Writes the next window of each row, all in a batch."""
        second, size = self.features.seconds_per_frame, self.features.num_frames
        read = self._repeated(rows)
        inputs = np.stack([row.spectrogram.window(row.position).T for row in read])
        encoder_outputs = self.pretrained.encode({"input_features": inputs})
        if not all(row.prefix for row in rows):
            first_tokens = self.config.first_tokens(self.pretrained)(encoder_outputs)
            for row, prefix in zip(read, first_tokens.tolist(), strict=True):
                row.prefix = prefix
        earlier = [
            self._tokens_before(row.segments, self.conditions and row.keeps_text) for row in read
        ]
        prompts = [[*before, *row.prefix] for before, row in zip(earlier, read, strict=True)]
        keys = [row.number + row.position for row in read]
        texts = self._decoded(encoder_outputs, prompts, keys)
        found = []
        for n, (row, decoded) in enumerate(zip(rows, texts, strict=False)):
            spectrogram, position = row.spectrogram, row.position
            frames = min(spectrogram.total - position, size)
            segments, step, times = [], frames, None
            row.keeps_text = decoded.temperature < _HIGH_TEMPERATURE
            if not decoded.skipped:
                place = {"frames": frames, "offset": position, "seconds": second}
                segments, step = split(decoded.tokens, self.first_timestamp, **place)
                step = step or frames
                if timing == "words":
                    heard = min(spectrogram.frames - position, size)
                    own = self._times(inputs[n : n + 1], prompts[n], decoded, heard)
                    times = position * second + own
            row.segments += segments
            row.position += step
            found.append(Written(decoded, segments, times))
        return found

    def language_of(self, row: Row) -> str | None:
        """Returns the code of the language in which a row is written, if the model has several."""
        codes = map(self.config.tokens.language_of, row.prefix)
        return next((code for code in codes if code is not None), None)

    def _repeated(self, rows: Sequence[_T]) -> list[_T]:
        """Repeats the last of some rows, so that programs are compiled for few sizes."""
        size = min(bucket(len(rows), 1), self.batch_size)
        return [*rows, *rows[-1:] * (size - len(rows))]

    def _tokens_before(self, segments: Sequence[Segment], keeps_text: bool) -> list[int]:
        """Returns the tokens before the prefix: the prompt, and those of the segments so far."""
        tokens = self.config.tokens
        before = [] if tokens.previous is None else [tokens.previous]
        if not (keeps_text and segments):
            return [*before, *self.prompt] if self.prompt else []
        most = self.pretrained.config.decoder_position.max_length // 2 - 1
        begun = [Segment(0, 0, self.prompt)] if self.prompt else []
        return before + previous_tokens([*begun, *segments], self.first_timestamp, most)

    @property
    def first_timestamp(self) -> int:
        """The token of 0.00; one beyond the vocabulary if the model has no timestamps."""
        tokens = self.config.tokens
        size = self.pretrained.config.vocab_size
        return size if tokens.no_timestamps is None else tokens.first_timestamp

    def _decoded(
        self, encoder_outputs: EncoderOutputs, prompts: list[list[int]], keys: list[int]
    ) -> list[Decoded]:
        """Writes windows at rising temperatures until their texts pass the thresholds."""
        silences = self._no_speech(encoder_outputs, prompts)
        found: dict[int, Decoded] = {}
        left = list(range(len(prompts)))
        for number, temperature in enumerate(self.temperatures):
            states = encoder_outputs
            if number:
                states = jax.tree.map(partial(np.take, indices=left, axis=0), encoder_outputs)
            own = [keys[row] * len(self.temperatures) + number for row in left]
            texts = self._tokens(states, [prompts[row] for row in left], temperature, own)
            for row, (tokens, log_probability) in zip(left, texts, strict=True):
                found[row] = self._judged(tokens, log_probability, silences[row], temperature)
            left = sorted({row for row in left if found[row].rejected})
            if not left:
                break
            left = self._repeated(left)
        return [found[row] for row in range(len(prompts))]

    def _judged(
        self, tokens: list[int], log_probability: float, silence: float | None, temperature: float
    ) -> Decoded:
        """Returns a text with its results for the thresholds."""
        limits = self.thresholds
        ratio = compression_ratio(tokens, self.pretrained.config.vocab_size)
        repeats = limits.compression_ratio is not None and ratio > limits.compression_ratio
        unlikely = limits.log_probability is not None and log_probability < limits.log_probability
        silent = None not in (silence, limits.no_speech) and silence > limits.no_speech
        skipped = unlikely and silent
        ended = tokens[-1] in self.config.end_tokens
        tokens = tokens[:-1] if ended else tokens
        rejected = not skipped and (repeats or unlikely)
        return Decoded(
            tokens, ended, temperature, log_probability, ratio, silence, skipped, rejected
        )

    def _no_speech(
        self, encoder_outputs: EncoderOutputs, prompts: list[list[int]]
    ) -> list[float | None]:
        """Returns the probabilities of silence, which the model predicts after the start token."""
        tokens = self.config.tokens
        if tokens.no_speech is None or self.thresholds.no_speech is None:
            return [None] * len(prompts)
        begun = [prompt[: len(prompt) - prompt[::-1].index(tokens.start)] for prompt in prompts]
        logits = next_logits(engine_for(self.pretrained), begun, encoder_outputs)
        return np.asarray(jax.nn.softmax(logits)[:, tokens.no_speech]).tolist()

    def _tokens(
        self,
        encoder_outputs: EncoderOutputs,
        prompts: list[list[int]],
        temperature: float,
        keys: list[int],
    ) -> list[tuple[list[int], float]]:
        """Returns the new tokens of each window, and their mean log-probability."""
        rows, engine = Prompts.of_rows(prompts), engine_for(self.pretrained)
        config = self._config_for(rows.tokens.shape[1], temperature)
        if config.num_beams > 1:
            best = engine.beam_search(rows, config, encoder_outputs=encoder_outputs)
            totals = best.scores * best.lengths**config.length_penalty
            return [
                (tokens[:count].tolist(), float(total / count))
                for tokens, count, total in zip(best.tokens, best.lengths, totals, strict=True)
            ]
        options = {"encoder_outputs": encoder_outputs, "keep_scores": True}
        found = new_tokens(engine, rows, config, row_keys(config.seed, np.array(keys)), **options)
        texts = []
        for n, count in enumerate(found.lengths):
            tokens = found.tokens[n, :count]
            # The scores are those from which the tokens were chosen, divided by the temperature.
            scores = found.scores[:count, n] * (temperature or 1.0)
            chances = np.asarray(jax.nn.log_softmax(scores, axis=1))
            texts.append((tokens.tolist(), float(chances[np.arange(count), tokens].mean())))
        return texts

    def _config_for(self, width: int, temperature: float) -> SpeechGenerationConfig:
        """Returns the options at a temperature after a prompt of some tokens."""
        config = self.config
        room = self.pretrained.config.decoder_position.max_length - width
        most = config.max_new_tokens if config.max_length is None else config.max_length
        config = replace(config, max_length=None, max_new_tokens=min(most, room))
        if temperature > 0:
            greedy = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
            config = replace(config, do_sample=True, temperature=temperature, **greedy)
        return config.for_width(width)

    def _times(
        self, inputs: np.ndarray, prompt: list[int], decoded: Decoded, frames: int
    ) -> np.ndarray:
        """Returns when each token of a window begins, in seconds from the window's start."""
        seconds = STRIDE * self.features.seconds_per_frame
        options = {"ended": decoded.ended, "frames": frames, "seconds": seconds}
        own = self.config.tokens
        return token_times(self.pretrained, own, inputs, prompt, decoded.tokens, **options)

    def _described(
        self,
        segment: Segment,
        decoded: Decoded,
        tokenizer: Any,
        times: np.ndarray | None,
        language: str | None,
    ) -> dict[str, Any]:
        """Returns a segment as `transcribe` returns it."""
        end = self.config.end_tokens[0]
        places = [place for place, token in enumerate(segment.tokens) if token < end]
        words = [segment.tokens[place] for place in places]
        described = {
            "start": round(segment.start, 3),
            "end": round(segment.end, 3),
            "text": tokenizer.decode(words),
            "tokens": list(segment.tokens),
            "temperature": decoded.temperature,
            "avg_logprob": decoded.log_probability,
            "compression_ratio": decoded.compression_ratio,
            "no_speech_prob": decoded.no_speech,
        }
        if times is None:
            return described
        starts = [times[segment.place + place] for place in places]
        return described | {"words": words_of(tokenizer, words, starts, segment.end, language)}
