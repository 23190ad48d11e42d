"""Chooses the chat template of a run: a named one, a file, or the checkpoint's own."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from jaxformer.data.chat.answers.spans import answers_of, content_text, name_of_call
from jaxformer.data.chat.calls import call_form, convert_calls, writes_tools
from jaxformer.data.chat.encoder import ChatEncoder
from jaxformer.data.chat.template import (
    REASONING,
    SPECIAL_TOKENS,
    TEMPLATE,
    ChatTemplate,
    Conversation,
    Rendered,
    RenderRequest,
    compiled_template,
    read_chat_template,
    read_template_file,
    special_tokens_of,
)
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerFile, TokenizerSpec
from jaxformer.errors import ConfigError, DataError, did_you_mean
from jaxformer.io.files import write_text
from jaxformer.io.paths import any_path, is_remote
from jaxformer.io.staging import staged

_NAMED = Path(__file__).parent / "templates"
TEMPLATE_NAMES = ("ChatML", "Llama2", "Llama3", "Mistral")
"""The templates that are included in the library."""
_SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip
_TRIED = 100
"""The number of conversations with reasoning, or with calls, whose rendered text is checked."""
_log = logging.getLogger(__name__)


def template_file(name: str) -> Path:
    """Returns the file of a template."""
    known = {spelling.lower(): spelling for spelling in TEMPLATE_NAMES}
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if plain in known:
        return _NAMED / f"{plain}.jinja"
    path = any_path(name, "data.template")
    if is_remote(path) and path.is_file():
        path = staged(path)
    if not path.is_file():
        hint = did_you_mean(name, TEMPLATE_NAMES)
        raise ConfigError(
            f"data.template = {name!r}: must be {', '.join(TEMPLATE_NAMES)} or the path of a "
            f".jinja file{hint}"
        )
    return path


def check_template_name(name: str | None) -> None:
    """Checks the name of a template; its file need not exist.

    A run saves its template, so its file may be deleted later.
    """
    if name is not None and not (os.sep in name or Path(name).suffix):
        template_file(name)


def run_template(
    folder: str | os.PathLike, name: str | None, spec: TokenizerSpec
) -> ChatTemplate | None:
    """Returns the chat template of a run, which `keep_template` saves next to the tokenizer."""
    home = Path(folder, "tokenizer")
    kept = read_chat_template(home) if (home / TEMPLATE).exists() else None
    if kept is not None and name is not None and not _is_there(name):
        return kept
    origin = _origin(spec)
    tokens = ({} if origin is None else special_tokens_of(origin)) | special_tokens_of(home)
    if name is not None:
        file = template_file(name)
        template = compiled_template(file, read_template_file(file), tokens)
    else:
        template = None if origin is None else read_chat_template(origin)
    if kept is not None:
        if template is not None and template.source != kept.source:
            raise DataError(
                f"{home / TEMPLATE}: not the text of {template.file}, so an earlier start had "
                "another template: use another folder, or delete this file if no model depends on "
                "it"
            )
        return kept
    return template


def keep_template(
    folder: str | os.PathLike,
    name: str | None,
    spec: TokenizerSpec,
    tokenizer: Tokenizer,
    chats: Sequence[Conversation],
) -> None:
    """Saves the template of a run next to the tokenizer, unless an earlier start did.

    A template that refuses the rows of the first start is not saved, so that another can be chosen.
    """
    home = Path(folder, "tokenizer")
    formatted = [chat for chat in chats if not chat.plain]
    if not formatted or (home / TEMPLATE).exists():
        return
    template = run_template(folder, name, spec)
    _warn_about(template, tokenizer, formatted)
    tokens = json.dumps(dict(template.special_tokens), indent=2, ensure_ascii=False)
    for file, text in ((SPECIAL_TOKENS, tokens + "\n"), (TEMPLATE, template.source)):
        write_text(home / file, text, newline="")


def text_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Returns the template of prompts and completions that are not a chat.

    They become the prompt, the completion and end-of-text, after the tokenizer's beginning-of-text
    token if it puts one before every text.
    """
    rust = tokenizer.backend_tokenizer
    file = _NAMED / "plain.jinja"
    encoding = rust.encode("a", add_special_tokens=True)
    first = encoding.tokens[0] if encoding.special_tokens_mask[0] else ""
    tokens = {"bos_token": first, "eos_token": rust.id_to_token(tokenizer.end_of_text_id)}
    return compiled_template(file, read_template_file(file), tokens)


