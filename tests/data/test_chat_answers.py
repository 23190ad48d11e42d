"""Answers in the published templates that TRL ships, held to its variants with marks."""

import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from chat_cases import ASSISTANT, STOCK, SYSTEM, TOOL, TOOLS, USER
from hf_checkpoints import byte_bpe
from tokenizers import AddedToken

from jaxformer.data.chat.encoder import ChatEncoder
from jaxformer.data.chat.preferences.pairs import Pair
from jaxformer.data.chat.template import Conversation, compiled_template
from jaxformer.errors import DataError

pytestmark = pytest.mark.torch

SOURCES = {file.stem: file.read_text() for file in STOCK}
NAMES = [name for name in SOURCES if not name.endswith("_training")]
WITH_TWIN = [name for name in NAMES if f"{name}_training" in SOURCES]

BOS, EOS = "<s>", "</s>"
_SPECIAL = re.compile(
    r"<\|[^|<>{}'\"\s]{1,30}\|>|<\uff5c[^\uff5c<>]{1,30}\uff5c>|<(?:start|end)_of_\w+>|</s>|"
    r"<\|(?:turn|tool_call|tool_response|channel)>|<(?:turn|tool_call|tool_response|channel)\|>|"
    r"\[gMASK\]|<sop>"
)


def _call(arguments):
    return [{"type": "function", "function": {"name": "depth", "arguments": arguments}}]


def _turns(number, reasoning=None):
    messages = []
    for turn in range(1, number + 1):
        thought = {"reasoning_content": f"Because {turn}."} if reasoning == "field" else {}
        inline = f"<think>\nBecause {turn}.\n</think>\n\n" if reasoning == "inline" else ""
        messages += [
            {"role": USER, "content": f"Question {turn}?"},
            {"role": ASSISTANT, "content": f"{inline}Answer {turn}.", **thought},
        ]
    return messages


_CALLED = [
    {"role": USER, "content": "How deep?"},
    {"role": ASSISTANT, "content": "", "tool_calls": _call({"lake": "red"})},
    {"role": TOOL, "name": "depth", "content": "40"},
]
CHATS = {
    f"{number} turns, {reasoning}": (_turns(number, reasoning), None)
    for number in (1, 2, 3)
    for reasoning in (None, "field", "inline")
} | {
    "system": ([{"role": SYSTEM, "content": "Be brief."}, *_turns(2)], None),
    "tools": ([*_CALLED, *_turns(1)[1:]], TOOLS),
    "tools, then more": ([*_CALLED, *_turns(2, "field")[1:]], TOOLS),
    "space": (
        [
            {"role": USER, "content": " a\n"},
            {"role": ASSISTANT, "content": "\n  assistant\n"},
            {"role": USER, "content": "user"},
            {"role": ASSISTANT, "content": "user "},
        ],
        None,
    ),
}


@cache
def encoder(name):
    rust, _ = byte_bpe((BOS, EOS))
    names = sorted({found for stem in NAMES for found in _SPECIAL.findall(SOURCES[stem])})
    rust.add_special_tokens([AddedToken(each, normalized=False) for each in names])
    template = compiled_template(
        Path(name), SOURCES[name], {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS}
    )
    return ChatEncoder(rust, template)


def conversations(name):
    """The chats that a template takes; some take contents as lists alone."""
    found = {}
    for kind, (messages, tools) in CHATS.items():
        if "content'][0]" in SOURCES[name] or name in ("llava_next", "smolvlm"):
            messages = [
                message | {"content": [{"type": "text", "text": message["content"]}]}
                for message in messages
            ]
        chat = Conversation(messages, tools, where=f"{kind}:1")
        with suppress(DataError):  # by the template's own rules
            encoder(name).encode_batch([chat], everything=True)
            found[kind] = chat
    return found


@pytest.mark.quick("qwen3")
@pytest.mark.parametrize("name", NAMES)
def test_every_answer_of_every_published_template_is_learned(name):
    chats = conversations(name)
    assert len(chats) >= len(CHATS) - 3
    every = encoder(name).encode_batch(chats.values())
    for (kind, chat), found in zip(chats.items(), every, strict=True):
        said = [message for message in chat.messages if message["role"] == ASSISTANT]
        learned = found.answers.max()
        assert learned == len(said), kind
        own = ["".join(found.text[a:b] for a, b in found.spans[n : n + 1]) for n in range(learned)]
        for message, text in zip(said, own, strict=True):
            content = message["content"] if isinstance(message["content"], str) else ""
            assert content.rpartition("</think>")[2].strip() in text, kind
            # A separate token ends the answer, and all of it is learned.
            assert _SPECIAL.search(text) or EOS in text, kind
        asked = [message for message in chat.messages if message["role"] == USER]
        for message in asked:
            if len(message["content"]) > 9:
                assert not any(str(message["content"]) in text for text in own), kind


