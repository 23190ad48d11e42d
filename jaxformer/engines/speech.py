"""Speech-to-text models in engines: prompts, and required token names."""

import numpy as np

from jaxformer.engines.base import Prompt
from jaxformer.engines.reference import ReferenceModel
from jaxformer.engines.text_models import check_text_model
from jaxformer.errors import ConfigError
from jaxformer.generation.inputs import reads_sound
from jaxformer.generation.speech.features import log_mel_of
from jaxformer.generation.speech.tokens import TRANSCRIBE, SpeechTokens
from jaxformer.pretrained.model import Pretrained

END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
"""The tokens of Whisper that CTranslate2 looks up by name."""


class SpeechReference(ReferenceModel):
    """A Whisper in jaxformer, in float32, with a window of modulated tones as input."""

    @property
    def longest(self) -> int:
        """The decoder's number of positions."""
        return self.pretrained.config.decoder_position.max_length

    def prompt(self) -> Prompt:
        features = log_mel_of(self.pretrained)
        heard = features.spectrogram(_tones(features.num_samples, features.sampling_rate))
        first = first_tokens(self.pretrained)
        special = {*first, *range(first[0], first[-1])}  # only used at the start of a transcript
        end = end_token(self.pretrained)
        return Prompt(
            decoder_tokens=first,
            features=np.ascontiguousarray(heard.T),
            num_given=len(first),
            suppressed=tuple(sorted(special if end is None else special | {end})),
        )


def writes_speech(pretrained: Pretrained) -> bool:
    """Returns whether a model reads spectrograms and generates tokens."""
    return reads_sound(pretrained) and pretrained.config.predicts_next_token


def reference_of(pretrained: Pretrained) -> ReferenceModel:
    """Returns the reference for comparisons of a model.

    Raises:
        ConfigError: The model is neither a text model nor a Whisper that generates text.
    """
    try:
        check_model(pretrained, "--engines")
    except ConfigError as error:
        raise ConfigError(
            f"{error}; for sounds, engines only run a Whisper that generates tokens; without "
            "--engines, verify compares a Hugging Face folder of any class with transformers"
        ) from error
    return (SpeechReference if writes_speech(pretrained) else ReferenceModel)(pretrained)


def check_model(pretrained: Pretrained, option: str) -> None:
    """Raises ConfigError, naming an option, unless a model reads texts or is a Whisper that writes.

    A text model must have logits, or hidden states without a head.
    """
    if not writes_speech(pretrained):
        check_text_model(pretrained, option)


def first_tokens(pretrained: Pretrained) -> tuple[int, ...]:
    """Returns the first tokens of a transcript without timestamps, in the first language."""
    tokens = SpeechTokens.of(pretrained)
    language = tokens.languages[0][1] if tokens.languages else None
    task = TRANSCRIBE if TRANSCRIBE in dict(tokens.tasks) else None
    first = tokens.prefix(language, task, timestamps=False)
    unnamed = named_token(pretrained, NO_TIMESTAMPS)
    if tokens.no_timestamps is None and unnamed is not None and unnamed not in first:
        first.append(unnamed)  # older files lack the field
    return tuple(first)


def end_token(pretrained: Pretrained) -> int | None:
    """Returns the token that ends a transcript, from config.json or else by name."""
    token = pretrained.checkpoint.hf_config.values.get("eos_token_id")
    return named_token(pretrained, END) if token is None else token


def named_token(pretrained: Pretrained, name: str) -> int | None:
    """Returns the token with a name in a model's tokenizer, or None."""
    tokenizer = pretrained.tokenizer
    return None if tokenizer is None else tokenizer.token_to_id(name)


def check_names(pretrained: Pretrained, option: str) -> None:
    """Raises ConfigError unless the tokenizer has special tokens with Whisper's names."""
    if pretrained.tokenizer is None:
        raise ConfigError(
            f"{option}: {pretrained.folder} has no tokenizer, in which engines look up tokens by "
            "their names: copy tokenizer.json of the checkpoint there"
        )
    tokens = SpeechTokens.of(pretrained)
    wanted = {
        END: ("eos_token_id", end_token(pretrained)),
        START: ("decoder_start_token_id", tokens.start),
        NO_TIMESTAMPS: ("no_timestamps_token_id", tokens.no_timestamps),
    }
    for name, (field, token) in wanted.items():
        found = named_token(pretrained, name)
        if found is None or token not in (found, None):
            raise ConfigError(
                f"{option}: {field} = {token}: must be the token {name!r} of the tokenizer, which "
                f"is {'missing' if found is None else found}: engines look it up by this name; "
                "give the model the tokenizer of a published Whisper"
            )


def _tones(samples: int, rate: int) -> np.ndarray:
    """Returns a tone of varying pitch and loudness, with noise: float32 `[samples]`."""
    time = np.arange(samples) / rate
    pitch = 400 + 250 * np.sin(2 * np.pi * 0.7 * time)
    loudness = 0.2 * (1 + np.sin(2 * np.pi * 1.9 * time))
    noise = 0.02 * np.random.default_rng(0).normal(size=samples)
    return (loudness * np.sin(2 * np.pi * np.cumsum(pitch) / rate) + noise).astype(np.float32)
