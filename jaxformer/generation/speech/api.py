"""`jaxformer.transcribe`: from a waveform to a text with times."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from jaxformer.checks import (
    FINITE,
    NOT_NEGATIVE,
    SWITCH,
    Rule,
    at_least,
    check_argument,
    check_arguments,
    optional,
)
from jaxformer.data.sound import SoundStream, resampled
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.arrays import check_choice
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.inputs import reads_sound
from jaxformer.generation.speech.chunked import transcribe_chunks
from jaxformer.generation.speech.chunks import Progress, Timing, chunking
from jaxformer.generation.speech.config import SpeechGenerationConfig
from jaxformer.generation.speech.features import log_mel_of, waveform_features_of
from jaxformer.generation.speech.frames import writes_labels
from jaxformer.generation.speech.transcripts import label_options, transcribe_labels
from jaxformer.generation.speech.windows import Thresholds, Transcriber
from jaxformer.io.model_files import GENERATION
from jaxformer.pretrained.model import Pretrained, check_pretrained

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_TEMPERATURES = Rule(
    lambda value: bool(value) and all(map(NOT_NEGATIVE.allows, value)),
    "numbers of at least 0, such as (0.0, 0.2, 0.4)",
)


def transcribe(
    pretrained: Pretrained,
    waveform: np.ndarray | str | Path,
    *,
    sampling_rate: int = 16_000,
    batch_size: int | None = None,
    chunk_length_s: float | None = None,
    stride_length_s: float | None = None,
    language: str | None = None,
    task: str | None = None,
    prompt: str | None = None,
    timestamps: Timing = "segments",
    temperature: Sequence[float] = TEMPERATURES,
    compression_ratio_threshold: float | None = 1.35,
    logprob_threshold: float | None = -1.0,
    no_speech_threshold: float | None = 0.6,
    condition_on_prev_tokens: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Transcribes a sound of any length, with Whisper or a CTC head.

    Whisper reads a long sound in windows of 30 seconds. A window begins where the last segment
    before it ends, as its timestamps tell. With `batch_size` it reads overlapping chunks instead,
    this many at once, and joins their texts as the pipeline of transformers does. A model with a
    CTC head (wav2vec 2.0, HuBERT) always reads chunks. It takes the likeliest label of each frame,
    or searches with `num_beams`, `length_bonus` and a `language_model`; the options from `language`
    on are Whisper's.

    Args:
        pretrained: The model.
        waveform: float `[S]`, one channel; or a sound file, of which little is in memory at a time.
        sampling_rate: Samples per second; other rates than the model's are resampled. A file has
            its own.
        batch_size: The chunks that are read at once; None: 1, or for Whisper the windows above.
        chunk_length_s: The seconds of a chunk; None: 30, or the model's window if it is shorter.
        stride_length_s: The seconds at each end of a chunk that its neighbour reads too; None: a
            sixth of the chunk.
        language: The spoken language: "en" or "english". None: it is detected in the first window.
        task: "transcribe", or "translate" to English; None: what the model's files recommend.
        prompt: A text before the transcript, such as names in their spelling. It precedes every
            window, or with `condition_on_prev_tokens` the text of the windows so far.
        timestamps: "segments", "words" (by cross-attention and dynamic time warping), or "none".
        temperature: The temperatures at which a window is decoded, one after another, until its
            text passes the thresholds. 0 is greedy, or beam search.
        compression_ratio_threshold: A text that zlib compresses by more is decoded again; None: no
            text is.
        logprob_threshold: A text whose tokens have a lower mean log-probability is also decoded
            again; None: no text is.
        no_speech_threshold: A window with such a text and a higher probability of silence is left
            out; None: no window is.
        condition_on_prev_tokens: Whether the decoder reads the text before each window.
        progress: Called after each window with the seconds transcribed so far, and all seconds.
        **options: Fields of `GenerationConfig`: num_beams, max_new_tokens, seed, ...; of a CTC head
            num_beams, length_bonus, and language_model, a file or folder of KenLM, or the result of
            `read_language_model` with other weights.

    Returns:
        "text"; "language", its code, or None for a model of one language; "duration" in seconds;
        unless `timestamps` is "none" also "segments": dictionaries of "start", "end", "text",
        "tokens" and, with words, "words", each with "word", "start" and "end". Segments of
        Whisper's windows have "temperature", "avg_logprob", "compression_ratio" and
        "no_speech_prob", and those of a CTC head a "score" too.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: The model is not a Whisper, or lacks the language, the task or timestamps.
        DataError: The waveform cannot be used, or the folder has no tokenizer.
    """
    check_pretrained("pretrained", pretrained)
    check_choice("timestamps", timestamps, get_args(Timing))
    chunks = batch_size, chunk_length_s, stride_length_s
    if writes_labels(pretrained):
        own = label_options({"language": language, "task": task, "prompt": prompt} | options)
        rate = waveform_features_of(pretrained).sampling_rate
        cut = chunking(rate, pretrained.config.samples_per_frame, math.inf, *chunks)
        stream = _stream(waveform, sampling_rate, rate)
        return transcribe_labels(
            pretrained, stream, cut, timestamps=timestamps, progress=progress, **own
        )
    _check_whisper(pretrained, options)
    check_arguments(
        temperature=(tuple(temperature), _TEMPERATURES),
        compression_ratio_threshold=(compression_ratio_threshold, optional(FINITE)),
        logprob_threshold=(logprob_threshold, optional(FINITE)),
        no_speech_threshold=(no_speech_threshold, optional(FINITE)),
        condition_on_prev_tokens=(condition_on_prev_tokens, SWITCH),
    )
    features = log_mel_of(pretrained)
    cut = chunking(features.sampling_rate, 1, features.seconds, *chunks)
    _check_order(chunks, condition_on_prev_tokens)
    stream = _stream(waveform, sampling_rate, features.sampling_rate)
    config = _generation_config(pretrained, {"language": language, "task": task} | options)
    long = batch_size is None and stream.length > features.num_samples
    stamps = long and config.tokens.no_timestamps is not None
    config = replace(config, return_timestamps=timestamps != "none" or stamps)
    transcriber = Transcriber(
        pretrained,
        config,
        features,
        tuple(temperature),
        Thresholds(compression_ratio_threshold, logprob_threshold, no_speech_threshold),
        condition_on_prev_tokens,
        () if prompt is None else _prompt_tokens(pretrained, config, prompt),
        cut.batch_size,
    )
    if batch_size is None:
        return transcriber(stream, timestamps, progress)
    return transcribe_chunks(transcriber, stream, cut, timestamps, progress)


