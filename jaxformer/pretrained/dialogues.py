"""Turns messages into prompts with a model's chat template, and answers into messages."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.data.chat.dialogue.dialogue import Answer, Dialogue, Tools
from jaxformer.data.chat.template import Message, read_chat_template
from jaxformer.errors import ArgumentError, DataError
from jaxformer.hub.inputs import padded_prompts
from jaxformer.pretrained.checkpoint import template_folder
from jaxformer.pretrained.model import Arrays, Pretrained

Inputs = Arrays | Sequence[Message] | Sequence[Sequence[Message]]
"""Arrays by their names in transformers, or one or more conversations."""
_DIALOGUES: weakref.WeakKeyDictionary[Pretrained, Dialogue] = weakref.WeakKeyDictionary()


def conversations_in(inputs: Any) -> list[Sequence[Message]] | None:
    """Returns the conversations in inputs, or None for arrays."""
    if isinstance(inputs, str | Mapping) or not isinstance(inputs, Sequence) or not inputs:
        return None
    if _are_messages(inputs):
        return [inputs]
    return list(inputs) if all(map(_are_messages, inputs)) else None


def dialogue_of(pretrained: Pretrained) -> Dialogue | None:
    """Returns a model's chat template with its tokenizer, if any; cached with the model."""
    folder = pretrained.folder
    if pretrained not in _DIALOGUES and folder is not None:
        template = read_chat_template(template_folder(folder))
        if template is not None:
            rust = pretrained.prompt_encoder.tokenizer
            _DIALOGUES[pretrained] = Dialogue(rust, template, folder)
    return _DIALOGUES.get(pretrained)


def require_dialogue(pretrained: Pretrained) -> Dialogue:
    """Returns `dialogue_of` a model; raises DataError if it has no template."""
    found = dialogue_of(pretrained)
    if found is None:
        raise DataError(
            f"{pretrained.folder or 'the model'} has no chat template, which messages need: give "
            "a text or its tokens instead"
        )
    return found


def prompts_of(pretrained: Pretrained, chats: Sequence[Sequence[Message]]) -> list[np.ndarray]:
    """Returns the tokens of each conversation, up to the header of the next answer, int32 `[T]`."""
    dialogue = require_dialogue(pretrained)
    return [dialogue.prompt(chat) for chat in chats]


def with_prompts(pretrained: Pretrained, inputs: Inputs) -> Arrays:
    """Converts messages to "input_ids" and "attention_mask" `[B, T]`; returns arrays unchanged.

    Shorter conversations are padded on the right.
    """
    chats = conversations_in(inputs)
    if chats is None:
        return inputs
    return padded_prompts(prompts_of(pretrained, chats), 0, left=False)


class Conversations:
    """Conversations for a model to continue, and the functions that it may call."""

    def __init__(
        self, pretrained: Pretrained, chats: Sequence[Sequence[Message]], tools: Tools | None
    ):
        self._dialogue = require_dialogue(pretrained)
        self._chats = chats
        self._tools = self._dialogue.checked(tools)
        self.prompts = [self._dialogue.prompt(chat, self._tools) for chat in chats]

    @classmethod
    def of(cls, pretrained: Pretrained, inputs: Any, tools: Tools | None) -> "Conversations | None":
        """Returns the conversations in inputs of `generate`, or None if they are not messages."""
        chats = conversations_in(inputs)
        if chats is None and tools is not None:
            raise ArgumentError(
                'tools: must come with messages, such as [{"role": "user", "content": "..."}], '
                "whose chat template writes them"
            )
        return None if chats is None else cls(pretrained, chats, tools)

    @property
    def end_of_turn(self) -> int | None:
        """The token that ends an answer in the chat template, if any."""
        return self._dialogue.end_of_turn

    def messages(self, tokens: Sequence[np.ndarray], texts: Sequence[str]) -> list[dict[str, Any]]:
        """Returns answers as messages."""
        count = len(tokens) // len(self.prompts)
        answers = [
            Answer(self.prompts[n // count], *row, num_calls=num_calls(self._chats[n // count]))
            for n, row in enumerate(zip(tokens, texts, strict=True))
        ]
        return self._dialogue.answers(answers, self._tools)


def num_calls(messages: Sequence[Message]) -> int:
    """Returns the number of tool calls in messages."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def _are_messages(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return is_list and all(isinstance(message, Mapping) for message in value)