def encoders(
    chats: Sequence[Conversation],
    folder: str | os.PathLike,
    name: str | None,
    spec: TokenizerSpec,
    tokenizer: Tokenizer,
) -> Iterator[tuple[ChatEncoder, list[Conversation]]]:
    """Yields an encoder for chats that the template formats, and one for plain texts."""
    formatted = [chat for chat in chats if not chat.plain]
    if formatted:
        template = run_template(folder, name, spec)
        if template is None:
            origin = _origin(spec)
            place = "the tokenizer has no checkpoint" if origin is None else f"{origin} has none"
            raise DataError(
                f"{formatted[0].where}: a chat template is missing: {place}; choose one: "
                f"--data.template ChatML (or {', '.join(TEMPLATE_NAMES[1:])}, or a .jinja file)"
            )
        yield ChatEncoder(tokenizer.backend_tokenizer, template), formatted
    if len(formatted) < len(chats):
        plain = [chat for chat in chats if chat.plain]
        yield ChatEncoder(tokenizer.backend_tokenizer, text_template(tokenizer)), plain


def _warn_about(
    template: ChatTemplate, tokenizer: Tokenizer, chats: Sequence[Conversation]
) -> None:
    """Warns about special tokens that the tokenizer lacks, and about tools that are left out."""
    wanted = [name for name in _SPECIAL if name in template.source]
    if lacking := [name for name in wanted if tokenizer.find_id(name) is None]:
        _log.warning(
            "%s: the tokenizer has no token %s, so in the template it is ordinary text of several "
            "tokens",
            template.file,
            ", ".join(lacking),
        )
    if (with_tools := [chat for chat in chats if chat.tools]) and not writes_tools(template):
        _log.warning(
            "%s: the template has no place for tools, which %d conversations have, the first %s",
            template.file,
            len(with_tools),
            with_tools[0].where,
        )
    _warn_about_unwritten(template, chats)


def _warn_about_unwritten(template: ChatTemplate, chats: Sequence[Conversation]) -> None:
    """Warns about a template that leaves out parts of answers other than their text."""
    for kind, parts_of in (("reasoning", _thoughts), ("calls of tools", _calls)):
        asked = [(chat, parts) for chat in chats if (parts := parts_of(chat))][:_TRIED]
        if not asked:
            continue
        form = call_form(template)
        rendered = template.attempt_batch(
            RenderRequest(convert_calls(chat._replace(tools=None), form, template.file))
            for chat, _ in asked
        )
        total, lost = 0, []
        for (chat, parts), text in zip(asked, rendered, strict=False):
            if isinstance(text, Rendered):
                written = "".join(text.text.split())
                total += len(parts)
                lost += [chat.where for part in parts if "".join(part.split()) not in written]
        if lost:
            _log.warning(
                "%s: the template leaves %s out, those of %d of %d answers, the first %s",
                template.file, kind, len(lost), total, lost[0],
            )  # fmt: skip


def _calls(chat: Conversation) -> list[str]:
    return [name for place in answers_of(chat) if (name := name_of_call(chat.messages[place]))]


def _thoughts(chat: Conversation) -> list[str]:
    """The reasoning before each answer to learn, if it has any."""
    found = []
    for message in (chat.messages[place] for place in answers_of(chat)):
        fields = (message.get(name) for name in REASONING)
        inline = content_text(message).rpartition("</think>")[0].rpartition("<think>")[2]
        texts = (text for text in (*fields, inline) if isinstance(text, str) and text.strip())
        found += islice(texts, 1)
    return found


def _is_there(name: str) -> bool:
    """Whether a template can be read; a named one always can."""
    try:
        return template_file(name).is_file()
    except ConfigError:
        return False


def _origin(spec: TokenizerSpec) -> Path | None:
    """The folder of the checkpoint that the tokenizer comes from, if any."""
    if not isinstance(spec, TokenizerFile):
        return None
    path = spec.place()
    return path if path.is_dir() else path.parent
