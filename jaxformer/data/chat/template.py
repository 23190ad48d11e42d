"""Chat templates, which format messages as the text that a model expects, as in transformers.

A template is a program by the model's publisher. Jinja's sandbox protects files and Python's
internals, but does not limit time or memory: `'a' * 10**9` is one operation. So `renderer.py`
compiles and renders a template in a separate process, whose processor time and memory the operating
system limits. It takes a tenth of a second to start, and renders any number of chats.
"""

import json
import re
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jinja2.utils

from jaxformer.data.chat import renderer
from jaxformer.data.tokenizers.auto import UnreadableTokenizerError
from jaxformer.data.tokenizers.files import SETTINGS, ask_about, read_settings
from jaxformer.errors import ArgumentError, DataError
from jaxformer.io.model_files import TEMPLATES, read_object, small_file_in
from jaxformer.io.scripts import run_script

TEMPLATE = "chat_template.jinja"
SPECIAL_TOKENS = "special_tokens_map.json"
_FOR_TOOLS = "tool_use"
"""The name of the template for chats with tools, if there are several templates."""
_LARGEST = 10**6
"""The maximum size of a template's file in bytes; published ones have a few thousand."""
_PATIENCE = 60
"""The number of seconds after which the renderer is stopped even if it gets no processor time."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names of the reasoning before an answer."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")

Message = Mapping[str, Any]
"""A message as templates of transformers read it: "role", "content", "tool_calls", ..."""


class Conversation(NamedTuple):
    """A chat, as read from one row of a file."""

    messages: Sequence[Message]
    """The messages, at least one."""
    tools: Sequence[Any] | None = None
    """JSON schemas of the functions that the assistant may call."""
    variables: Mapping[str, Any] = {}
    """Other variables of the template."""
    first: int = 0
    """The number of messages at the start that are context, whose answers are not learned."""
    where: str = ""
    """ "file:line", for messages."""
    plain: bool = False
    """Whether the two messages are a text and its continuation, outside of any chat template."""

    def values(self) -> list[Any]:
        """Returns the values that the template reads, which `with_values` replaces."""
        return [self.messages, self.tools, self.variables]

    def with_values(self, values: list[Any]) -> "Conversation":
        """Returns the conversation with other messages, tools and variables."""
        messages, tools, variables = values
        return self._replace(messages=messages, tools=tools, variables=variables)


class Rendered(NamedTuple):
    """A chat as text."""

    text: str
    """The text, special tokens included."""
    spans: tuple[tuple[int, int], ...]
    """The (start, end) of each `{% generation %}` block in the text, in characters."""
    prefixes: tuple[int | None, ...]
    """The length of each requested prefix; None if the text does not begin with it."""
    tails: tuple[str | None, ...] = ()
    """The end of each prefix from its last mark on, if there are marks; None if it is refused."""


class RenderRequest(NamedTuple):
    """A chat to render."""

    chat: Conversation
    add_generation_prompt: bool = False
    """Whether to end the text with the header of an answer."""
    prefixes: tuple[tuple[int, bool], ...] = ()
    """(n, add_generation_prompt) of prefixes to measure: the text of the first n messages."""


@dataclass(frozen=True)
class ChatTemplate:
    """Formats the messages of a chat as one text."""

    file: Path
    """The file of the template."""

    source: str = field(repr=False)
    """The template, which is known to compile."""

    special_tokens: Mapping[str, str]
    """The special tokens by the names that templates use: "bos_token", ..."""

    @cached_property
    def has_generation(self) -> bool:
        """Whether the template marks the assistant's text with `{% generation %}`."""
        return _GENERATION.search(self.source) is not None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Formats a chat as text, special tokens included.

        Args:
            messages: Each with "role" ("system", "user" or "assistant") and "content".
            add_generation_prompt: Whether to end the text with the header of an answer.

        Returns:
            The text.

        Raises:
            ArgumentError: The messages cannot be written as JSON.
            DataError: The template rejects the chat, or needs too much time or memory.
        """
        request = RenderRequest(Conversation(messages), add_generation_prompt)
        return self.render_batch([request])[0].text

    def render_batch(self, requests: Iterable[RenderRequest]) -> list[Rendered]:
        """Formats many chats in one process, see `render`; an error names the line of its chat."""
        found = self.attempt_batch(requests)
        for answer in found:
            if isinstance(answer, DataError):
                raise answer
        return found

    def attempt_batch(self, requests: Iterable[RenderRequest]) -> list[Rendered | DataError]:
        """Formats many chats, and returns errors for those that the template rejects.

        The list ends after a chat that needs too much time or memory.
        """
        requests = list(requests)
        asked = [
            {"variables": self._variables(request), "prefixes": request.prefixes}
            for request in requests
        ]
        compiled, *answers = _ask(self.source, asked)
        if "error" in compiled:
            raise DataError(f"{self.file}: the template: {compiled['error']}")
        return [
            self._read(answer, request.chat.where)
            for answer, request in zip(answers, requests, strict=False)
        ]

    def error_at(self, where: str, reason: str) -> DataError:
        """Returns an error about a chat, which `where` names if it comes from a file."""
        place = f"{where}: " if where else ""
        return DataError(f"{place}{self.file}: {reason}")

    def _read(self, answer: Mapping[str, Any], where: str) -> Rendered | DataError:
        if "error" in answer:
            return self.error_at(where, f"the template refused this chat: {answer['error']}")
        return Rendered(
            answer["text"],
            tuple((start, end) for start, end in answer["spans"]),
            tuple(answer["prefixes"]),
            tuple(answer["tails"]),
        )

    def _variables(self, request: RenderRequest) -> dict[str, Any]:
        chat = request.chat
        # Templates check whether tools and documents are None.
        return {
            "messages": [_as_templates_read(message) for message in chat.messages],
            "add_generation_prompt": request.add_generation_prompt,
            "tools": chat.tools,
            "documents": None,
            **self.special_tokens,
            **chat.variables,
        }


def _as_templates_read(message: Message) -> dict[str, Any]:
    """Returns a message as transformers passes it to a template.

    A missing key and null mean the same. Reasoning has three names; templates read two of them.
    """
    message = {key: value for key, value in message.items() if value is not None}
    thought = next((message[name] for name in REASONING if name in message), None)
    if thought is None:
        return message
    return {"thinking": thought, **message, "reasoning_content": thought}


def read_chat_template(folder: str | Path) -> ChatTemplate | None:
    """Reads the chat template of a Hugging Face checkpoint.

    It is the first of chat_template.jinja, "chat_template" in tokenizer_config.json (if there are
    several, the one named "default") and chat_template.json.

    Args:
        folder: The checkpoint.

    Returns:
        The template; None if there is none.

    Raises:
        DataError: A file cannot be read, or the template is invalid.
    """
    folder = Path(folder)
    found = find_template(folder)
    if found is None:
        return None
    return compiled_template(*found, special_tokens_of(folder))


def compiled_template(file: Path, source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Compiles a template to check it, and returns it."""
    (answer,) = _ask(source, [])
    if "error" in answer:
        line = f"line {answer['line']} of the chat template" if "line" in answer else "the template"
        raise DataError(f"{file}: {line}: {answer['error']}")
    return ChatTemplate(file, source, special_tokens)


