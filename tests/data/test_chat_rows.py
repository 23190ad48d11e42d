"""Rows of every form become the same conversations; wrong ones are errors with their line."""

import json

import pytest
from corpora import write_rows

from jaxformer.data.chat.rows import (
    Alpaca,
    AnyFormat,
    Messages,
    PromptCompletion,
    ShareGPT,
)
from jaxformer.data.files.tables import read_records
from jaxformer.errors import DataError

ASKED, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}


def read(folder, *rows, form=None):
    file = write_rows(folder / "chat.jsonl", rows)
    return [(form or AnyFormat()).read(record) for record in read_records(file)]


FORMS = {
    "messages": {"messages": [ASKED, ANSWER]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "sharegpt with roles": {"conversations": [ASKED, ANSWER]},
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "alpaca without input": {"instruction": "a", "output": "b", "input": None},
    "text of messages": {"messages": json.dumps([ASKED, ANSWER])},
    "with a prompt as well": {"prompt": "a", "messages": [ASKED, ANSWER]},
}


def test_each_form_is_the_same_conversation_and_forms_may_take_turns(tmp_path):
    chats = read(tmp_path, *FORMS.values())
    for number, (name, chat) in enumerate(zip(FORMS, chats, strict=True), start=1):
        assert chat.messages == [ASKED, ANSWER], name
        assert (chat.first, chat.plain, chat.tools) == (0, False, None), name
        assert chat.where == f"{tmp_path / 'chat.jsonl'}:{number}"


def test_alpaca_has_an_input_a_system_message_and_a_history(tmp_path):
    row = {
        "instruction": "do",
        "input": "in",
        "output": "b",
        "system_prompt": "s",
        "history": [["a", "b"]],
    }
    (chat,) = read(tmp_path, row)
    assert chat.messages == [SYSTEM, ASKED, ANSWER, {"role": "user", "content": "do\n\nin"}, ANSWER]


def test_sharegpt_has_a_system_message_and_tools(tmp_path):
    call = {"name": "f", "arguments": {"x": 1}}
    turns = [
        {"from": "human", "value": "a"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "1"},
        {"from": "gpt", "value": "b"},
    ]
    (chat,) = read(tmp_path, {"conversations": turns, "system": "s", "tools": '[{"name": "f"}]'})
    called = {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    assert chat.messages == [SYSTEM, ASKED, called, {"role": "tool", "content": "1"}, ANSWER]
    assert chat.tools == [{"name": "f"}]


def test_a_completion_is_learned_and_a_prompt_is_not(tmp_path):
    row = {"prompt": [ASKED, ANSWER, ASKED], "completion": [ANSWER]}
    (chat,) = read(tmp_path, row)
    assert chat.messages == [ASKED, ANSWER, ASKED, ANSWER]
    assert chat.first == 3
    (text,) = read(tmp_path, {"prompt": "a", "completion": "b"})
    assert text.plain
    assert text.messages == [ASKED, ANSWER]


def test_other_fields_of_a_message_reach_the_template(tmp_path):
    calls = [{"function": {"name": "f", "arguments": {"unit": None}}}]
    rows = [ASKED, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "1"}]
    row = {"messages": [*rows, ANSWER | {"reasoning_content": "r"}]}
    row |= {"tools": [{"name": "f"}], "chat_template_kwargs": {"enable_thinking": False}}
    (chat,) = read(tmp_path, row)
    assert chat.messages[1]["tool_calls"] == calls
    assert chat.messages[3]["reasoning_content"] == "r"
    assert chat.tools == [{"name": "f"}]
    assert chat.variables == {"enable_thinking": False}


def test_parquet_gives_objects_keys_that_others_have(tmp_path):
    call = {"function": {"name": "f", "arguments": {"lake": "red"}}}
    rows = [
        {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, ANSWER]},
        {"messages": [SYSTEM, ASKED, ANSWER]},
    ]
    records = read_records(write_rows(tmp_path / "chat.parquet", rows))
    chats = [AnyFormat().read(record) for record in records]
    assert chats[0].messages == [ASKED, {"role": "assistant", "tool_calls": [call]}, ANSWER]
    assert chats[1].messages == [SYSTEM, ASKED, ANSWER]
    assert chats[1].where.endswith("chat.parquet, row 2")


