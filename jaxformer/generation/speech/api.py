"""`jaxformer.transcribe`: from a waveform to a text with times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from jaxformer.checks import (
    FINITE,
    NOT_NEGATIVE,
    SWITCH,
    Rule,
    at_least,
    check_argument,
    optional,
)
from jaxformer.data.sound import resampled
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.arrays import check_choice
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import engine_for, row_keys
from jaxformer.generation.inputs import Prompts, reads_sound
from jaxformer.generation.speech.config import (
    SpeechGenerationConfig,
    detected_languages,
    next_logits,
)
from jaxformer.generation.speech.features import Features
from jaxformer.generation.speech.segments import (
    STRIDE,
    Segment,
    compression_ratio,
    previous_tokens,
    split,
)
from jaxformer.generation.speech.words import token_times, words_of
from jaxformer.generation.tokens import new_tokens
from jaxformer.pretrained.model import Pretrained, check_pretrained

Timing = Literal["none", "segments", "words"]
Progress = Callable[[float, float], None]
"""Is called with the seconds that are transcribed, and those of the whole sound."""
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_WARM = 0.5
"""A text that was sampled at this temperature or above is not told to the next window."""
_TEMPERATURES = Rule(
    lambda value: bool(value) and all(map(NOT_NEGATIVE.allows, value)),
    "numbers of at least 0, such as (0.0, 0.2, 0.4)",
)


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


def transcribe(
    pretrained: Pretrained,
    waveform: np.ndarray,
    *,
    sampling_rate: int = 16_000,
    language: str | None = None,
    task: str | None = None,
    timestamps: Timing = "segments",
    temperature: Sequence[float] = TEMPERATURES,
    compression_ratio_threshold: float | None = 1.35,
    logprob_threshold: float | None = -1.0,
    no_speech_threshold: float | None = 0.6,
    condition_on_prev_tokens: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Writes what is said in a sound of any length, with Whisper.

    A long sound is read in windows of 30 seconds. A window begins where the last segment before it
    ends, which the model says by timestamps.

    Args:
        pretrained: The model.
        waveform: float `[S]`, one channel; `jaxformer.data.sound.read_sound` reads files.
        sampling_rate: Samples per second; other rates than the model's are resampled.
        language: The language that is spoken: "en" or "english". None: it is detected in the first
            window.
        task: "transcribe", or "translate" to English; None: what the model's files recommend.
        timestamps: "segments", "words" (by cross-attention and dynamic time warping), or "none".
        temperature: The temperatures at which a window is written, one after another, until its
            text passes the thresholds. 0 is greedy, or beam search.
        compression_ratio_threshold: A text that zlib compresses by more is written again; None: no
            text is.
        logprob_threshold: So is one whose tokens have a lower mean log-probability; None: no text.
        no_speech_threshold: A window with such a text and a higher probability of silence is left
            out; None: none is.
        condition_on_prev_tokens: Whether each window is told the text before it.
        progress: Is called after each window with the seconds that are done, and all seconds.
        **options: Fields of `GenerationConfig`: num_beams, max_new_tokens, seed, ...

    Returns:
        "text"; "language", its code, or None for a model of one language; "duration" in seconds;
        unless `timestamps` is "none" also "segments": dictionaries of "start", "end", "text",
        "tokens", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob" and, with
        words, "words", each with "word", "start" and "end".

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: The model is no Whisper, or lacks the language, the task or timestamps.
        DataError: The waveform cannot be used, or the folder has no tokenizer.
    """
    check_pretrained("pretrained", pretrained)
    if not reads_sound(pretrained):
        raise ConfigError(
            f"transcribe: {pretrained.folder} has the model_type "
            f"{pretrained.checkpoint.model_format.model_type!r}: must be 'whisper'"
        )
    check_choice("timestamps", timestamps, get_args(Timing))
    check_argument(
        "temperature", temperature, _TEMPERATURES.allows(temperature), _TEMPERATURES.expected
    )
    thresholds = {
        "compression_ratio_threshold": compression_ratio_threshold,
        "logprob_threshold": logprob_threshold,
        "no_speech_threshold": no_speech_threshold,
    }
    for name, value in thresholds.items():
        check_argument(name, value, optional(FINITE).allows(value), optional(FINITE).expected)
    own = condition_on_prev_tokens
    check_argument("condition_on_prev_tokens", own, SWITCH.allows(own), SWITCH.expected)
    features = Features.of(pretrained)
    waveform = _checked(waveform, sampling_rate, features.sampling_rate)
    config = _generation_config(pretrained, {"language": language, "task": task} | options)
    long = len(waveform) > features.num_samples
    timed = config.tokens.no_timestamps is not None and (timestamps != "none" or long)
    config = replace(config, return_timestamps=timed or timestamps != "none")
    transcriber = _Transcriber(
        pretrained, config, features, tuple(temperature), Thresholds(*thresholds.values()), own
    )
    return transcriber(waveform, timestamps, progress)


@dataclass(frozen=True)
class _Transcriber:
    """A model with the options of `transcribe`."""

    pretrained: Pretrained
    config: SpeechGenerationConfig
    features: Features
    temperatures: tuple[float, ...]
    thresholds: Thresholds
    conditions: bool

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
        position, told = 0, False
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
        """Returns the tokens before the prefix: those of the segments so far."""
        tokens = self.config.tokens
        if not (told and segments):
            return []
        before = [] if tokens.previous is None else [tokens.previous]
        most = self.pretrained.config.decoder_position.max_length // 2 - 1
        return before + previous_tokens(segments, self._first_timestamp, most)

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


def _generation_config(pretrained: Pretrained, options: dict[str, Any]) -> SpeechGenerationConfig:
    """Returns the options of a window."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("do_sample", "return_timestamps", "num_return_sequences", "stop_strings"):
        if name in given:
            raise ConfigError(f"{name}: not an option of transcribe: leave it out")
    config = generation_config_for(pretrained, given | {"do_sample": False})
    if config.stop_strings:
        config = replace(config, stop_strings=())
    if not config.end_tokens:
        raise ConfigError(
            "eos_token_id = None: must be the token that ends a transcript: correct config.json"
        )
    if config.max_length is None and "max_new_tokens" not in given:
        return replace(config, max_length=pretrained.config.decoder_position.max_length)
    return config


def _checked(waveform: Any, old: int, new: int) -> np.ndarray:
    """Returns a waveform as float32 at the sampling rate of the model."""
    rule = at_least(1)
    check_argument("sampling_rate", old, rule.allows(old), rule.expected)
    waveform = np.asarray(waveform)
    if waveform.ndim != 1 or not len(waveform):
        raise DataError(
            f"waveform has shape {waveform.shape}: must be [samples], one channel and at least one "
            "sample; take the mean over channels"
        )
    if not np.issubdtype(waveform.dtype, np.floating):
        raise DataError(
            f"waveform has dtype {waveform.dtype}: must be floats from -1 to 1; divide integers of "
            "16 bits by 32768"
        )
    if not np.isfinite(waveform).all():
        raise DataError("waveform holds NaN or infinity: must be finite")
    waveform = waveform.astype(np.float32)
    return waveform if old == new else resampled(waveform, old, new)
