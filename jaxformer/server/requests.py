"""Reads and checks the body of a request in OpenAI's format."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxformer.data.files.lines import encodable
from jaxformer.errors import ConfigError, DataError, did_you_mean, shortened
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.engine import engine_for
from jaxformer.generation.inputs import rows_of, texts_of, tokenize
from jaxformer.pretrained.dialogues import Conversations
from jaxformer.pretrained.model import Pretrained

_OPTIONS = {
    "frequency_penalty": "frequency_penalty",
    "max_completion_tokens": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
    "stop": "stop_strings",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
"""Option of a body -> field of `GenerationConfig`."""
_WITHOUT_EFFECT = {
    "best_of": (1,),
    "echo": (False,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Unsupported options -> the accepted values, which have no effect."""
_OTHERS = ("logprobs", "messages", "model", "n", "prompt", "stream", "stream_options", "user")
MOST_TEXTS = 64
"""The maximum number of texts of a request."""


@dataclass(frozen=True)
class Body:
    """The checked contents of a request."""

    prompts: list[Sequence[int]]
    """The tokens of each prompt."""
    configs: list[GenerationConfig]
    """The options for each prompt, which differ in the number of new tokens."""
    count: int
    """The number of texts for each prompt."""
    log_probs: bool
    stream: bool
    include_usage: bool
    """Whether a stream ends with an event that counts tokens."""


def read_body(body: Mapping[str, Any], pretrained: Pretrained, chat: bool, max_tokens: int) -> Body:
    """Reads and checks the body of a request: messages for a chat, otherwise prompts.

    `max_tokens` limits the number of new tokens; it is also the default, if so many fit.

    Raises:
        ConfigError: An option has a wrong value.
        DataError: A prompt cannot be read.
    """
    body = {name: value for name, value in body.items() if value is not None}
    _check_names(body)
    count = _typed(body, "n", int, 1)
    if not 1 <= count <= MOST_TEXTS:
        raise ConfigError(f"n = {count}: must be from 1 to {MOST_TEXTS}")
    options = {_OPTIONS[name]: value for name, value in body.items() if name in _OPTIONS}
    stop = options.get("stop_strings", ())
    options["stop_strings"] = (stop,) if isinstance(stop, str) else tuple(_list("stop", stop))
    options.setdefault("seed", secrets.randbits(32))
    options |= {"num_beams": 1, "num_return_sequences": 1}  # a model's files may recommend others
    given = options.pop("max_new_tokens", None)
    if given is not None and (type(given) is not int or not 1 <= given <= max_tokens):
        raise ConfigError(f"max_tokens = {shortened(given)}: must be from 1 to {max_tokens}")
    config = generation_config_for(pretrained, options)
    if chat:
        conversations = Conversations(pretrained, [_messages(body)], None)
        prompts = [row.tolist() for row in conversations.prompts]
        config = config.with_end_token(conversations.end_of_turn, options)
    else:
        prompts = _prompts(body, pretrained)
    if len(prompts) * count > MOST_TEXTS:
        raise ConfigError(
            f"prompt: {len(prompts)} with n = {count}: must be {MOST_TEXTS} texts at most"
        )
    rooms = [_max_new_tokens(pretrained, prompt, given, max_tokens) for prompt in prompts]
    extra = _typed(body, "stream_options", dict, {})
    # For completions, this is the number of alternatives to return for each chosen token.
    log_probs = body.get("logprobs", False)
    if log_probs not in ((True, False) if chat else (False, 0)):
        raise ConfigError(
            f"logprobs = {log_probs!r}: must be {'true or false' if chat else '0'}: only the "
            "chosen tokens have log-probabilities here"
        )
    widths = [1 if pretrained.config.is_encoder_decoder else len(prompt) for prompt in prompts]
    return Body(
        prompts,
        [
            replace(config, max_new_tokens=room, max_length=None).for_width(width)
            for room, width in zip(rooms, widths, strict=True)
        ],
        count,
        log_probs if chat else "logprobs" in body,
        _typed(body, "stream", bool, False),
        _typed(extra, "include_usage", bool, False),
    )


def _check_names(body: Mapping[str, Any]) -> None:
    known = (*_OPTIONS, *_WITHOUT_EFFECT, *_OTHERS)
    for name, value in body.items():
        if name not in known:
            raise ConfigError(f"{name}: is not known{did_you_mean(name, known)}")
        if name in _WITHOUT_EFFECT and value not in _WITHOUT_EFFECT[name]:
            raise ConfigError(
                f"{name} = {shortened(value)}: must be left out: this server does not support it"
            )


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name, default)
    if type(value) is not kind:
        raise ConfigError(f"{name} = {shortened(value)}: must be of type {kind.__name__}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} = {shortened(value)}: must be a string or a list")
    return list(value)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a chat; contents may be lists of parts."""
    messages = _list("messages", body.get("messages", ()))
    if not messages:
        raise ConfigError('messages: must be a list of {"role": "user", "content": "..."}')
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ConfigError(f"messages: number {number} must be an object with a role")
    return [message | {"content": _content(message)} for message in messages]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in _list("content", parts)
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"content = {shortened(content)}: must be a text or parts of type text")
    return "".join(texts)


def _prompts(body: Mapping[str, Any], pretrained: Pretrained) -> list[Sequence[int]]:
    """Returns the tokens of each prompt: a text, several texts, or lists of tokens."""
    given = body.get("prompt")
    if not isinstance(given, str | list) or not given:
        raise DataError("prompt: must be a text, or a non-empty list of texts or tokens")
    if (texts := texts_of(given)) is not None:
        return [tokenize(pretrained, encodable(text, "prompt")) for text in texts]
    try:
        rows = rows_of(given)
    except (TypeError, ValueError, IndexError) as error:
        raise DataError("prompt: must be a text, or a list of texts or tokens") from error
    size = pretrained.config.vocab_size
    for row in rows:
        if not len(row) or row.min() < 0 or row.max() >= size:
            raise DataError(f"prompt: must have at least one token, from 0 to {size - 1}")
    return [row.tolist() for row in rows]


def _max_new_tokens(
    pretrained: Pretrained, prompt: Sequence[int], given: int | None, most: int
) -> int:
    """Returns the number of new tokens: as requested, or else as many as fit."""
    config = pretrained.config
    limit = engine_for(pretrained).max_length
    used = 1 if config.is_encoder_decoder else len(prompt)
    if config.is_encoder_decoder and len(prompt) > (config.position.max_length or len(prompt)):
        limit, used = config.position.max_length, len(prompt)
    room = most if limit is None else limit - used
    if room < 1 or (given is not None and given > room):
        raise ConfigError(
            f"max_tokens = {given or 1}: with a prompt of {len(prompt)} tokens the model has room "
            f"for {max(room, 0)} more: request fewer, or shorten the prompt"
        )
    return min(most, room) if given is None else given
