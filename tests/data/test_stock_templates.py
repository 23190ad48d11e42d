"""The chat templates that TRL ships, rendered: the texts are those of apply_chat_template."""

import re

import pytest
from chat_cases import STOCK, STOCK_TOKENS, TOOLS

from jaxformer.data.chat.template import ChatTemplate, Conversation, RenderRequest
from jaxformer.errors import DataError

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def said(role, content, **more):
    return {"role": role, "content": content, **more}


ASKED, ANSWERED = said("user", " How deep is it?\n"), said("assistant", "40 <m> & 'more' é🙂")
CALL = {"type": "function", "function": {"name": "depth", "arguments": {"lake": "frozen é"}}}
CALLED = [
    ASKED,
    said("assistant", "", tool_calls=[CALL | {"id": "call12345"}]),
    said("tool", '{"depth": 40}', name="depth", tool_call_id="call12345"),
]
# Messages, tools.
CHATS = {
    "question": ([ASKED], None),
    "system": ([said("system", "Be brief."), ASKED], None),
    "turns": ([said("system", "Be brief."), ASKED, ANSWERED, said("user", "And?")], None),
    "answered": ([ASKED, ANSWERED, said("user", "Sure?"), said("assistant", "Yes.")], None),
    "reasoning_content": ([ASKED, said("assistant", "40", reasoning_content="So deep.")], None),
    "reasoning": ([ASKED, said("assistant", "40", reasoning="So deep.", thinking=None)], None),
    "thinking": (
        [ASKED, said("assistant", "40", thinking="So deep."), ASKED, ANSWERED | {"name": None}],
        TOOLS,
    ),
    "tools": ([*CALLED, ANSWERED, said("user", "And?")], TOOLS),
}


def expected(template, messages, tools):
    """What transformers makes of a chat: its text, or what the template raised."""
    from transformers.utils.chat_template_utils import (
        _normalize_chat_messages,
        render_jinja_template,
    )

    options = {"tools": tools, "add_generation_prompt": messages[-1]["role"] == "user"}
    chats = [_normalize_chat_messages(messages)]
    try:
        return render_jinja_template(chats, chat_template=template, **options, **STOCK_TOKENS)[0][0]
    except Exception as error:
        return error


@pytest.mark.skipif(not STOCK, reason="TRL is not installed")
@pytest.mark.parametrize("file", STOCK, ids=lambda file: file.stem)
@pytest.mark.quick("qwen3", "llama3*", "gemma", "mistral*", "deepseekv3")
def test_texts_are_those_of_transformers(file):
    template = ChatTemplate(file, file.read_text(encoding="utf-8"), STOCK_TOKENS)
    answers = {name: expected(template.source, *chat) for name, chat in CHATS.items()}
    requests = {
        name: RenderRequest(Conversation(*chat), chat[0][-1]["role"] == "user")
        for name, chat in CHATS.items()
    }
    refused = [name for name, answer in answers.items() if isinstance(answer, Exception)]
    for name in refused:
        with pytest.raises(DataError, match=re.escape(str(answers.pop(name)))):
            template.render_batch([requests.pop(name)])
    found = template.render_batch(requests.values())
    assert {name: each.text for name, each in zip(requests, found, strict=True)} == answers
    assert len(refused) < len(CHATS)
