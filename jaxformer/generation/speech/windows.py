"""Transcribing a sound window by window, with the decoder of Whisper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import engine_for, row_keys
from jaxformer.generation.inputs import Prompts
from jaxformer.generation.speech.config import (
    SpeechGenerationConfig,
    detected_languages,
    next_logits,
)
from jaxformer.generation.speech.segments import (
    STRIDE,
    Segment,
    compression_ratio,
    previous_tokens,
    split,
)
from jaxformer.generation.speech.words import token_times, words_of
from jaxformer.generation.tokens import new_tokens
from jaxformer.pretrained.model import Pretrained

Timing = Literal["none", "segments", "words"]
Progress = Callable[[float, float], None]
"""Is called with the seconds that are transcribed, and those of the whole sound."""
_WARM = 0.5
"""A text that was sampled at this temperature or above is not told to the next window."""


@dataclass(frozen=True)
class Thresholds:
    """When the text of a window is written again at a higher temperature, or left out.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 4.5.
    """

    compression_ratio: float | None
    """Above it a text repeats itself."""
    log_probability: float | None
    """Below this mean over the tokens a text is unlikely."""
    no_speech: float | None
    """An unlikely text is left out if nobody speaks with a probability above this."""


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
    """What stands before the text of the first window, and before each that is told no other."""

    def __call__(
        self, waveform: np.ndarray, timing: Timing, progress: Progress | None
    ) -> dict[str, Any]:
        """Returns what `transcribe` returns."""
        tokenizer = self.pretrained.prompt_encoder.tokenizer
        spectrogram = self.features.spectrogram(waveform)
        second = self.features.seconds_per_frame
        total = -(-len(waveform) // self.features.hop)
        prefix, language = self._prefix(self._encoded(spectrogram, 0, total)[1])
        segments: list[Segment] = []
        found: list[dict[str, Any]] = []
        position, told = 0, self.conditions
        while position < total:
            frames = min(total - position, self.features.num_frames)
            inputs, encoder_outputs = self._encoded(spectrogram, position, total)
            prompt = [*self._told(segments, told), *prefix]
            decoded = self._decoded(encoder_outputs, prompt, position)
            told = self.conditions and decoded.temperature < _WARM
            step = frames
            if not decoded.skipped:
                parts, step = self._split(decoded.tokens, frames, position)
                times = None
                if timing == "words":
                    times = position * second + self._times(inputs, prompt, decoded, frames)
                found += [
                    self._described(part, decoded, tokenizer, times, language) for part in parts
                ]
                segments += parts
            position += step
            if progress is not None:
                progress(min(position, total) * second, total * second)
        result = {
            "text": "".join(segment["text"] for segment in found).strip(),
            "language": language,
            "duration": len(waveform) / self.features.sampling_rate,
        }
        return result if timing == "none" else result | {"segments": found}

    def _encoded(
        self, spectrogram: np.ndarray, position: int, total: int
    ) -> tuple[np.ndarray, EncoderOutputs]:
        """Returns the input of the model `[1, M, frames]` for a window, and the encoder's output.

        A short sound is padded with silence, the end of a long one with zeros, as in transformers.
        """
        size = self.features.num_frames
        end = len(spectrogram) if total <= size else total
        window = spectrogram[position : min(position + size, end)]
        inputs = np.pad(window, ((0, size - len(window)), (0, 0))).T[None]
        return inputs, self.pretrained.encode({"input_features": inputs})

    def _prefix(self, encoder_outputs: EncoderOutputs) -> tuple[list[int], str | None]:
        """Returns the first tokens of every window, and the code of the language."""
        config, tokens = self.config, self.config.tokens
        language: Any = config.language
        if tokens.detects_language(language, config.task):
            (language,) = detected_languages(engine_for(self.pretrained), tokens, encoder_outputs)
        prefix = tokens.prefix(language, config.task, timestamps=config.return_timestamps)
        named = [code for token in prefix if (code := tokens.language_of(token)) is not None]
        return prefix, named[0] if named else None

    def _told(self, segments: Sequence[Segment], told: bool) -> list[int]:
        """Returns the tokens before the prefix: the prompt, and those of the segments so far."""
        tokens = self.config.tokens
        before = [] if tokens.previous is None else [tokens.previous]
        if not (told and segments):
            return [*before, *self.prompt] if self.prompt else []
        most = self.pretrained.config.decoder_position.max_length // 2 - 1
        begun = [Segment(0, 0, self.prompt)] if self.prompt else []
        return before + previous_tokens([*begun, *segments], self._first_timestamp, most)

    @property
    def _first_timestamp(self) -> int:
        """The token of 0.00; one beyond the vocabulary if the model has no timestamps."""
        tokens = self.config.tokens
        size = self.pretrained.config.vocab_size
        return size if tokens.no_timestamps is None else tokens.first_timestamp

    def _split(
        self, tokens: Sequence[int], frames: int, position: int
    ) -> tuple[list[Segment], int]:
        """Returns the segments of a window, and the frames to the next one, at least 1."""
        second = self.features.seconds_per_frame
        first = self._first_timestamp
        segments, step = split(tokens, first, frames=frames, offset=position, seconds=second)
        return segments, step or frames

    def _decoded(
        self, encoder_outputs: EncoderOutputs, prompt: list[int], position: int
    ) -> Decoded:
        """Writes a window at rising temperatures until its text passes the thresholds."""
        limits, silence = self.thresholds, self._no_speech(encoder_outputs, prompt)
        size = self.pretrained.config.vocab_size
        for number, temperature in enumerate(self.temperatures):
            key = position * len(self.temperatures) + number
            tokens, log_probability = self._tokens(encoder_outputs, prompt, temperature, key)
            ratio = compression_ratio(tokens, size)
            repeats = limits.compression_ratio is not None and ratio > limits.compression_ratio
            unlikely = (
                limits.log_probability is not None and log_probability < limits.log_probability
            )
            silent = None not in (silence, limits.no_speech) and silence > limits.no_speech
            skipped = unlikely and silent
            if skipped or not (repeats or unlikely):
                break
        ended = tokens[-1] in self.config.end_tokens
        tokens = tokens[:-1] if ended else tokens
        return Decoded(tokens, ended, temperature, log_probability, ratio, silence, skipped)

    def _no_speech(self, encoder_outputs: EncoderOutputs, prompt: list[int]) -> float | None:
        """Returns the probability that nobody speaks, which follows the start token."""
        tokens = self.config.tokens
        if tokens.no_speech is None or self.thresholds.no_speech is None:
            return None
        until = len(prompt) - prompt[::-1].index(tokens.start)
        logits = next_logits(engine_for(self.pretrained), [prompt[:until]], encoder_outputs)
        return float(jax.nn.softmax(logits[0])[tokens.no_speech])

    def _tokens(
        self, encoder_outputs: EncoderOutputs, prompt: list[int], temperature: float, key: int
    ) -> tuple[list[int], float]:
        """Returns the new tokens of a window, and their mean log-probability."""
        prompts, engine = Prompts.of_rows([prompt]), engine_for(self.pretrained)
        config = self._config_for(len(prompt), temperature)
        if config.num_beams > 1:
            best = engine.beam_search(prompts, config, encoder_outputs=encoder_outputs)
            count = int(best.lengths[0])
            total = float(best.scores[0]) * count**config.length_penalty
            return best.tokens[0, :count].tolist(), total / count
        keys = row_keys(config.seed, np.array([key]))
        options = {"encoder_outputs": encoder_outputs, "keep_scores": True}
        found = new_tokens(engine, prompts, config, keys, **options)
        tokens = found.tokens[0, : found.lengths[0]]
        # The scores are those from which the tokens were chosen, divided by the temperature.
        scores = found.scores[:, 0] * (temperature or 1.0)
        chances = np.asarray(jax.nn.log_softmax(scores, axis=1))
        return tokens.tolist(), float(chances[np.arange(len(tokens)), tokens].mean())

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
