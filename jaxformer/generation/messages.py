"""Conversations as prompts of a generation, and what was generated as messages."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.data.chat.dialogue.dialogue import Answer, Dialogue, Tools
from jaxformer.data.chat.template import Message
from jaxformer.errors import ArgumentError
from jaxformer.generation.config import GenerationConfig
from jaxformer.pretrained.dialogues import conversations_in, needed_dialogue
from jaxformer.pretrained.model import Pretrained


class Conversations:
    """Conversations that a model goes on with.

    Args:
        pretrained: The model.
        chats: The messages of each.
        tools: JSON schemas of the functions that it may call.
    """

    def __init__(
        self, pretrained: Pretrained, chats: Sequence[Sequence[Message]], tools: Tools | None
    ):
        self._dialogue, self._chats = needed_dialogue(pretrained), chats
        self._tools = self._dialogue.checked(tools)
        self.prompts = [self._dialogue.prompt(chat, self._tools) for chat in chats]

    @classmethod
    def of(cls, pretrained: Pretrained, inputs: Any, tools: Tools | None) -> "Conversations | None":
        """The conversations in the inputs of `generate`; None if those are no messages.

        Args:
            pretrained: The model.
            inputs: The inputs.
            tools: JSON schemas of the functions that it may call.

        Returns:
            The conversations.

        Raises:
            ArgumentError: There are tools without messages.
            DataError: The model has no chat template, or that rejects a conversation.
        """
        chats = conversations_in(inputs)
        if chats is None and tools is not None:
            raise ArgumentError(
                'tools: need messages, such as [{"role": "user", "content": "..."}], whose chat '
                "template writes them"
            )
        return None if chats is None else cls(pretrained, chats, tools)

    def ended(self, config: GenerationConfig, given: Mapping[str, Any]) -> GenerationConfig:
        """Returns options with which an answer ends, see `ending_turns`."""
        return ending_turns(config, self._dialogue, given)

    def messages(self, tokens: Sequence[np.ndarray], texts: Sequence[str]) -> list[dict[str, Any]]:
        """Returns answers as messages.

        Args:
            tokens: The tokens of each answer; the same number for each conversation.
            texts: Their texts.
        """
        count = len(tokens) // len(self.prompts)
        answers = [
            Answer(self.prompts[n // count], *row, num_calls=num_calls(self._chats[n // count]))
            for n, row in enumerate(zip(tokens, texts, strict=True))
        ]
        return self._dialogue.answers(answers, self._tools)


def ending_turns(
    config: GenerationConfig, dialogue: Dialogue, given: Mapping[str, Any]
) -> GenerationConfig:
    """Returns options with which the token that ends an answer in the chat template ends texts.

    Args:
        config: The options.
        dialogue: The chat template.
        given: The options that were given; end tokens among them stay alone.
    """
    end = dialogue.end_of_turn
    if end is None or "eos_token_id" in given or end in config.end_tokens:
        return config
    return dataclasses.replace(config, eos_token_id=(*config.end_tokens, end))


def num_calls(messages: Sequence[Message]) -> int:
    """Returns how many calls of tools messages have."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)
