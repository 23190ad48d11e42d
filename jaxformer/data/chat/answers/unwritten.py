"""Warns about chat templates that leave out the reasoning or the tool calls of answers."""

import logging
from collections.abc import Sequence
from itertools import islice

from jaxformer.data.chat.answers.spans import answers_of, content_text, name_of_call
from jaxformer.data.chat.calls import call_form, convert_calls
from jaxformer.data.chat.template import (
    REASONING,
    ChatTemplate,
    Conversation,
    Rendered,
    RenderRequest,
)

_TRIED = 100
"""The number of conversations with reasoning, or with calls, that are rendered for this check."""
_log = logging.getLogger(__name__)


def warn_about_unwritten(template: ChatTemplate, chats: Sequence[Conversation]) -> None:
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
