"""Chat templates: messages become the text that a model was tuned on, as in transformers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jaxformer.errors import DataError
from jaxformer.generation.tokenizer_files import SETTINGS, read_json_object
from jaxformer.model_files import small_file_in


@dataclass(frozen=True)
class ChatTemplate:
    """How the messages of a chat are written as one text."""

    file: Path
    """Where the template was found."""

    template: jinja2.Template

    special_tokens: Mapping[str, str]
    """What the template may write, by the name under which it knows it: "bos_token", ..."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Returns the text of a chat; it holds all special tokens that its ids will have.

        Args:
            messages: Each with "role" ("system", "user" or "assistant") and "content".
            add_generation_prompt: Whether the text ends with what precedes an answer.

        Raises:
            DataError: The template cannot write such a chat; with the reason that it gives.
        """
        try:
            return self.template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                # Templates ask whether these are none.
                tools=None,
                documents=None,
                **self.special_tokens,
            )
        except Exception as error:  # the template is a program, and may fail like any other
            raise DataError(f"{self.file}: the template refused this chat: {error}") from error


def read_chat_template(folder: str | Path) -> ChatTemplate | None:
    """Reads the chat template of a folder that transformers saved; None if it has none.

    It is the first of chat_template.jinja, "chat_template" in tokenizer_config.json (where one of
    several is named "default") and chat_template.json. The special tokens are those of
    tokenizer_config.json.

    Raises:
        DataError: A file cannot be read, or the template is not valid.
    """
    folder = Path(folder)
    found = _find(folder)
    if found is None:
        return None
    file, source = found
    try:
        template = _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise DataError(
            f"{file}: line {error.lineno} of the chat template: {error.message}"
        ) from error
    return ChatTemplate(file, template, _special_tokens(folder))


def _find(folder: Path) -> tuple[Path, str] | None:
    if file := small_file_in(folder, "chat_template.jinja"):
        try:
            return file, file.read_text(encoding="utf-8")
        except ValueError as error:
            raise DataError(f"{file}: must be UTF-8 text: {error}") from error
    for file in (folder / SETTINGS, folder / "chat_template.json"):
        stored = read_json_object(file).get("chat_template")
        if stored is not None:
            return file, _default(file, stored)
    return None


def _default(file: Path, stored: object) -> str:
    """The template itself, or of several that with the name "default"."""
    if isinstance(stored, list):
        named = [entry for entry in stored if isinstance(entry, dict)]
        stored = {entry.get("name"): entry.get("template") for entry in named}.get("default")
    if not isinstance(stored, str):
        raise DataError(
            f'{file}: "chat_template" must be a text, or a list of objects with "name" and '
            '"template", one of them named "default"'
        )
    return stored


def _special_tokens(folder: Path) -> dict[str, str]:
    file = folder / SETTINGS
    found = {}
    for name, value in read_json_object(file).items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates are written for; a sandbox, because they are programs of strangers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment


class _Generation(Extension):
    """Reads `{% generation %}`: it marks what an assistant says for training, and writes it."""

    tags = frozenset({"generation"})

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Unlike jinja's own filter, it leaves <, > and & as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