@pytest.mark.quick("qwen3")
@pytest.mark.parametrize("name", WITH_TWIN)
def test_masks_are_those_of_trls_variant(name):
    """Where both write the same text, they differ in white space and in the answer's header."""
    chats = conversations(name)
    ours, theirs = encoder(name), encoder(f"{name}_training")
    header = _header(ours)
    compared = 0
    for kind, found, other in zip(
        chats,
        ours.encode_batch(chats.values()),
        theirs.encode_batch(chats.values()),
        strict=True,
    ):
        if found.text != other.text:
            continue
        compared += 1
        np.testing.assert_array_equal(found.tokens, other.tokens)
        mine, trls = _characters(found), _characters(other)
        missing = _runs(found.text, trls - mine)
        # TRL's DeepSeek, GPT-OSS and Muse Glimmer also learn the header, and DeepSeek's the end of
        # the outputs of tools, which the prompt for an answer has.
        allowed = {header.strip(), "<\uff5ctool\u2581outputs\u2581end\uff5c>"}
        assert not missing - allowed, kind
        # Gemma 4 stops at the token that begins the outputs of tools.
        assert not _runs(found.text, mine - trls) - {"<|tool_response>"}, kind
    assert compared >= 3


def _header(encoder):
    for content in ("a", [{"type": "text", "text": "a"}]):
        asked = [{"role": USER, "content": content}]
        with suppress(DataError):
            before = encoder._template.render(asked, add_generation_prompt=False)
            return encoder._template.render(asked)[len(before) :].partition("<think>")[0]
    raise AssertionError("the template takes no question")


def _runs(text, places):
    """The texts of characters that follow each other, without white space around them."""
    parts = (text[place] if place in places else "\0" for place in range(len(text)))
    return {part.strip() for part in "".join(parts).split("\0")} - {""}


def _characters(chat):
    return {place for start, end in chat.spans for place in range(start, end)}


@pytest.mark.parametrize("name", ["qwen3_5_think", "phi3", "glm4moe", "deepseekv3"])
def test_both_answers_of_a_preference_are_found(name):
    asked = _turns(2, "field")[:3]
    sides = [
        Conversation([*asked, {"role": ASSISTANT, "content": text}], first=3)
        for text in ("Better.", "Worse, and longer.")
    ]
    chosen, rejected = encoder(name).encode_batch(sides)
    pair = Pair.of(chosen, rejected, "x:1")
    assert pair.is_learned
    texts = [chat.text[slice(*chat.spans[0])] for chat in (chosen, rejected)]
    assert "Better." in texts[0]
    assert "Worse, and longer." in texts[1]


def test_a_message_of_another_within_an_answer_is_refused():
    """Gemma 4 writes the outputs of tools between the calls and the text of one message."""
    called = [_CALLED[0], _CALLED[1] | {"content": "Let me see."}, *_CALLED[2:], *_turns(1)[1:]]
    with pytest.raises(DataError, match=r"message 3 is written within message 2"):
        encoder("gemma4").encode(called, TOOLS)


# Calls of tools -----------------------------------------------------------------------------------


def _calling(arguments, content=""):
    """A chat with a call, whose arguments are an object or a text."""
    calling = {"role": ASSISTANT, "content": content, "tool_calls": _call(arguments)}
    return Conversation([_CALLED[0], calling, *_CALLED[2:], *_turns(1)[1:]], TOOLS, where="x:1")


@pytest.mark.parametrize("name", ["deepseekv3", "glm4moe", "lfm2_2_5", "gemma4_v5"])
@pytest.mark.quick("deepseekv3")
def test_arguments_may_be_objects_or_text(name, caplog):
    """These templates take one of the two; DeepSeek's variant of TRL writes objects as JSON."""
    arguments = {"lake": "red é"}
    chats = [_calling(arguments), _calling(json.dumps(arguments, ensure_ascii=False))]
    ours = ChatEncoder(encoder(name)._tokenizer._tokenizer, encoder(name)._template)
    first, second = ours.encode_batch(chats)
    assert first.text == second.text
    np.testing.assert_array_equal(first.answers, second.answers)
    assert first.answers.max() == 2
    assert "takes the arguments of tool calls as" in caplog.text
    if name == "deepseekv3":
        assert first.text == encoder("deepseekv3_training").encode_batch(chats[:1])[0].text


@pytest.mark.parametrize("name", ["deepseekv3", "qwen3", "qwen2_5", "glm4moe"])
@pytest.mark.quick("deepseekv3")
def test_a_call_needs_no_content(name):
    empty, missing = encoder(name).encode_batch([_calling("{}"), _calling("{}", None)])
    np.testing.assert_array_equal(empty.tokens, missing.tokens)
    np.testing.assert_array_equal(empty.answers, missing.answers)


def test_text_in_quotation_marks_is_warned_about(caplog):
    encoder("qwen2_5").encode_batch([_calling({"lake": "red"})])
    assert "in quotation marks" not in caplog.text
    encoder("qwen2_5").encode_batch([_calling('{"lake": "red"}')])
    assert "writes arguments of tool calls that are text in quotation marks" in caplog.text