def test_columns_may_have_other_names(tmp_path):
    rows = {
        Messages(column="dialog"): {"dialog": [ASKED, ANSWER]},
        ShareGPT(column="dialog"): {"dialog": FORMS["sharegpt"]["conversations"]},
        Alpaca(instruction="question", output="reply"): {"question": "a", "reply": "b"},
        PromptCompletion(prompt="p", completion="c"): {"p": [ASKED], "c": [ANSWER]},
    }
    for form, row in rows.items():
        (chat,) = read(tmp_path, row, form=form)
        assert chat.messages == [ASKED, ANSWER]


def messages(*turns):
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


WRONG = {
    "no form": ({"text": "a"}, "columns 'text' are not a conversation: there must be 'messages'"),
    "empty": ({"messages": []}, "column 'messages' is empty"),
    "no list": ({"messages": 3}, "column 'messages' holds 3, not a list of messages"),
    "no object": ({"messages": ["a"]}, "message 1' holds 'a', not an object"),
    "no json": ({"messages": "hello"}, "column 'messages': not valid JSON"),
    "no answer": (messages(("user", "a")), "no answer: the messages are by user"),
    "empty answer": (messages(("user", "a"), ("assistant", " ")), "no answer"),
    "no role": ({"messages": [{"content": "a"}]}, "message 1: role = None: must be one of"),
    "unknown role": (messages(("usr", "a"), ("assistant", "b")), "role = 'usr': must be one of"),
    "answer first": (messages(("assistant", "b")), "message 1: roles out of order"),
    "answer after system": (
        messages(("system", "s"), ("assistant", "b"), ("user", "a")),
        "message 2: roles out of order",
    ),
    "tool first": (
        messages(("user", "a"), ("tool", "1"), ("assistant", "b")),
        "message 2: roles out of order: a tool",
    ),
    "number": (messages(("user", 3), ("assistant", "b")), "message 1: content = 3: must be a text"),
    "null": (messages(("user", None), ("assistant", "b")), "message 1: content = None"),
    "null answer": (messages(("user", "a"), ("assistant", None)), "message 2: content = None"),
    "list of texts": (messages(("user", ["a"]), ("assistant", "b")), r"message 1: content = \['a'"),
    "speaker": ({"conversations": [{"from": "me", "value": "a"}]}, "from = 'me': must be one of"),
    "no speaker": ({"conversations": [{"value": "a"}]}, 'a turn has no "from"'),
    "call": (
        {"conversations": [ASKED, {"from": "function_call", "value": "f("}]},
        "the function_call: not valid JSON",
    ),
    "alpaca": ({"instruction": 3, "output": "b"}, "column 'instruction' holds 3"),
    "history": ({"instruction": "a", "output": "b", "history": [["a"]]}, "column 'history' holds"),
    "mixed": ({"prompt": "a", "completion": [ANSWER]}, "column 'prompt' holds 'a', not a list"),
    "empty completion": ({"prompt": "a", "completion": " "}, "no answer: column 'completion'"),
    "prompt that answers": (
        {"prompt": [ASKED, ANSWER], "completion": [ASKED]},
        "none of the last 1 of them is a text by 'assistant'",
    ),
    "tools": (messages(("user", "a"), ("assistant", "b")) | {"tools": 3}, "column 'tools' holds 3"),
    "surrogate": (messages(("user", "\ud800"), ("assistant", "b")), "half of a surrogate pair"),
    "weight": ({"messages": [ASKED, ANSWER | {"weight": 0.5}]}, r"message 2: weight = 0\.5: must"),
    "code point": (messages(("user", "\ufdd0"), ("assistant", "b")), "the code point U.FDD0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_row_is_an_error_with_its_line(tmp_path, name):
    row, words = WRONG[name]
    with pytest.raises(DataError, match=rf"chat\.jsonl:2: .*{words}"):
        read(tmp_path, {"messages": [ASKED, ANSWER]}, row)
