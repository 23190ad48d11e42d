"""Calls of tools are found in the form in which a template writes them."""

import json
from pathlib import Path

import pytest
from chat_cases import NAMED, QWEN, STOCK, STOCK_TOKENS

from jaxformer.data.chat.calls import call_form
from jaxformer.data.chat.dialogue.call_syntax import Call, CallSyntax, call_syntax
from jaxformer.data.chat.template import ChatTemplate, Conversation, RenderRequest

pytestmark = pytest.mark.more

ASKED = {"role": "user", "content": "How deep?"}
CALLS = [
    Call("lake.depth-2", {"lake": 'frozen "é" {[', "unit": None, "n": [1, 2.5, {"deep": True}]}),
    Call("time", {}),
]
NAMES = [call.name for call in CALLS]
MISTRAL = """{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}
    {%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in m.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] + ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{ ', ' }}{% endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- else %}{{ m.content + eos_token }}
    {%- endif %}
{%- endfor %}"""
MISTRAL_11 = """{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
    {%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- m.content or '' }}
        {%- for call in m.tool_calls or [] %}
            {%- set arguments = call.function.arguments | tojson %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""


def syntax_of(template):
    return call_syntax(template, call_form(template))


def template(source, name="x.jinja"):
    return ChatTemplate(Path(name), source, STOCK_TOKENS)


def written(made, calls, content=""):
    """What a template writes of an answer, after the question."""
    tool_calls = [
        {
            "type": "function",
            "id": f"aaaaa{n:04d}",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for n, call in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    requests = [
        RenderRequest(Conversation([ASKED]), True),
        RenderRequest(Conversation([ASKED, answer])),
    ]
    before, after = made.render_batch(requests)
    return after.text.removeprefix(before.text)


def without_ids(found):
    return [call._replace(id=None) for call in found.calls]


KNOWN = {"qwen": QWEN, "mistral": MISTRAL, "mistral-11": MISTRAL_11} | {
    file.stem: file.read_text(encoding="utf-8")
    for file in STOCK
    if file.stem in ("llama3_1", "qwen2_5", "qwen3", "qwen3_vl")
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.quick("qwen3", "llama3_1", "mistral")
def test_what_a_template_writes_is_found(name):
    made = template(KNOWN[name])
    syntax = syntax_of(made)
    for calls in [CALLS[:1]] if name == "llama3_1" else [CALLS[:1], CALLS, [*CALLS, *CALLS]]:
        text = written(made, calls)
        found = syntax.find(text.removesuffix("<|eot_id|>"), NAMES)
        assert without_ids(found) == calls, text
    if name == "mistral":
        assert [call.id for call in found.calls][:2] == ["aaaaa0000", "aaaaa0001"]


def test_a_name_before_its_object_and_an_end_that_is_cut():
    syntax = CallSyntax(
        "<all><call>f/", "\n```</call>\n<call>f/", "\n```</call></all>", None, None, "\n```json\n"
    )
    one, two = 'time\n```json\n{"a": 1}\n```</call>', "time\n```json\n{}\n```</call>"
    for end in ("", "</all>"):
        found = syntax.find(f"Well.<all><call>f/{one}\n<call>f/{two}{end}", NAMES)
        assert found == ("Well.", (Call("time", {"a": 1}), Call("time", {})))


def test_white_space_and_the_order_of_keys_do_not_count():
    syntax = syntax_of(template(QWEN))
    first = json.dumps({"arguments": CALLS[0].arguments, "name": CALLS[0].name}, indent=1)
    text = (
        f'So:\n\n<tool_call>{first}</tool_call> <tool_call>\n\n{{"name":"time","arguments":{{}}}}'
    )
    found = syntax.find(text, ())
    assert (found.text, without_ids(found)) == ("So:", CALLS)
    spaced = syntax_of(template(MISTRAL)).find(
        '[TOOL_CALLS] [ {"name": "f", "arguments": "{}"}]', ()
    )
    assert without_ids(spaced) == [Call("f", {})]


@pytest.mark.parametrize(
    "text",
    [
        "40 metres.",
        '<tool_call>\n{"name": "time", "argum',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "time", "arguments": 3}\n</tool_call>',
        "<tool_call>\n[1, 2]\n</tool_call>",
        '{"name": "time", "arguments": {}}',
    ],
)
def test_an_incomplete_call_stays_text(text):
    assert syntax_of(template(QWEN)).find(text, NAMES) == (text, ())


def test_where_nothing_opens_a_call_the_object_alone_is_one_of_a_tool_there_is():
    syntax = CallSyntax("", "", "", "name", "parameters")
    text = ' {"name": "time", "parameters": {"zone": "é"}}\n'
    assert syntax.find(text, ["time"]) == ("", (Call("time", {"zone": "é"}),))
    for names, other in ((["depth"], text), (["time"], f"So: {text}"), (["time"], f"{text} so.")):
        assert syntax.find(other, names) == (other, ())


@pytest.mark.parametrize("name", NAMED)
def test_templates_without_calls_have_no_form(name):
    assert syntax_of(template(NAMED[name])) is None


@pytest.mark.skipif(not STOCK, reason="TRL is not installed")
@pytest.mark.torch
@pytest.mark.parametrize("name", ["qwen3", "llama3"])
def test_calls_are_those_of_transformers(name):
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    from trl import chat_template_utils

    theirs = getattr(chat_template_utils, f"{name}_template")
    made = template(KNOWN["llama3_1" if name == "llama3" else name])
    ours = syntax_of(made)
    for calls in (CALLS[:1], CALLS) if name == "qwen3" else (CALLS[:1],):
        text, start = written(made, calls), theirs["start_anchor"]
        message = parsing.parse_response(text, theirs, prefix=start)
        found = ours.find(text.removesuffix("<|eot_id|>"), NAMES)
        assert [each["function"] for each in message["tool_calls"]] == [
            {"name": call.name, "arguments": call.arguments} for call in found.calls
        ]
