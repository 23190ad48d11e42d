"""Messages become the prompt of transformers, and answers become messages as there."""

import json

import numpy as np
import pytest
from chat_cases import QWEN, TEMPLATES, TOKENIZERS, TOOLS, WITH_TOOLS
from hf_checkpoints import byte_bpe, fast

from jaxformer.data.chat.dialogue.dialogue import Answer, Dialogue, checked_tools
from jaxformer.data.chat.template import read_chat_template
from jaxformer.errors import ArgumentError, DataError

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

ASKED = WITH_TOOLS[:1]
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"
            },
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    },
}
TAGS = (
    "<tool_call>\n<function=depth>\n<parameter=lake>\nred é\n</parameter>\n</function>\n"
    "</tool_call>"
)


def saved(folder, template=QWEN, **settings):
    tokenizer = TOKENIZERS["bytes"]()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    rust = tokenizer.backend_tokenizer
    return tokenizer, Dialogue(rust, read_chat_template(folder), folder)


def answer(tokenizer, text, prompt="<|im_start|>assistant\n", num_calls=0):
    ids = [np.array(tokenizer.encode(each, add_special_tokens=False)) for each in (prompt, text)]
    return Answer(*ids, tokenizer.decode(ids[1], skip_special_tokens=True), num_calls)


@pytest.mark.parametrize("messages", [ASKED, WITH_TOOLS[:4]], ids=["question", "results"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
@pytest.mark.quick("-question", "tools-results")
def test_prompts_are_those_of_transformers(tmp_path, messages, tools):
    theirs, dialogue = saved(tmp_path)
    expected = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True)
    np.testing.assert_array_equal(dialogue.prompt(messages, tools), expected["input_ids"])


def test_a_schema_alone_is_put_where_templates_look_for_it(tmp_path):
    _, dialogue = saved(tmp_path)
    alone = [TOOLS[0]["function"]]
    flat = [{"type": "function", **alone[0]}]
    for tools in (alone, flat, checked_tools(alone)):
        np.testing.assert_array_equal(dialogue.prompt(ASKED, tools), dialogue.prompt(ASKED, TOOLS))
    np.testing.assert_array_equal(dialogue.prompt(ASKED, []), dialogue.prompt(ASKED))


def test_a_function_has_the_schema_that_transformers_makes_of_it():
    from transformers.utils import get_json_schema

    def depth(lake: str, feet: bool = False):
        """The depth of a lake.

        Args:
            lake: Its name.
            feet: Whether to measure in feet.
        """

    assert checked_tools([depth]) == [get_json_schema(depth)]
    with pytest.raises(ArgumentError, match=r"tools: tool 2 = <function .*docstring"):
        checked_tools([depth, lambda lake: 40])


@pytest.mark.parametrize("name", sorted({*TEMPLATES} - {"qwen"}))
@pytest.mark.quick("chatml", "llama3")
def test_templates_without_tools_say_so(tmp_path, name):
    _, dialogue = saved(tmp_path, TEMPLATES[name])
    with pytest.raises(DataError, match="the chat template does not support tools"):
        dialogue.prompt(ASKED, TOOLS)
    called = [*WITH_TOOLS[:1], WITH_TOOLS[1] | {"content": ""}, *WITH_TOOLS[2:4]]
    with pytest.raises(DataError, match=r"messages: message 2: .* does not support tools"):
        dialogue.prompt(called)
    assert len(dialogue.prompt(ASKED)) > 3


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (WITH_TOOLS, "message 5 is the assistant's"),
        (WITH_TOOLS[:2], "message 2 is the assistant's"),
        ([{"role": "user"}], "content = None"),
        ([{"role": "usr", "content": "a"}], "role = 'usr'"),
        ([*ASKED, WITH_TOOLS[2]], "a tool answers a call of the assistant"),
    ],
)
def test_messages_that_cannot_be_answered(tmp_path, messages, message):
    _, dialogue = saved(tmp_path)
    with pytest.raises(DataError, match=message):
        dialogue.prompt(messages)


@pytest.mark.parametrize("tools", ["depth", {"name": "depth"}, [1], [{"type": "function"}]])
def test_anything_but_a_schema_is_refused(tools):
    with pytest.raises(ArgumentError, match="tool"):
        checked_tools(tools)


