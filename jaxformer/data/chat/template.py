"""Chat templates: messages become the text format of a model, as in transformers.

A template is a program of the model's publisher. Jinja's sandbox protects files and Python's
internals, but does not limit time or memory: `'a' * 10**9` is one operation. So `renderer.py`
compiles and renders a template in a separate process, whose processor time and memory the operating
system limits. That takes about a tenth of a second for each message of a chat.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2.utils

from jaxformer.data.chat import renderer as chat_renderer
from jaxformer.data.tokenizers.files import SETTINGS, read_settings
from jaxformer.errors import ArgumentError, DataError
from jaxformer.io.model_files import read_object, small_file_in

_LARGEST = 10**6
"""The maximum size of a template's file in bytes; published ones have a few thousand."""
_PATIENCE = 60
"""Seconds after which a renderer is stopped that gets no processor time."""


@dataclass(frozen=True)
class ChatTemplate:
    """Formats the messages of a chat as one text."""

    file: Path
    """The file of the template."""

    source: str
    """The template, known to compile."""

    special_tokens: Mapping[str, str]
    """The special tokens by the names that templates use: "bos_token", ..."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
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
        variables = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            # Templates test whether these are none.
            "tools": None,
            "documents": None,
            **self.special_tokens,
        }
        answer = _ask(self.source, variables)
        if "error" in answer:
            raise DataError(f"{self.file}: the template refused this chat: {answer['error']}")
        return answer["text"]


def read_chat_template(folder: str | Path) -> ChatTemplate | None:
    """Reads the chat template of a Hugging Face checkpoint.

    It is the first of chat_template.jinja, "chat_template" in tokenizer_config.json (if there are
    several, the one named "default") and chat_template.json. The special tokens are those of
    tokenizer_config.json.

    Args:
        folder: The checkpoint.

    Returns:
        The template; None if there is none.

    Raises:
        DataError: A file cannot be read, or the template is invalid.
    """
    folder = Path(folder)
    found = _find(folder)
    if found is None:
        return None
    file, source = found
    answer = _ask(source, None)
    if "error" in answer:
        line = f"line {answer['line']} of the chat template" if "line" in answer else "the template"
        raise DataError(f"{file}: {line}: {answer['error']}")
    return ChatTemplate(file, source, _special_tokens(folder))


def _find(folder: Path) -> tuple[Path, str] | None:
    if file := small_file_in(folder, "chat_template.jinja"):
        if (size := file.stat().st_size) > _LARGEST:
            raise DataError(f"{file}: {size:,} bytes: must be at most {_LARGEST:,}")
        try:
            return file, file.read_text(encoding="utf-8")
        except ValueError as error:
            raise DataError(f"{file}: must be UTF-8 text: {error}") from error
    for name in (SETTINGS, "chat_template.json"):
        stored = (read_object(folder, name) or {}).get("chat_template")
        if stored is not None:
            return folder / name, _default(folder / name, stored)
    return None


def _default(file: Path, stored: object) -> str:
    """The template itself, or the one of several that is named "default"."""
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
    found = {}
    for name, value in read_settings(folder).items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _ask(source: str, variables: dict[str, Any] | None) -> dict[str, Any]:
    """Runs the renderer; without variables the template is only compiled."""
    try:
        request = json.dumps({"source": source, "variables": variables})
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"messages: must be lists, dictionaries, texts and numbers: {error}"
        ) from error
    # Without site-packages, whose start-up files would take most of the time.
    paths = sorted(
        {str(Path(module.__file__).parents[1]) for module in (jinja2, jinja2.utils.markupsafe)}
    )
    script = (
        f"import runpy, sys; sys.path += {paths}; "
        f"runpy.run_path({chat_renderer.__file__!r}, run_name='__main__')"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", script],
            input=request.encode(),
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it has not ended after {_PATIENCE} seconds"}
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"error": f"it computes for longer than {chat_renderer.CPU_SECONDS} seconds"}
    return {
        "error": f"it needs more than {chat_renderer.MEGABYTES} MB of memory, or is nested too "
        "deeply"
    }
