"""The options of generation for models that transcribe speech."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import SWITCH, Rule, one_of, optional
from jaxformer.generation.config import RULES, GenerationConfig
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.decode.timestamps import Timestamps
from jaxformer.generation.engine import Engine, engine_for, row_keys
from jaxformer.generation.inputs import FirstTokens, Prompts
from jaxformer.generation.speech.tokens import TASKS, SpeechTokens
from jaxformer.generation.tokens import new_tokens
from jaxformer.pretrained.model import Pretrained

_DETECTED = -1
"""Stands for the token of a language that is not known yet."""
_NAME = Rule(lambda value: isinstance(value, str), 'the name of a language, such as "en"')
OWN = {
    "language": optional(_NAME),
    "task": optional(one_of(TASKS)),
    "return_timestamps": SWITCH,
}
"""The rules of the fields that only speech has."""
KNOWN = (
    *OWN, "alignment_heads", "compression_ratio_threshold", "condition_on_prev_tokens",
    "forced_decoder_ids", "is_multilingual", "lang_to_id", "logprob_threshold",
    "max_initial_timestamp_index", "no_speech_threshold", "no_timestamps_token_id",
    "prev_sot_token_id", "task_to_id",
)  # fmt: skip
"""Their names, and those of the options that `SpeechTokens` and `transcribe` read."""


@dataclass(frozen=True)
class SpeechGenerationConfig(GenerationConfig):
    """How a transcript is written; the tokens are those of the model's generation_config.json."""

    rules: ClassVar[Mapping[str, Rule]] = RULES | OWN
    language: str | None = None
    """The spoken language: "en" or "english". None: it is detected."""
    task: str | None = None
    """"transcribe", or "translate" to English. None: what the files recommend, or "transcribe"."""
    return_timestamps: bool = False
    """Whether timestamps are among the tokens of the text."""
    tokens: SpeechTokens | None = None
    """The special tokens of the model."""

    def _rules(self):
        yield from super()._rules()
        if self.return_timestamps:
            (end, *_) = self.end_tokens
            yield Timestamps(self.tokens.first_timestamp, end, self.tokens.latest_start)

    def first_tokens(self, pretrained: Pretrained) -> FirstTokens:
        """Returns a function from encoder outputs to the first tokens of each row."""

        def tokens_of(encoder_outputs: EncoderOutputs) -> np.ndarray:
            rows = len(encoder_outputs[0])
            languages: list[Any] = [self.language] * rows
            if self.tokens.detects_language(self.language, self.task):
                begun = [[self.tokens.start]] * rows
                logits = next_logits(engine_for(pretrained), begun, encoder_outputs)
                languages = _likeliest(self.tokens, logits).tolist()
            timestamps = self.return_timestamps
            return np.array(
                [self.tokens.prefix(each, self.task, timestamps=timestamps) for each in languages],
                np.int32,
            )

        return tokens_of

    def opening(self, model, encoder_outputs, start):
        states, mask = encoder_outputs
        detects = self.tokens.detects_language(self.language, self.task)
        language = _DETECTED if detects else self.language
        prefix = self.tokens.prefix(language, self.task, timestamps=self.return_timestamps)
        first = jnp.broadcast_to(jnp.array(prefix, jnp.int32), (len(states), len(prefix)))
        if not detects:
            return first
        hidden = model.decode(first[:, :1], states, encoder_mask=mask)
        languages = _likeliest(self.tokens, model.logits(hidden)[:, -1])
        return jnp.where(first == _DETECTED, languages[:, None], first)

    def with_tokens(
        self, pretrained: Pretrained, options: Mapping[str, Any] | None = None
    ) -> "SpeechGenerationConfig":
        """Returns the options with the special tokens of a model, against which they are checked.

        Raises:
            ConfigError: The model lacks the language, the task or timestamps.
        """
        tokens = SpeechTokens.of(pretrained, options)
        tokens.prefix(self.language, self.task, timestamps=self.return_timestamps)
        return replace(self, tokens=tokens)


def _likeliest(tokens: SpeechTokens, logits: jax.Array | np.ndarray) -> jax.Array:
    """Returns the token of the most probable language of each row, given logits `[B, V]`."""
    known = jnp.array([token for _, token in tokens.languages], jnp.int32)
    return known[jnp.argmax(logits[:, known], axis=1)]


def next_logits(
    engine: Engine, prompts: list[list[int]], encoder_outputs: EncoderOutputs
) -> np.ndarray:
    """Returns the logits of the token after each prompt, float32 `[B, V]`."""
    found = new_tokens(
        engine,
        Prompts.of_rows(prompts),
        GenerationConfig(max_new_tokens=1),
        row_keys(0, np.arange(len(prompts))),
        encoder_outputs=encoder_outputs,
        keep_scores=True,
    )
    return found.scores[0]