def test_calls_have_numbers_and_special_tokens_are_not_in_texts(tmp_path):
    tokenizer, dialogue = saved(tmp_path)
    call = '<tool_call>\n{"name": "depth", "arguments": {"lake": "é"}}\n</tool_call>'
    texts = [f"So.\n{call}\n{call}<|im_end|>", "40 <b>.<|im_end|>"]
    answers = [answer(tokenizer, text, num_calls=7) for text in texts]
    called, said = dialogue.answers(answers, TOOLS)
    function = {"name": "depth", "arguments": {"lake": "é"}}
    assert called == {
        "role": "assistant",
        "content": "So.",
        "tool_calls": [
            {"type": "function", "function": function, "id": f"call{n:05d}"} for n in (7, 8)
        ],
    }
    assert said == {"role": "assistant", "content": "40 <b>."}
    assert "tool_calls" not in dialogue.answers(answers)[0]  # There are no tools to call.
    # What was called is shown to the model as its template writes it.
    answered = [{"role": "tool", "content": "40"}] * 2
    shown = tokenizer.decode(dialogue.prompt([*ASKED, called, *answered], TOOLS))
    assert f"So.\n{call}\n{call}<|im_end|>" in shown


def test_special_tokens_that_open_calls_count(tmp_path):
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}{% elif m.tool_calls "
        "%}[CALLS]{{ m.tool_calls | map(attribute='function') | list | tojson }}{{ eos_token }}"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{{ tools or '' }}"
    )
    rust, _ = byte_bpe(("<s>", "</s>", "[INST]", "[CALLS]", "[OTHER]"))
    tokenizer = fast(rust, eos_token="</s>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path)
    dialogue = Dialogue(tokenizer.backend_tokenizer, read_chat_template(tmp_path), tmp_path)
    text = '[OTHER][CALLS][{"name": "depth", "arguments": {"lake": "a"}}]</s>'
    (found,) = dialogue.answers([answer(tokenizer, text)], TOOLS)
    assert found["content"] == ""
    assert [call["function"]["name"] for call in found["tool_calls"]] == ["depth"]


@pytest.mark.parametrize(
    "text",
    [
        f"<think>Deep.</think>\n\nSo:\n{TAGS}<|im_end|>",
        f"{TAGS}\n{TAGS}<|im_end|>",
        "40.<|im_end|>",
        "",
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.quick("None-text0")
def test_a_response_template_reads_answers_as_in_transformers(tmp_path, text, tools):
    pytest.importorskip("transformers.utils.chat_parsing")
    tokenizer, dialogue = saved(tmp_path, response_template=RESPONSES)
    tokenizer.response_template = RESPONSES
    given = answer(tokenizer, text)
    expected = tokenizer.parse_response(given.tokens, prefix=given.prompt, tools=tools)
    (found,) = dialogue.answers([given], tools)
    for call in found.get("tool_calls", []):
        assert call.pop("id").startswith("call0000")
    assert found == {"content": ""} | expected


def test_an_answer_that_does_not_fit_stays_text(tmp_path, caplog):
    pytest.importorskip("transformers.utils.chat_parsing")
    fields = RESPONSES["fields"] | {
        "title": {"open": "<title>", "close": "</title>", "optional": False}
    }
    tokenizer, dialogue = saved(tmp_path, response_template=RESPONSES | {"fields": fields})
    (found,) = dialogue.answers([answer(tokenizer, "40.<|im_end|>")])
    assert found == {"role": "assistant", "content": "40."}
    assert "response_template does not fit" in caplog.text


@pytest.mark.slow
def test_an_expression_that_takes_for_ever_is_stopped(tmp_path, monkeypatch):
    pytest.importorskip("transformers.utils.chat_parsing")
    fields = {"content": {"close_pattern": r"(a|aa)+$", "content": "text"}}
    template = {"start_anchor": "x", "fields": fields}
    tokenizer, dialogue = saved(tmp_path, response_template=template)
    monkeypatch.setattr("jaxformer.data.chat.dialogue.responses._PATIENCE", 4)
    with pytest.raises(DataError, match="did not finish within 4 seconds"):
        dialogue.answers([answer(tokenizer, "a" * 60 + "b")])