def read_template_file(file: Path) -> str:
    """Returns the text of a template's file."""
    if (size := file.stat().st_size) > _LARGEST:
        raise DataError(f"{file}: {size:,} bytes: must be at most {_LARGEST:,}")
    try:
        return file.read_text(encoding="utf-8")
    except ValueError as error:
        raise DataError(f"{file}: must be UTF-8 text: {error}") from error


def special_tokens_of(folder: Path) -> dict[str, str]:
    """Returns the special tokens of a tokenizer by their names: "bos_token", ..."""
    with suppress(UnreadableTokenizerError):
        if (answer := ask_about(folder)) is not None:
            return dict(answer.special_tokens)
    found = {}
    settings = read_object(folder, SPECIAL_TOKENS) or {}
    for name, value in (settings | read_settings(folder)).items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def find_template(folder: Path) -> tuple[Path, str] | None:
    """Returns the file of a folder's chat template and its text, unchecked, if there is one."""
    if file := small_file_in(folder, TEMPLATE):
        for_tools = small_file_in(folder, f"{TEMPLATES}/{_FOR_TOOLS}.jinja")
        special = None if for_tools is None else read_template_file(for_tools)
        return file, _joined(read_template_file(file), special)
    for name in (SETTINGS, "chat_template.json"):
        stored = (read_object(folder, name) or {}).get("chat_template")
        if stored is not None:
            return folder / name, _default(folder / name, stored)
    return None


def _default(file: Path, stored: object) -> str:
    """The template itself, or if there are several, the one named "default"."""
    for_tools = None
    if isinstance(stored, list):
        entries = [entry for entry in stored if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        stored = named.get("default")
        for_tools = named.get(_FOR_TOOLS)
    if not isinstance(stored, str) or not isinstance(for_tools, str | None):
        raise DataError(
            f'{file}: "chat_template" must be a text, or a list of objects with "name" and '
            '"template", one of them named "default"'
        )
    return _joined(stored, for_tools)


def _joined(template: str, for_tools: str | None) -> str:
    """Joins two templates, between which transformers would choose."""
    if for_tools is None:
        return template
    # The signs in the tags keep the white space around them; Jinja drops a template's last newline.
    first, second = (text.removesuffix("\n") for text in (for_tools, template))
    return f"{{% if tools is not none +%}}{first}{{%+ else +%}}{second}{{%+ endif %}}"


def _ask(source: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the results of the renderer: for the template, and for each chat."""
    try:
        lines = "".join(json.dumps(value) + "\n" for value in (source, *requests))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"messages: must be lists, dictionaries, texts and numbers: {error}"
        ) from error
    modules = (jinja2, jinja2.utils.markupsafe)
    limit = _PATIENCE + len(requests) * renderer.CPU_SECONDS
    try:
        done = run_script(
            renderer,
            given=lines.encode(),
            patience=limit,
            megabytes=renderer.MEGABYTES,
            paths={str(Path(module.__file__).parents[1]) for module in modules},
        )
    except subprocess.TimeoutExpired:
        return [{"error": f"it has not ended after {limit} seconds"}]
    # Anything after the last newline is incomplete.
    answers = [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]
    if len(answers) <= len(requests):
        answers.append({"error": _reason(done.returncode)})
    return answers


def _reason(returncode: int) -> str:
    if returncode in (-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL):
        return f"it takes longer than {renderer.CPU_SECONDS} seconds"
    return f"it needs more than {renderer.MEGABYTES} MB of memory, or is nested too deeply"