def _check_whisper(pretrained: Pretrained, options: dict[str, Any]) -> None:
    """Raises ConfigError unless a model is a Whisper, with only its own options."""
    if not reads_sound(pretrained):
        raise ConfigError(
            f"transcribe: {pretrained.folder} has the model_type "
            f"{pretrained.checkpoint.model_format.model_type!r}: must be 'whisper', or a model "
            "with a CTC head"
        )
    if options.get("language_model") is not None:
        raise ConfigError(
            f"language_model: chooses among the beams of a CTC head, and {pretrained.folder} is a "
            "Whisper, whose decoder is a language model: leave it out"
        )


def _check_order(chunks: tuple[int | None, float | None, float | None], conditions: bool) -> None:
    """Raises ConfigError if options of chunks are combined with those of Whisper's windows."""
    batch_size, *sizes = chunks
    for name, value in zip(("chunk_length_s", "stride_length_s"), sizes, strict=True):
        if batch_size is None and value is not None:
            raise ConfigError(
                f"{name} = {value!r}: an option of chunks, which Whisper reads with batch_size: "
                "give batch_size, or leave it out"
            )
    if batch_size is not None and conditions:
        raise ConfigError(
            "condition_on_prev_tokens = True: not with batch_size, since chunks are written at the "
            "same time: leave one of them out"
        )


def _prompt_tokens(
    pretrained: Pretrained, config: SpeechGenerationConfig, prompt: str
) -> tuple[int, ...]:
    """Returns the tokens of a prompt, as `WhisperTokenizer.get_prompt_ids` of transformers."""
    check_argument("prompt", prompt, isinstance(prompt, str), "a text")
    if config.tokens.previous is None:
        raise ConfigError(
            f"prompt: prev_sot_token_id is missing in {GENERATION}: without it, the token before a "
            "prompt is not known; copy the file of the checkpoint"
        )
    tokenizer = pretrained.prompt_encoder.tokenizer
    tokens = tuple(tokenizer.encode(f" {prompt.strip()}", add_special_tokens=False).ids)
    most = pretrained.config.decoder_position.max_length // 2 - 1
    if len(tokens) > most:
        raise ConfigError(
            f"prompt: has {len(tokens)} tokens: must have at most {most}, so that the text of a "
            "window has room; shorten it"
        )
    return tokens


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


def _stream(sound: Any, old: int, new: int) -> SoundStream:
    """Returns a waveform or a file as a sound of float32 at the sampling rate of the model."""
    if isinstance(sound, str | Path):
        return SoundStream.of_file(sound, new)
    check_arguments(sampling_rate=(old, at_least(1)))
    waveform = np.asarray(sound)
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
    waveform = waveform.astype(np.float32, copy=False)
    waveform = waveform if old == new else resampled(waveform, old, new)
    return SoundStream("waveform", len(waveform), lambda: iter([waveform]))
