"""A dialogue with a model: turns messages into a prompt, and an answer into a message."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxformer.data.chat.calls import function_of, writes_tools
from jaxformer.data.chat.dialogue.call_syntax import CallSyntax, call_syntax
from jaxformer.data.chat.dialogue.responses import Response, read_responses
from jaxformer.data.chat.encoder import ChatEncoder
from jaxformer.data.chat.messages import check_messages
from jaxformer.data.chat.template import ChatTemplate, Message
from jaxformer.data.tokenizers.special_tokens import special_tokens_in
from jaxformer.errors import ArgumentError, DataError, shortened
from jaxformer.extras import optional_module
from jaxformer.io.notices import warn_once

Tools = Sequence[Mapping[str, Any] | Callable[..., Any]]
"""JSON schemas of functions: {"type": "function", "function": {"name", "description",
"parameters"}}, ...; or functions, whose annotations and docstrings transformers reads."""


class Answer(NamedTuple):
    """An answer that a model wrote after a prompt."""

    prompt: np.ndarray
    """The tokens of the prompt, int32 `[T]`."""
    tokens: np.ndarray
    """The tokens of the answer, int32 `[N]`."""
    text: str
    """Its text, without special tokens and stop strings."""
    num_calls: int = 0
    """The number of tool calls in the messages before it."""


class Dialogue:
    """The chat template of a model, with its tokenizer.

    Settings in the model's folder may define how answers are read.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, folder: Path):
        self._tokenizer = tokenizer
        self._template = template
        self._folder = folder
        self._encoder = ChatEncoder(tokenizer, template)
        self._special = special_tokens_in(tokenizer)

    @cached_property
    def end_of_turn(self) -> int | None:
        """The special token that ends an answer; None if the template writes none."""
        return self._encoder.end_of_turn()

    def prompt(self, messages: Sequence[Message], tools: Tools | None = None) -> np.ndarray:
        """Returns the tokens of a conversation up to the header of the next answer, int32 `[T]`."""
        check_messages("messages", messages)
        if messages[-1]["role"] == "assistant":
            raise DataError(
                f"messages: message {len(messages)} is the assistant's: must be a question, or "
                "the answer of a tool"
            )
        tools = self.checked(tools)
        tooled = (
            n for n, m in enumerate(messages, 1) if m.get("tool_calls") or m["role"] == "tool"
        )
        place = next(tooled, None)
        if place is not None and not self._encoder.call_form.is_written:
            raise DataError(
                f"messages: message {place}: {self._template.file} does not support tools and "
                "would leave it out: write calls and their results into the contents"
            )
        return self._encoder.encode_prompt(messages, tools)

    def checked(self, tools: Tools | None) -> list[dict[str, Any]] | None:
        """Returns tools in the form that templates read, see `checked_tools`."""
        tools = checked_tools(tools)
        if tools and not self._writes_tools:
            raise DataError(
                f"{self._template.file}: the chat template does not support tools: leave them "
                "out, or choose a model that was trained to call them"
            )
        return tools

    def answers(self, answers: Sequence[Answer], tools: Tools | None = None) -> list[dict]:
        """Returns the answers of a model as messages."""
        tools = checked_tools(tools)
        responses = (
            Response(self._decoded(each.tokens), self._decoded(each.prompt), tools)
            for each in answers
        )
        read = read_responses(self._folder, responses) or [None] * len(answers)
        found = []
        for answer, message in zip(answers, read, strict=True):
            message = message or self._by_syntax(answer, tools)
            if calls := message.get("tool_calls"):
                numbers = range(answer.num_calls, answer.num_calls + len(calls))
                pairs = zip(calls, numbers, strict=True)
                message["tool_calls"] = [{"id": f"call{n:05d}", **call} for call, n in pairs]
            found.append({"role": "assistant", "content": "", **message})
        return found

    def _by_syntax(self, answer: Answer, tools: Tools | None) -> dict[str, Any]:
        if not tools or self._syntax is None:
            return {"content": answer.text}
        parts = self._syntax.parts()
        kept = {id_ for id_, name in self._special.items() if name in parts}
        text = self._decoded([t for t in answer.tokens if t in kept or t not in self._special])
        found = self._syntax.find(text, [tool["function"]["name"] for tool in tools])
        if not found.calls:
            return {"content": answer.text}
        calls = []
        for call in found.calls:
            function = {"name": call.name, "arguments": dict(call.arguments)}
            named = {} if call.id is None else {"id": call.id}
            calls.append({**named, "type": "function", "function": function})
        return {"content": found.text, "tool_calls": calls}

    @cached_property
    def _syntax(self) -> CallSyntax | None:
        return call_syntax(self._template, self._encoder.call_form)

    @cached_property
    def _writes_tools(self) -> bool:
        return writes_tools(self._template)

    def _decoded(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode([int(t) for t in tokens], skip_special_tokens=False)


def _schema(function: Callable[..., Any], number: int) -> dict[str, Any]:
    """The JSON schema of a Python function."""
    utils = optional_module("transformers.utils.chat_template_utils", "a function as a tool")
    try:
        return utils.get_json_schema(function)
    except Exception as error:  # transformers raises several errors about docstrings
        raise ArgumentError(f"tools: tool {number} = {function!r}: {error}") from error


def checked_tools(tools: Tools | None) -> list[dict[str, Any]] | None:
    """Returns the schemas of tools in the form that templates read; None if there are none."""
    if tools is None:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise ArgumentError(f"tools = {shortened(tools)}: must be a list of JSON schemas")
    found = []
    for number, tool in enumerate(tools, start=1):
        tool = _schema(tool, number) if callable(tool) else tool
        function = function_of(tool)
        if function is None or not isinstance(function.get("name"), str):
            raise ArgumentError(
                f"tools: tool {number} = {shortened(tool)}: must be an object such as "
                '{"type": "function", "function": {"name": ..., "description": ..., "parameters": '
                "...}}"
            )
        if function is tool:
            warn_once(
                f'tools: {function["name"]} is wrapped in {{"type": "function", "function": ...}}, '
                "which chat templates read"
            )
            tool = {"function": {k: v for k, v in tool.items() if k != "type"}}
        found.append({"type": "function", **tool})
    return found or None
