"""The special tokens of Whisper: languages, tasks and timestamps, from generation_config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.extras import optional_module
from jaxformer.generation.config import TOKEN, recommendations
from jaxformer.generation.inputs import start_token
from jaxformer.io.model_files import GENERATION, read_object
from jaxformer.pretrained.model import Pretrained

TRANSCRIBE, TRANSLATE = TASKS = ("transcribe", "translate")
_NAMES = "transformers.models.whisper.tokenization_whisper"


@dataclass(frozen=True)
class SpeechTokens:
    """The tokens with which Whisper's answers begin, and those of its timestamps."""

    start: int
    """The token that starts a transcript."""
    languages: tuple[tuple[str, int], ...] = ()
    """Each language, such as "<|en|>", and its token; empty if the model has only one."""
    tasks: tuple[tuple[str, int], ...] = ()
    """Each task and its token."""
    no_timestamps: int | None = None
    """The token for a text without timestamps; the next id is the timestamp 0.00."""
    latest_start: int | None = None
    """The number of the latest timestamp that a text may begin with; None: any."""
    previous: int | None = None
    """The token before the text of the previous window; None if there is none."""
    forced: tuple[int | None, ...] = ()
    """The tokens after the start in older files; None stands for the language."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) of the cross-attention that follows the sound."""

    @classmethod
    def of(cls, pretrained: Pretrained, options: Mapping[str, Any] | None = None) -> "SpeechTokens":
        """Returns the special tokens of a model.

        The options have `lang_to_id` and others; None: those that the model's
        generation_config.json or config.json recommends.
        """
        values = pretrained.checkpoint.hf_config.values
        own = options
        if own is None and pretrained.folder is not None:
            own = read_object(pretrained.folder, GENERATION)
        forced = (own or {}).get("forced_decoder_ids") or values.get("forced_decoder_ids") or ()
        values = dict(values) if own is None else own
        size = pretrained.config.vocab_size
        suppressed = values.get("suppress_tokens") or ()
        previous = values.get("prev_sot_token_id")
        if previous is None and len(suppressed) >= 2:
            previous = suppressed[-2]
        return cls(
            start_token(
                pretrained.config, recommendations(pretrained) if options is None else options
            ),
            _table(values, "lang_to_id", size),
            _table(values, "task_to_id", size),
            _token(values, "no_timestamps_token_id", size),
            values.get("max_initial_timestamp_index"),
            previous,
            tuple(token for _, token in forced),
            tuple(map(tuple, values.get("alignment_heads") or ())),
        )

    @property
    def first_timestamp(self) -> int:
        """The token of 0.00 seconds."""
        if self.no_timestamps is None:
            raise ConfigError(
                f"return_timestamps: no_timestamps_token_id is missing in {GENERATION}: without "
                "it, the tokens of timestamps are not known; copy the file of the checkpoint"
            )
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int | None:
        """The token for a window without speech."""
        return None if self.no_timestamps is None else self.no_timestamps - 1

    def language_token(self, language: str) -> int:
        """Returns the token of a language: of "en", "english" or "<|en|>"."""
        known = dict(self.languages)
        if not known:
            raise ConfigError(
                f"language = {language!r}: must be None: {GENERATION} has no lang_to_id, because "
                "the model has only one language, or the file is older than that field"
            )
        names = optional_module(_NAMES, "language").TO_LANGUAGE_CODE
        asked = language.lower()
        for token in (asked, f"<|{asked}|>", f"<|{names.get(asked)}|>"):
            if token in known:
                return known[token]
        codes = [token.strip("<|>") for token in known]
        spoken = {name for name, code in names.items() if code in codes}
        raise ConfigError(
            f"language = {language!r}: must be one of {', '.join(codes)}, or its name"
            f"{did_you_mean(asked, [*codes, *spoken])}"
        )

    def language_of(self, token: int) -> str | None:
        """Returns the code of a language's token, such as "en"; None for another token."""
        names = {own: name for name, own in self.languages}
        return names[token].strip("<|>") if token in names else None

    def task_token(self, task: str) -> int:
        """Returns the token of a task; ConfigError if the model has only one."""
        known = dict(self.tasks)
        if task not in known:
            given = ", ".join(known) or "None, since the model has one task"
            raise ConfigError(f"task = {task!r}: must be {given}")
        return known[task]

    def detects_language(self, language: str | None, task: str | None) -> bool:
        """Whether the language has to be detected."""
        forced = self.forced if task is None else ()
        return language is None and bool(self.languages) and (not forced or forced[0] is None)

    def prefix(
        self, language: str | int | None, task: str | None, *, timestamps: bool
    ) -> list[int]:
        """Returns the first tokens of an answer, as transformers chooses them.

        A detected language is given by its token. Without a task, the files determine it.
        """
        named = isinstance(language, str)
        tokens = [self.start]
        if task is None and not named:
            tokens += self.forced
        if language is not None:
            token = self.language_token(language) if named else language
            tokens[1:2] = [token]
        if task is not None:
            tokens.append(self.task_token(task))
        elif named and self.tasks:
            tokens.append(self.task_token(TRANSCRIBE))
        tokens = [token for token in tokens if token is not None]
        if timestamps:
            return tokens[:-1] if tokens[-1] == self.first_timestamp - 1 else tokens
        if self.no_timestamps is None or tokens[-1] == self.no_timestamps:
            return tokens
        return [*tokens, self.no_timestamps]


def _token(values: Mapping[str, Any], name: str, size: int) -> int | None:
    """Returns a token of the vocabulary, or None if the file does not name it."""
    token = values.get(name)
    if token is not None and not (TOKEN.allows(token) and token < size):
        raise ConfigError(
            f"{name} = {token!r} in {GENERATION}: must be a token of the model, 0 to {size - 1}"
        )
    return token


def _table(values: Mapping[str, Any], name: str, size: int) -> tuple[tuple[str, int], ...]:
    """Returns the names and tokens in a field."""
    table = values.get(name) or {}
    return tuple((key, _token(table, key, size)) for key in table)
